#!/bin/sh
# Makes sure the browser tests have a Chromium; says why they will be skipped when it cannot. Always exits 0.

if command -v chromium >/dev/null 2>&1; then
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "browser tests will be skipped: chromium is not installed and this system has no apt-get"
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "browser tests will be skipped: chromium is not installed and installing it needs root (apt-get install chromium)"
    exit 0
fi

if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c "import playwright" >/dev/null 2>&1; then
    echo "browser tests will be skipped: the playwright package is not installed for $PYTHON"
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1; then
    echo "browser tests will be skipped: apt-get could not install chromium (no network, or a package source is down)"
fi
exit 0
