#!/bin/sh
# Makes sure the budget tests have a PostgreSQL server; says why they will be skipped when it cannot. Always exits 0.

for initdb in $(command -v initdb) /usr/lib/postgresql/*/bin/initdb; do
    if [ -x "$initdb" ]; then
        exit 0
    fi
done

if ! command -v apt-get >/dev/null 2>&1; then
    echo "PostgreSQL tests will be skipped: postgresql is not installed and this system has no apt-get"
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "PostgreSQL tests will be skipped: postgresql is not installed and installing it needs root (apt-get install postgresql)"
    exit 0
fi

if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c "import psycopg" >/dev/null 2>&1; then
    echo "PostgreSQL tests will be skipped: the psycopg package is not installed for $PYTHON"
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends postgresql; } >/dev/null 2>&1; then
    echo "PostgreSQL tests will be skipped: apt-get could not install postgresql (no network, or a package source is down)"
fi
exit 0
