#!/bin/sh
# debian.sh PACKAGE PROGRAM MODULE TESTS: makes sure some tests have the Debian package whose program they start, and
# says why they will be skipped when it cannot. Always exits 0.
package=$1 program=$2 module=$3 tests=$4

# Debian keeps PostgreSQL's programs out of the path.
for found in $(command -v "$program") /usr/lib/postgresql/*/bin/"$program"; do
    if [ -x "$found" ]; then
        exit 0
    fi
done

skipped() {
    echo "$tests will be skipped: $1"
    exit 0
}

command -v apt-get >/dev/null 2>&1 || skipped "$package is not installed and this system has no apt-get"
[ "$(id -u)" -eq 0 ] || skipped "$package is not installed and installing it needs root (apt-get install $package)"
if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c "import $module" >/dev/null 2>&1; then
    skipped "the Python package $module is not installed for $PYTHON"
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install -y --no-install-recommends "$package"; } >/dev/null 2>&1 ||
    skipped "apt-get could not install $package (no network, or a package source is down)"
