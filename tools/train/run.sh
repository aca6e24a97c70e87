#!/bin/bash
# Trains in the background and waits for it: for machines that end a command after some minutes. Called again with the
# same OUT, it goes on waiting; training itself is started once.
#
# usage: run.sh OUT WAIT_S [options of train.py]
# Exit status: 0 finished, 3 still training, 1 training failed.
set -u
out=${1:?usage: run.sh OUT WAIT_S [options of train.py]} wait_s=${2:?seconds to wait}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
if [ ! -e "$out/pid" ]; then
    setsid nohup bash -c "PYTHONUNBUFFERED=1 python3 '$here/train.py' --out '$out' \"\$@\"; echo \$? >'$out/rc'" \
        train "$@" >"$out/output" 2>&1 </dev/null &
    echo $! >"$out/pid"
fi
for ((s = 0; s < wait_s; s += 2)); do
    [ ! -e "$out/rc" ] || break
    sleep 2
done
tail -n 25 "$out/output"
[ -e "$out/rc" ] || exit 3
[ "$(cat "$out/rc")" -eq 0 ]
