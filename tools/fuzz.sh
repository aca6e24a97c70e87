#!/bin/bash
# Runs fuzz targets for some seconds each, as many at once as there are processors.
# usage: fuzz.sh BUILD SECONDS NAME...
# Seeds are the broken files kept for tests (tests/broken/NAME or NAMEs); what is found stays in BUILD/corpus/NAME, and
# an input that fails in BUILD/crash-NAME-*.
set -u
build=$1 seconds=$2
shift 2

fuzz_one() {
    local name=$1 corpus=$build/corpus/$1 log=$build/fuzz_$1.log folder seeds=()
    mkdir -p "$corpus"
    for folder in tests/broken/"$name" tests/broken/"$name"s; do [ ! -d "$folder" ] || seeds+=("$folder"); done
    # -close_fd_mask: a target that prints would drown the log.
    if "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -close_fd_mask=1 -artifact_prefix="$build/crash-$name-" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        echo "fuzz $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, none failed"
    else
        echo "fuzz $name: FAILED"
        tail -n 25 "$log" | sed 's/^/    /'
        return 1
    fi
}

# finish: waits for one target and counts it.
passed=0 failed=0 running=0
finish() {
    if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    running=$((running - 1))
}

for name in "$@"; do
    [ $running -lt "$(nproc)" ] || finish
    fuzz_one "$name" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do finish; done
[ -z "${CEDAR_TALLY:-}" ] || echo "$passed $failed 0" >>"$CEDAR_TALLY"
[ $failed -eq 0 ]
