#!/bin/bash
# Runs fuzz targets for some seconds each.
# usage: fuzz.sh BUILD SECONDS NAME...
# Seeds are the broken files kept for tests (tests/broken/NAME or NAMEs); what is found stays in BUILD/corpus/NAME, and
# an input that fails in BUILD/crash-NAME-*.
set -u
build=$1 seconds=$2
shift 2
passed=0 failed=0
for name in "$@"; do
    corpus=$build/corpus/$name log=$build/fuzz_$name.log
    mkdir -p "$corpus"
    seeds=()
    for folder in tests/broken/"$name" tests/broken/"$name"s; do [ ! -d "$folder" ] || seeds+=("$folder"); done
    # -close_fd_mask: a target that prints would drown the log.
    if "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -close_fd_mask=1 -artifact_prefix="$build/crash-$name-" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "fuzz $name: $runs inputs in $seconds s, none failed"
        passed=$((passed + 1))
    else
        echo "fuzz $name: FAILED"
        tail -n 25 "$log" | sed 's/^/    /'
        failed=$((failed + 1))
    fi
done
[ -z "${CEDAR_TALLY:-}" ] || echo "$passed $failed 0" >>"$CEDAR_TALLY"
[ $failed -eq 0 ]
