#!/bin/bash
# Runs test suites and checks of the sources: one line each, what failed, and the totals.
#
# usage: run_tests.sh BUILD NAME...
#   test_NAME                 the suite BUILD/tests/test_NAME; its own log (TAP, by the check library) is counted. A
#                             suite that crashes, is out of time, or leaves no log counts as one failure more.
#   tidy, includes, headers   tools/NAME.sh: one test
#   slow_NAME                 tests/slow_NAME.py: one test, skipped where python3 has no numpy
#   train                     tests/train.py: one test, skipped where python3 has no PyTorch
# A line "SKIP what: reason" of a suite turns one passed test into a skipped one, and is shown.
# As many run at once as there are processors, the longest first; each prints when it ends.
#   CEDAR_JOBS=N              how many at once
#   CEDAR_TESTS=slow          only tests tagged "slow", which are left out otherwise
#   CEDAR_LEAVE_OUT=TAGS      tests tagged so are left out too
#   CEDAR_BRIEF=1             one of a kind where a test is repeated for more of it (tests/sanitized.h)
#   CEDAR_SUITE_S=N           seconds a suite may take (default 1800)
#   CEDAR_TALLY=FILE          appends "passed failed skipped" there instead of printing the totals
set -u
build=$1
shift

logs=$build/tests/log
mkdir -p "$logs"
if [ "${CEDAR_TESTS:-}" = slow ]; then
    export CK_INCLUDE_TAGS=slow
else
    export CK_EXCLUDE_TAGS="slow ${CEDAR_LEAVE_OUT:-}"
fi

count() { grep -cE "$1" "$2" 2>/dev/null || true; }

# line NAME PASSED FAILED SKIPPED MILLISECONDS
line() {
    printf '%-18s %5d passed %3d failed %3d skipped %4d.%d s\n' "$1" "$2" "$3" "$4" $(($5 / 1000)) $(($5 % 1000 / 100))
    echo "$2 $3 $4" >"$logs/$1.count"
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

run_suite() {
    local name=$1 tap=$logs/$1.tap out=$logs/$1.out start passed failed skipped planned rc why=
    rm -f "$tap"
    start=$(now_ms)
    CK_TAP_LOG_FILE_NAME=$tap timeout -k 10 "${CEDAR_SUITE_S:-1800}" "$build/tests/$name" >"$out" 2>&1
    rc=$?
    [ -f "$tap" ] || : >"$tap"
    passed=$(count '^ok ' "$tap") failed=$(count '^not ok ' "$tap") skipped=$(count '^SKIP ' "$out")
    planned=$(sed -n 's/^1\.\.//p' "$tap" | tail -n 1)
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        why="was stopped after ${CEDAR_SUITE_S:-1800} s"
    elif [ $rc -gt 128 ]; then
        why="crashed with signal $((rc - 128))"
    elif [ -z "$planned" ] || [ "$planned" -ne $((passed + failed)) ]; then
        why="ended before its last test (exit status $rc)"
    elif [ $rc -ne 0 ] && [ "$failed" -eq 0 ]; then
        why="has exit status $rc, though no test failed"
    fi
    [ -z "$why" ] || failed=$((failed + 1))
    [ "$skipped" -le "$passed" ] || skipped=$passed
    line "$name" $((passed - skipped)) "$failed" "$skipped" $(($(now_ms) - start))
    grep -E '^SKIP ' "$out" | sed 's/^/    /'
    [ -z "$why" ] || echo "    $name $why; its output is in $out"
    grep -E '^not ok ' "$tap" | sed -E 's/^not ok [0-9]+ - /    failed: /'
    # What a sanitizer or an assertion had to say.
    if [ "$failed" -gt 0 ]; then
        grep -E 'ERROR: |runtime error: |WARNING: ThreadSanitizer|SUMMARY: |assert' "$out" | head -n 20 |
            sed 's/^/    /'
    fi
}

# run_check NAME COMMAND...
run_check() {
    local name=$1 out=$logs/$1.out start skipped
    shift
    start=$(now_ms)
    if "$@" >"$out" 2>&1; then
        skipped=$(count '^SKIP ' "$out")
        line "$name" 1 0 "$skipped" $(($(now_ms) - start))
        grep -E '^SKIP ' "$out" | sed 's/^/    /'
    else
        line "$name" 0 1 0 $(($(now_ms) - start))
        head -n 30 "$out" | sed 's/^/    /'
    fi
}

run_one() {
    case $1 in
    test_*) run_suite "$1" ;;
    slow_*)
        if python3 -c 'import numpy' 2>/dev/null; then
            run_check "$1" python3 "tests/$1.py"
        else
            line "$1" 0 0 1 0
            echo "    SKIP $1: python3 with numpy is not installed"
        fi ;;
    train)
        if python3 -c 'import numpy, torch' 2>/dev/null; then
            run_check "$1" python3 tests/train.py --cedar "$build/cedar"
        else
            line "$1" 0 0 1 0
            echo "    SKIP $1: python3 with PyTorch is not installed"
        fi ;;
    *) run_check "$1" "tools/$1.sh" ;;
    esac
}

# The names in the order in which they start.
in_order() {
    local name long="test_audit test_engine test_ranks test_golden test_run test_serve test_reports test_swarm test_lua"
    for name in $long; do
        case " $* " in *" $name "*) echo "$name" ;; esac
    done
    for name in "$@"; do
        case " $long " in *" $name "*) ;; *) echo "$name" ;; esac
    done
}

running=0
for name in $(in_order "$@"); do
    if [ $running -ge "${CEDAR_JOBS:-$(nproc)}" ]; then
        wait -n
        running=$((running - 1))
    fi
    rm -f "$logs/$name.count"
    (
        run_one "$name" >"$logs/$name.report" 2>&1
        cat "$logs/$name.report"
    ) &
    running=$((running + 1))
done
wait

passed_all=0 failed_all=0 skipped_all=0
for name in "$@"; do
    # a suite that left no count did not even start
    read -r passed failed skipped 2>/dev/null <"$logs/$name.count" || passed=0 failed=1 skipped=0
    passed_all=$((passed_all + passed)) failed_all=$((failed_all + failed)) skipped_all=$((skipped_all + skipped))
done

if [ -n "${CEDAR_TALLY:-}" ]; then
    echo "$passed_all $failed_all $skipped_all" >>"$CEDAR_TALLY"
else
    echo "$passed_all passed, $failed_all failed, $skipped_all skipped"
fi
[ "$failed_all" -eq 0 ]
