#!/usr/bin/env bash
# Make .venv from requirements.lock. May be killed and run again at any point: the stamp is written last.
set -euo pipefail

python=
for candidate in "${PYTHON:-}" python3.11 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Python 3.11 is needed and was not found; install it, or say where it is: make env PYTHON=/path/to/python3.11" >&2
    exit 1
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
fi
echo "installing the locked packages into .venv …" >&2
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile -r requirements.lock
.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch .venv/.stamp
