#!/bin/bash
# One-way dependencies between modules, read from the #include lines. Each rule: which files may include what.
#
#     base <- engine <- sim <- lua      base <- traces <- sim      sim/observer.h <- reports
#     engine <- audit <- sim, lua       audit/observer.h <- reports
#
# The program (sim/main.c and the verbs, sim/cli*.c) starts all modules: it alone sees lua/ and reports/.
set -u

allowed() {     # FILE INCLUDED
    case "$1 $2" in
    # cedar's own headers
    base/*' base/'*) ;;
    engine/*' base/'* | engine/*' engine/'*) ;;
    traces/*' base/'* | traces/*' traces/'*) ;;
    audit/*' base/'* | audit/*' audit/'* | audit/*' engine/engine.h') ;;
    sim/*' audit/audit.h' | sim/*' audit/divergence.h' | lua/*' audit/audit.h' | reports/*' audit/observer.h') ;;
    sim/*' base/'* | sim/*' sim/'* | sim/*' engine/engine.h' | sim/*' traces/traces.h') ;;
    sim/main.c' lua/script.h' | sim/main.c' reports/reports.h') ;;
    sim/cli*' engine/gpu_bench.h') ;;
    sim/cli*' lua/script.h' | sim/cli*' lua/hardware.h' | sim/cli*' reports/reports.h') ;;
    lua/*' base/'* | lua/*' lua/'* | lua/*' sim/sim.h' | lua/*' sim/observer.h' | lua/*' sim/cost.h') ;;
    lua/*' sim/claims.h' | lua/*' sim/shape.h') ;;
    reports/*' base/'* | reports/*' reports/'* | reports/*' sim/observer.h') ;;
    *' base/'* | *' engine/'* | *' traces/'* | *' sim/'* | *' audit/'* | *' lua/'* | *' reports/'*) return 1 ;;
    # libraries, each in the modules that need it
    base/*' sha2.h') ;;
    base/*' jansson.h' | engine/*' jansson.h' | traces/*' jansson.h' | sim/*' jansson.h') ;;
    traces/*' zlib.h') ;;
    reports/*' sqlite3.h' | reports/*' jansson.h') ;;
    lua/*' lua.h' | lua/*' lauxlib.h' | lua/*' lualib.h') ;;
    engine/cuda/*' cuda'* | engine/cuda/*' cublas'* | engine/cuda/*' nccl.h' | engine/cuda/*' cooperative_groups'*) ;;
    *' sha2.h' | *' jansson.h' | *' zlib.h' | *' sqlite3'* | *' lua'* | *' lauxlib.h') return 1 ;;
    *' cuda'* | *' cublas'* | *' nccl.h' | *' cooperative_groups'*) return 1 ;;
    esac
}

fail=0 count=0
while IFS=: read -r file number text; do
    included=$(sed -E 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]*)[>"].*/\1/' <<<"$text")
    count=$((count + 1))
    allowed "$file" "$included" && continue
    echo "$file:$number: may not include $included"
    fail=1
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.[ch]' --include='*.cu' --include='*.cuh' \
    base engine traces audit sim lua reports)
[ $fail -eq 0 ] && echo "includes: $count lines"
exit $fail
