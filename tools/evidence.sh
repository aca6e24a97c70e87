#!/bin/bash
# Runs what a GPU must show, part by part, and leaves one dated text a part: device, driver, commit, command, output.
#
# usage: tools/evidence.sh -o FOLDER [-c CEDAR] [-t TEST_GPU] PART...
#   -c, -t    the program (default ./cedar) and the GPU tests (default build/release-gcc/tests/test_gpu)
#   parts     operators ranks same_bits plans golden    suites of the GPU tests
#             memcheck racecheck                  compute-sanitizer: the golden vectors of one tiny model; one prompt
#             bench peers                         cedar bench gpu; torch operators beside its figures
#             bench_ranks                         its rows about two GPUs: sums, and decode of flash-e128 on one and two
#             drills                              rank 1 of two GPUs fails, stalls, comes late, differs: tiny, flash-e32
#             agentx audit                        scenarios/h200-agentx.lua and audit-gpu.lua, with their databases
#             audit_both                          audit-gpu on the tiny model, GPU beside CPU
# A part's text ends with its exit status and seconds. EVIDENCE_LIMIT_S (default 590) stops a part that takes longer.
# Exit status: 0 only when all parts ended with 0.
set -u

out= cedar=./cedar tests=build/release-gcc/tests/test_gpu limit=${EVIDENCE_LIMIT_S:-590}
while getopts o:c:t: option; do
    case $option in
    o) out=$OPTARG ;;
    c) cedar=$OPTARG ;;
    t) tests=$OPTARG ;;
    *) sed -n 's/^# \{0,1\}//; 3,14p' "$0" >&2; exit 1 ;;
    esac
done
shift $((OPTIND - 1))
[ -n "$out" ] && [ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//; 3,14p' "$0" >&2; exit 1; }
case "$out$cedar$tests" in *[[:space:]]*)
    echo "evidence.sh: a path with a blank; the parts' commands are split at blanks" >&2
    exit 1 ;;
esac
mkdir -p "$out" || exit 1
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)

command_of() {
    case $1 in
    operators | ranks | same_bits | plans | golden) echo "$tests $1" ;;
    memcheck)
        echo "$sanitizer --tool memcheck --error-exitcode 9 $cedar check-golden tests/golden/tiny-s1" \
            "--backend cuda --arith bf16" ;;
    racecheck)      # hundreds of times slower than the program: few steps
        echo "$sanitizer --tool racecheck --error-exitcode 9 $cedar run tests/gpu/few_steps.lua -r" \
            "-o $out/few_steps.db" ;;
    bench) echo "$cedar bench gpu --csv --repeat ${EVIDENCE_REPEAT:-20}" ;;
    bench_ranks)
        echo "env NCCL_NVLS_ENABLE=0 $cedar bench gpu flash-e128 --csv --repeat ${EVIDENCE_REPEAT:-50}" \
            "--row allreduce --row site --row decode_tp" ;;
    drills)
        echo "python3 tests/drills.py --cedar $cedar --out $out/drills backend=cuda"
        echo "python3 tests/drills.py --cedar $cedar --out $out/drills backend=cuda model=flash-e32 arith=bf16" ;;
    peers) echo "python3 tests/peers/torch_ops.py --repeat ${EVIDENCE_REPEAT:-20} --ours $out/bench.txt" ;;
    agentx) echo "$cedar run scenarios/h200-agentx.lua -r -o $out/h200-agentx.db" ;;
    audit) echo "$cedar run scenarios/audit-gpu.lua -r -o $out/audit-gpu.db" ;;
    audit_both)
        echo "$cedar run scenarios/audit-gpu.lua -r -o $out/audit-cuda.db model=tiny arith=f32 docs=4"
        echo "$cedar run scenarios/audit-gpu.lua -r -o $out/audit-cpu.db model=tiny arith=f32 docs=4 backend=cpu" ;;
    *) return 1 ;;
    esac
}

head_of() {
    echo "# $1, $(date -u +%Y-%m-%dT%H:%MZ), $("$cedar" --version | head -n 1)"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/# /'
}

for part in "$@"; do
    command_of "$part" >/dev/null || { echo "evidence.sh: there is no part $part" >&2; exit 1; }
done

# What runs has a session of its own: each GPU test has a process group of its own, which timeout does not reach, so it
# would go on holding the GPU; other programs of the same name are none of ours.
session=
end_session() { [ -z "$session" ] || pkill -KILL -s "$session"; }
trap 'end_session; exit 130' INT TERM

status=0
for part in "$@"; do
    head_of "$part" >"$out/$part.txt"
    while read -r line; do
        start=$(date +%s)
        echo "# $line" >>"$out/$part.txt"
        # shellcheck disable=SC2086
        setsid timeout "$limit" $line >>"$out/$part.txt" 2>&1 </dev/null &
        session=$!
        wait "$session"
        rc=$?
        [ $rc -ne 124 ] || end_session
        session=
        echo "# exit status $rc after $(($(date +%s) - start)) s" >>"$out/$part.txt"
        echo "$part: exit status $rc, $(($(date +%s) - start)) s: $out/$part.txt"
        [ $rc -eq 0 ] || status=1
    done < <(command_of "$part")
done
exit $status
