#!/bin/bash
# Other people's clients against `cedar serve` (tests/clients.py), in a virtual environment of their own below build/.
# usage: clients.sh CEDAR
# Where Python or the package index is out of reach it says so and passes: 0 passed, 0 failed, 1 skipped.
set -u
cedar=$(realpath "$1")
cd "$(dirname "$0")/.." || exit 1
folder=build/clients
packages="aiperf==0.13.0 openai==3.57.0"

tally() {
    [ -z "${CEDAR_TALLY:-}" ] || echo "$*" >>"$CEDAR_TALLY"
}

skip() {
    echo "clients: skipped; $1"
    tally 0 0 1
    exit 0
}

mkdir -p "$folder"
python3 -c 'import venv, ensurepip' 2>/dev/null || skip "python3 with venv is not here"
if [ "$(cat "$folder/packages" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$folder/env"
    python3 -m venv "$folder/env" || skip "no virtual environment can be made"
    # shellcheck disable=SC2086
    "$folder/env/bin/pip" install --quiet --disable-pip-version-check $packages >"$folder/pip.log" 2>&1 ||
        skip "pip cannot install $packages: $(tail -n 1 "$folder/pip.log")"
    echo "$packages" >"$folder/packages"
fi
"$folder/env/bin/python" tests/clients.py "$cedar" "$PWD/$folder" >"$folder/log" 2>&1
code=$?
cat "$folder/log"
tally "$(grep -c '^ok ' "$folder/log") $((code ? $(grep -c '^FAILED ' "$folder/log" || true) + (code > 1) : 0)) 0"
exit $code
