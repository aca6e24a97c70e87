#!/bin/bash
# The program from outside: exit codes, runs that repeat, reports, replay, kills, terminals.
#
# usage: e2e.sh CEDAR [SCENARIO]      from the repository root; SCENARIO is the one played twice (quickstart)
# Needs sqlite3; terminals are tested when script(1) is there. E2E_SEED repeats the moments of the kills.
# CEDAR_TALLY=FILE appends "passed failed skipped" there instead of printing the totals.
set -u
cedar=$(realpath "${1:?usage: e2e.sh CEDAR [SCENARIO]}")
scenario=${2:-scenarios/quickstart.lua}
small=tests/e2e.lua
root=$PWD
out=$root/build/e2e
seed=${E2E_SEED:-$((16#$( (git rev-parse HEAD 2>/dev/null || echo 1) | cut -c 1-7)))}
RANDOM=$((seed % 32768))
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)); echo "ok    $1"; }
fail() {
    failed=$((failed + 1))
    echo "FAIL  $1"
    shift
    printf '%s\n' "$@" | head -n 12 | sed 's/^/      /'
}
skip() { skipped=$((skipped + 1)); echo "SKIP  $1"; }
# ok WHAT CONDITION...: passes when the command succeeds
ok() {
    local what=$1
    shift
    if "$@" >"$out/ok.log" 2>&1; then pass "$what"; else fail "$what" "$* failed" "$(cat "$out/ok.log")"; fi
}
# same WHAT GOT WANTED
same() { if [ -n "$3" ] && [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "got    $2" "wanted $3"; fi; }
# exits WHAT CODE PATTERN COMMAND...: exit code, and a line of its output that matches
exits() {
    local what=$1 code=$2 pattern=$3 rc
    shift 3
    timeout 120 "$@" >"$out/exits.log" 2>&1 </dev/null
    rc=$?
    if [ $rc -ne "$code" ]; then
        fail "$what" "exit code $rc, wanted $code" "$(cat "$out/exits.log")"
    elif ! grep -qE "$pattern" "$out/exits.log"; then
        fail "$what" "no line matches $pattern" "$(cat "$out/exits.log")"
    else
        pass "$what"
    fi
}
sql() { sqlite3 -readonly "$1" "$2"; }

# All rows of a database as text, without the columns that timing_columns names.
dump() {
    local db=$1 table columns key
    for table in $(sql "$db" "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"); do
        columns=$(sql "$db" "SELECT group_concat('\"' || name || '\"', ', ') FROM pragma_table_info('$table')
            WHERE name NOT IN (SELECT column_name FROM timing_columns WHERE table_name = '$table')")
        key=$(sql "$db" "SELECT group_concat('\"' || name || '\"', ', ') FROM pragma_table_info('$table') WHERE pk > 0")
        echo "-- $table"
        sql "$db" "SELECT $columns FROM \"$table\" ORDER BY ${key:-rowid}"
    done
}

usage() {
    exits "no verb: usage" 1 '^usage: cedar VERB' "$cedar"
    exits "help" 0 'start here' "$cedar" help
    exits "help of a verb" 0 'usage: cedar run' "$cedar" help run
    exits "version" 0 '^cedar [0-9]+\.[0-9]+\.[0-9]+' "$cedar" --version
    exits "a verb with a slip of the pen" 1 'do you mean "report"' "$cedar" repotr
    exits "run without a scenario" 1 'give a scenario' "$cedar" run
    exits "run with an unknown option" 1 'help run' "$cedar" run --fast "$small"
    exits "run with a word that is no key=value" 1 'neither a key=value' "$cedar" run "$small" lanes
    exits "run with an unknown key" 1 'lanes' "$cedar" run "$small" -o "$out/x.db" lane=3
    exits "run with a value out of range" 1 '4096' "$cedar" run "$small" -o "$out/x.db" lanes=4097
    exits "run of a file that is not there" 5 'no such file' "$cedar" run no-such.lua -o "$out/x.db"
    exits "run of a model that is not there" 5 'nomodel' "$cedar" run "$small" -o "$out/x.db" model=nomodel
    mkdir "$out/rest"
    cp models/small/config.json models/small/model-00003-of-00003.safetensors "$out/rest"
    exits "run of a checkpoint that lost its index" 5 'neither model.safetensors nor' \
        "$cedar" run "$small" -o "$out/x.db" model="$out/rest"
    exits "run of a trace that is not there" 5 'notrace' "$cedar" run "$small" -o "$out/x.db" trace=notrace.json
    exits "run into a folder that is not there" 5 'nofolder' "$cedar" run "$small" -o "$out/nofolder/x.db"
    exits "report of a file that is not there" 5 'nofile' "$cedar" report nofile.db
    exits "report of a file that is no database" 5 'README.md' "$cedar" report README.md
    exits "report with two formats" 1 'exclude' "$cedar" report --text --csv v_summary "$out/a.db"
    exits "output that cannot be written" 5 'standard output' sh -c '"$1" help >/dev/full' sh "$cedar"
    ok "a run that is refused leaves no database" test ! -e "$out/x.db"
    exits "plan" 0 'sequences? of 131072 tokens fit' "$cedar" plan --model flash-e32 --hbm 141GB --context 128k
    exits "plan with a wrong size" 1 '141XB' "$cedar" plan --model tiny --hbm 141XB
    exits "plan of more pages than any engine takes" 1 'page_count is' \
        "$cedar" plan --model flash-e32 --seqs 1m --context 1m
    exits "trace stat" 0 'requests' "$cedar" trace stat traces/kv-cache-tester
    exits "trace check of a broken trace" 5 'truncated.json' \
        "$cedar" trace check --strict tests/broken/traces/truncated.json
    exits "trace convert" 0 'wrote .*, 0 left out' "$cedar" trace convert traces/kv-cache-tester/trace_0291.json \
        --to weka -o "$out/c.json"
    ok "what weka keeps, stat sees again" sh -c '"$1" trace stat --csv "$2" | cut -d, -f2- >"$3.a" &&
        "$1" trace stat --csv traces/kv-cache-tester/trace_0291.json | cut -d, -f2- | cmp "$3.a"' sh \
        "$cedar" "$out/c.json" "$out/c"
    exits "trace convert says what is lost" 0 'not kept by mooncake' "$cedar" trace convert \
        traces/kv-cache-tester/trace_0291.json --to mooncake -o "$out/c.jsonl"
    exits "trace convert overwrites nothing" 5 'exists' "$cedar" trace convert traces/kv-cache-tester/trace_0291.json \
        --to weka -o "$out/c.json"
    exits "trace convert to an unknown format" 1 'mooncake' "$cedar" trace convert traces/mooncake --to moon \
        -o "$out/d.jsonl"
}

scenarios() {
    printf 'expect { what = "one is two", value = 1, eq = 2 }\n' >"$out/no.lua"
    printf 'local x = nil\nprint(x.y)\n' >"$out/bad.lua"
    printf 'print(os.time())\n' >"$out/os.lua"
    printf 'print("a\0b")\n' >"$out/zero.lua"
    exits "a zero byte in a scenario" 1 'byte 9 is 0' "$cedar" run "$out/zero.lua" -o "$out/zero.db"
    exits "an expectation that fails: 2" 2 'one is two' "$cedar" run "$out/no.lua" -o "$out/no.db"
    exits "an error of the scenario names its line" 1 'bad.lua:2' "$cedar" run "$out/bad.lua" -o "$out/bad.db"
    exits "no clock in the sandbox" 1 'os' "$cedar" run "$out/os.lua" -o "$out/os.db"
    exits "a failed expectation is in the database" 0 '^1$' sqlite3 "$out/no.db" \
        'SELECT count(*) FROM expectations WHERE ok = 0'
}

# Several scenarios, one database: in order, each with its own name and lines.
parts() {
    local run='run { model = "tiny", trace = "traces/kv-cache-tester/trace_0057.json", length_scale = 1/64,
                     turns_max = 1, requests_max = 2, page_tokens = 16, label = "%s" }'
    # shellcheck disable=SC2059
    printf "$run\n" first >"$out/first.lua"
    # shellcheck disable=SC2059
    printf "local a = 1\n$run\n" second >"$out/second.lua"
    printf 'local a = nil\n\nprint(a.b)\n' >"$out/third.lua"
    printf 'local a\n\f\nprint(a)\n' >"$out/feed.lua"
    exits "two scenarios, one database" 0 'wrote' "$cedar" run "$out/first.lua" "$out/second.lua" -o "$out/parts.db"
    same "their runs in order" "$(sql "$out/parts.db" 'SELECT group_concat(label) FROM runs')" first,second
    same "their names" "$(sql "$out/parts.db" 'SELECT scenario_path FROM manifest')" "$out/first.lua + $out/second.lua"
    exits "they replay" 0 '2 runs, all the same' "$cedar" replay "$out/parts.db"
    exits "the second's error names its own line" 1 'third.lua:3' "$cedar" run "$out/first.lua" "$out/third.lua" \
        -o "$out/parts2.db"
    exits "a failed expectation of the first does not stop the second: 2" 2 'wrote' "$cedar" run "$out/no.lua" \
        "$out/second.lua" -o "$out/parts3.db"
    same "and the second is there" "$(sql "$out/parts3.db" 'SELECT label FROM runs')" second
    exits "what stands between them cannot be in one" 1 'form feed' "$cedar" run "$out/first.lua" "$out/feed.lua" \
        -o "$out/parts4.db"
    exits "alone it can" 0 'nil' "$cedar" run "$out/feed.lua" -o "$out/parts4.db"
    exits "a second scenario that is not there" 5 'nowhere.lua: no such file' "$cedar" run "$out/first.lua" \
        nowhere.lua -o "$out/parts5.db"
}

repeat() {
    exits "run" 0 'wrote' "$cedar" run "$scenario" -o "$out/a.db"
    exits "run again" 0 'wrote' "$cedar" run "$scenario" -o "$out/b.db"
    same "integrity" "$(sql "$out/a.db" 'PRAGMA integrity_check')" ok
    same "the run is finished" "$(sql "$out/a.db" 'SELECT finished FROM manifest')" 1
    dump "$out/a.db" >"$out/a.txt"
    dump "$out/b.db" >"$out/b.txt"
    ok "there are requests and steps" sh -c 'grep -c . "$1" | grep -qE "^[0-9]{3,}$"' sh "$out/a.txt"
    ok "two runs are equal but for the timing columns" cmp "$out/a.txt" "$out/b.txt"
    if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
        same "the database names the commit" "$(sql "$out/a.db" 'SELECT commit_id FROM manifest')" \
            "$(git rev-parse HEAD)"
    else
        skip "the commit in the database: this is no git repository"
    fi
    local hashes='SELECT run_id, event_hash FROM runs ORDER BY run_id'
    same "event hashes" "$(sql "$out/a.db" "$hashes")" "$(sql "$out/b.db" "$hashes")"
    exits "an existing database is not overwritten" 5 'replace' "$cedar" run "$small" -o "$out/b.db"
    dump "$out/b.db" >"$out/b2.txt"
    ok "and stays as it was" cmp "$out/b.txt" "$out/b2.txt"
    cp README.md "$out/text.db"
    exits "--replace replaces only databases of cedar" 5 'text.db' "$cedar" run "$small" -r -o "$out/text.db"
    ok "and the other file stays" cmp README.md "$out/text.db"
    exits "--replace" 0 'wrote' "$cedar" run "$small" -r -o "$out/b.db"
    mkdir -p "$out/elsewhere"
    # The options shorten the run; whether its expectations still hold is not the question here.
    exits "from another folder" 0 '^finished$' sh -c 'cd "$1" && { "$2" run scenarios/quickstart.lua turns_max=1 \
        -o c.db; sqlite3 c.db "SELECT DISTINCT status FROM runs"; }' sh "$out/elsewhere" "$cedar"
    exits "CEDAR_HOME elsewhere" 5 '/nowhere' env CEDAR_HOME=/nowhere "$cedar" run no-such.lua -o "$out/x.db"
    exits "more threads, same events" 0 'wrote' "$cedar" run "$small" -o "$out/t3.db" threads=3
    exits "one thread" 0 'wrote' "$cedar" run "$small" -o "$out/t1.db" threads=1
    same "threads do not change events" "$(sql "$out/t3.db" "$hashes")" "$(sql "$out/t1.db" "$hashes")"
}

reports() {
    local before view
    before=$(sha256sum <"$out/a.db")
    exits "report --text" 0 'TTFT p50' "$cedar" report --text "$out/a.db"
    exits "report to a pipe has no colours" 0 '^none$' \
        sh -c '"$1" report "$2" | { ! grep -q "$(printf "\033")"; } && echo none' sh "$cedar" "$out/a.db"
    for view in $(sql "$out/a.db" "SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name"); do
        exits "report --csv $view" 0 ',' "$cedar" report --csv "$view" "$out/a.db"
    done
    exits "report --csv of an unknown view lists the known" 1 'v_summary' "$cedar" report --csv v_no "$out/a.db"
    exits "report -o" 0 'wrote' "$cedar" report "$out/a.db" -o "$out/a.html"
    exits "the same report again" 0 'wrote' "$cedar" report "$out/a.db" -o "$out/a2.html"
    ok "both are equal" cmp "$out/a.html" "$out/a2.html"
    ok "the report is HTML" grep -qi '<!doctype html>' "$out/a.html"
    ok "and loads nothing from elsewhere" sh -c '! grep -qiE "(src|href)=.(https?:)?//" "$1"' sh "$out/a.html"
    exits "a report that cannot be written" 5 'nofolder' "$cedar" report "$out/a.db" -o "$out/nofolder/a.html"
    same "reports leave the database as it was" "$(sha256sum <"$out/a.db")" "$before"
}

# Files that must survive: a report takes its name only when complete, and --replace only what a run really replaces.
keeps() {
    local fresh="$out/keep.db" before
    rm -rf "$out/keep" && mkdir -p "$out/keep"
    exits "a small run" 0 'wrote' "$cedar" run "$small" -r -o "$fresh"
    before=$(sha256sum <"$fresh")
    exits "no report over its own database" 1 'the database itself' "$cedar" report "$fresh" -o "$fresh"
    ln -s "$fresh" "$out/keep/link"
    exits "nor through a link" 1 'the database itself' "$cedar" report "$fresh" -o "$out/keep/link"
    exits "--replace with a model that is not there" 5 'nomodel' "$cedar" run "$small" -r -o "$fresh" model=nomodel
    exits "--replace with a page size that does not fit" 1 'page_tokens' "$cedar" run "$small" -r -o "$fresh" \
        page_tokens=3
    same "the database survives all of it" "$(sha256sum <"$fresh")" "$before"
    echo old >"$out/keep/old.html"
    exits "a report of nothing" 5 'no such file' "$cedar" report "$out/none.db" -o "$out/keep/old.html"
    same "leaves the file that was there" "$(cat "$out/keep/old.html")" old
    exits "a report through a pipe" 0 '^<!DOCTYPE html>' sh -c 'mkfifo "$3/pipe" && { head -n 1 "$3/pipe" & } &&
        "$1" report "$2" -o "$3/pipe" 2>"$3/log"; wait; test -p "$3/pipe"' sh "$cedar" "$fresh" "$out/keep"
    same "nothing half-written stays" "$(find "$out/keep" -name '*.part')$(echo .)" .
    exits "an empty name of a database" 1 'is empty' "$cedar" run "$small" -o ''
    exits "words behind version" 1 'too much' "$cedar" version now
}

# Databases whose runs did not come to their end.
unended() {
    local db=$out/unended.db
    cp "$out/keep.db" "$db"
    sqlite3 "$db" "PRAGMA foreign_keys = OFF; UPDATE manifest SET finished = 0;
        DELETE FROM runs WHERE run_id > 1; UPDATE runs SET status = 'running', event_hash = NULL"
    exits "replay of a run that never ended compares nothing: 5" 5 'nothing was compared' "$cedar" replay "$db"
    cp "$out/keep.db" "$db"
    sqlite3 "$db" "PRAGMA foreign_keys = OFF; UPDATE manifest SET finished = 0; DELETE FROM runs WHERE run_id > 1"
    exits "a recording that ends between two runs" 0 '1 run, all the same' "$cedar" replay "$db"
    # A long run stopped before its first step.
    rm -f "$db"
    "$cedar" run "$small" -q -o "$db" passes=100 >"$out/unended.log" 2>&1 &
    local pid=$!
    while [ ! -e "$db" ] && kill -0 $pid 2>/dev/null; do :; done
    kill -INT $pid
    wait $pid
    exits "interrupted at its beginning: replay agrees" 0 'all the same' "$cedar" replay "$db"
    "$cedar" run "$small" -q -r -o "$db" quality=true >"$out/unended.log" 2>&1
    exits "quality of a whole run" 0 'of [0-9]+ positions\.' "$cedar" report "$db" --csv v_answers
    sqlite3 "$db" "UPDATE runs SET status = 'interrupted' WHERE run_id = 2"
    exits "quality of a run that was cut off says so" 0 'positions; it has not finished\.' \
        "$cedar" report "$db" --csv v_answers
}

terminals() {
    if ! command -v script >/dev/null; then
        skip "terminals: script(1) is not installed"
        return
    fi
    local escape
    escape=$(printf '\033')
    TERM=xterm script -qec "'$cedar' report '$out/a.db'" /dev/null >"$out/tty.txt" </dev/null
    ok "colours on a terminal" grep -q "$escape" "$out/tty.txt"
    NO_COLOR=1 TERM=xterm script -qec "'$cedar' report '$out/a.db'" /dev/null >"$out/tty.txt" </dev/null
    ok "none with NO_COLOR" sh -c '! grep -q "$1" "$2"' sh "$escape" "$out/tty.txt"
    TERM=dumb script -qec "'$cedar' report '$out/a.db'" /dev/null >"$out/tty.txt" </dev/null
    ok "none with TERM=dumb" sh -c '! grep -q "$1" "$2"' sh "$escape" "$out/tty.txt"
}

replays() {
    exits "replay reaches the same events" 0 'same' "$cedar" replay "$out/a.db"
    cp "$out/t1.db" "$out/tampered.db"
    sqlite3 "$out/tampered.db" "UPDATE runs SET event_hash = '0123456789abcdef' WHERE run_id = 1"
    exits "replay finds another event hash: 4" 4 'DIFFERENT' "$cedar" replay "$out/tampered.db"
}

# Audits: stored, reported, the same when played again; documents from the seed and from traces.
audits() {
    cat >"$out/audit.lua" <<'LUA'
local small = { docs = 2, turns = 2, prompts = 40, answer = 8, arms = { "exact", "encoder", "decoder" } }
local r = audit(small)
expect { what = "exact is exact", value = r.arms.exact.kl_max, eq = 0 }
expect { what = "encoder replay is not", value = r.arms.encoder.kl_max > 0, eq = true }
small.trace, small.length_scale = "traces/kv-cache-tester/trace_0103.json", 1/64
expect { what = "a trace is audited", value = audit(small).positions, ge = 1 }
LUA
    exits "an audit" 0 'wrote' "$cedar" run "$out/audit.lua" -o "$out/audit.db"
    exits "the same once more" 0 'wrote' "$cedar" run -q "$out/audit.lua" -o "$out/audit2.db"
    same "two audits store the same" "$(dump "$out/audit2.db" | sha256sum)" \
        "$(dump "$out/audit.db" | sha256sum)"
    exits "replay plays audits again" 0 '2 runs, all the same' "$cedar" replay "$out/audit.db"
    sqlite3 "$out/audit2.db" "UPDATE audits SET result_hash = '0123456789abcdef' WHERE audit_id = 1"
    exits "and finds another result: 4" 4 'DIFFERENT' "$cedar" replay "$out/audit2.db"
    echo 'audit { documents = "models/small/documents.json", docs = 1, turns = 1, arms = { "exact" } }' >"$out/docs.lua"
    exits "documents below the data folder" 0 'wrote' \
        env CEDAR_HOME="$root" sh -c 'cd / && "$1" run -q "$2/docs.lua" -o "$2/docs.db"' - "$cedar" "$out"
    exits "their report" 0 'Audit: arms against controls' "$cedar" report "$out/audit.db" --text
    exits "their page" 0 'wrote' "$cedar" report "$out/audit.db" -o "$out/audit.html"
    exits "their rows as CSV" 0 '^1,2,encoder,' "$cedar" report "$out/audit.db" --csv v_audit
    exits "an option of audits on the command line" 0 'wrote' \
        "$cedar" run -q "$out/audit.lua" -o "$out/audit3.db" docs=1
    exits "an arm that is not known" 1 'arms are exact' "$cedar" run -r "$out/audit.lua" -o "$out/audit3.db" arms=enc
}

# A killed run leaves a database that can be read and says that it is not finished.
kills() {
    local k pid delay
    for k in 1 2 3 4 5; do
        delay=$((RANDOM % 40 + 2))
        rm -f "$out"/k$k.db*
        "$cedar" run "$scenario" -q -o "$out/k$k.db" >"$out/k$k.log" 2>&1 &
        pid=$!
        sleep $((delay / 10)).$((delay % 10))
        if ! kill -9 $pid 2>/dev/null; then
            wait $pid
            skip "kill after $delay/10 s: the run was over"
            continue
        fi
        wait $pid 2>/dev/null
        if [ ! -e "$out/k$k.db" ] || ! sql "$out/k$k.db" 'SELECT 1 FROM manifest' >/dev/null 2>&1; then
            if [ -s "$out/k$k.db" ]; then
                fail "killed after $delay/10 s: a file is there and cannot be read"
            else
                skip "kill after $delay/10 s: no database yet"
            fi
            continue
        fi
        same "killed after $delay/10 s: integrity" "$(sqlite3 "$out/k$k.db" 'PRAGMA integrity_check')" ok
        if [ -z "$(sql "$out/k$k.db" 'SELECT finished FROM manifest')" ]; then
            skip "kill after $delay/10 s: before the manifest"
            continue
        fi
        same "killed after $delay/10 s: not finished" "$(sql "$out/k$k.db" 'SELECT finished FROM manifest')" 0
        exits "killed after $delay/10 s: the report says so" 0 'NOT finished' \
            sh -c '"$1" report "$2" | tr "\n" " "' sh "$cedar" "$out/k$k.db"
    done
    rm -f "$out/int.db"
    "$cedar" run "$scenario" -q -o "$out/int.db" >"$out/int.log" 2>&1 &
    pid=$!
    sleep 2
    kill -INT $pid
    kill -INT $pid # as timeout(1) does: once to the process, once to its group
    wait $pid
    same "interrupted: exit code 130" $? 130
    same "interrupted: the database says so" "$(sql "$out/int.db" "SELECT finished,
        (SELECT count(*) FROM runs WHERE status = 'running') FROM manifest")" "0|0"
    exits "interrupted: replay compares what there is" 0 'same' "$cedar" replay "$out/int.db"
}

benches() {
    exits "bench without a subject" 1 'say what to measure' "$cedar" bench
    exits "bench of something unknown" 1 'do you mean "sim"' "$cedar" bench sin
    exits "bench with a wrong number" 1 'repeat is "0"; it must be a whole number from 1 to 99' \
        "$cedar" bench sim --repeat 0
    exits "bench with a wrong word" 1 '"fast" is too much' "$cedar" bench sim fast
    mkdir -p "$out/tmp"
    TMPDIR="$out/tmp" "$cedar" bench sim --requests 3000 --repeat 2 --lanes 16 --csv >"$out/bench.csv" 2>&1
    same "bench sim" $? 0
    same "bench sim: a row per figure" "$(wc -l <"$out/bench.csv")" 17
    ok "bench sim: every figure is above 0" awk -F, 'NR > 1 && !($3 > 0 && $4 > 0 && $4 <= $3 && $3 <= $5) { exit 1 }' \
        "$out/bench.csv"
    ok "bench sim leaves nothing behind" rmdir "$out/tmp"
}

# An engine of its own for each session, and rows of many steps: a modelled run and its replay.
modelled() {
    exits "modelled engines" 0 'wrote' "$cedar" run scenarios/routing.lua -q -o "$out/routing.db" requests_max=300
    exits "modelled engines: replay" 0 'same' "$cedar" replay "$out/routing.db"
    same "modelled engines: four of them" "$(sql "$out/routing.db" "SELECT count(DISTINCT engine) FROM requests
        WHERE run_id = 2")" 4
    same "modelled engines: rows are of 64 steps" "$(sql "$out/routing.db" 'SELECT max(steps) FROM steps')" 64
    same "modelled engines: no step is lost" "$(sql "$out/routing.db" "SELECT count(*) FROM runs u WHERE steps <>
        (SELECT sum(steps) FROM steps s WHERE s.run_id = u.run_id)")" 0
    exits "modelled engines: the view" 0 'session,4,' "$cedar" report "$out/routing.db" --csv v_engines
}

# The ladder at a small size: modelled for the full model, and measured on the tiny one; never both in one ladder.
ladders() {
    local db=$out/ladder.db
    exits "ladder, modelled" 0 'wrote' "$cedar" run scenarios/ladder.lua -q -o "$db" lanes=4 seed=7 traces_max=6
    same "ladder: rungs and TTFT figures" "$(sql "$db" "SELECT count(DISTINCT r.ladder_id || '.' || r.rung) || ' ' ||
        count(*) FROM ladder_rungs r JOIN ladder_figures f USING (ladder_id, rung) WHERE metric = 'ttft'")" "28 224"
    same "ladder: FP4 rows hold 1650 / 890 as much" "$(sql "$db" "SELECT round(f.factor, 3) FROM v_ladder_figures f
        WHERE ladder_id = 1 AND rung = 2 AND metric = 'kv_tokens_max'")" 1.854
    same "ladder: replay without graphs gains nothing at 1 K" "$(sql "$db" "SELECT factor FROM v_ladder_figures
        WHERE ladder_id = 1 AND rung = 4 AND metric = 'ttft' AND context_tokens = 1024")" 1.0
    same "ladder: three, of two layouts" "$(sql "$db" "SELECT group_concat(hardware, ' ') FROM ladders")" \
        "gb300-tp4 gb300-tp4 gb300-dep2"
    same "ladder: each rung's ITL is no longer than the first's" "$(sql "$db" "SELECT count(*) FROM v_ladder_figures
        WHERE metric = 'itl' AND factor_first < 0.98")" 0
    same "ladder: agents accept 3.51 tokens, but at ends of answers" "$(sql "$db" "SELECT count(*) FROM v_speculation
        WHERE decode_steps > 2000 AND abs(acceptance_length - 3.51) < 0.05")" 20
    db=$out/ladder-measured.db
    exits "ladder, measured" 0 'wrote' "$cedar" run scenarios/ladder.lua -q -o "$db" clock=measured turns_max=2
    same "ladder, measured: one, of four rungs" "$(sql "$db" "SELECT group_concat(DISTINCT provenance) || ' ' ||
        count(*) FROM ladders JOIN ladder_rungs USING (ladder_id)")" "measured 4"
    same "ladder, measured: nothing is modelled" "$(sql "$db" "SELECT count(*) FROM runs WHERE clock <> 'measured'")" 0
    same "ladder, measured: exact is exact, replay is not" "$(sql "$db" "SELECT group_concat(value > 0, ' ')
        FROM (SELECT value FROM ladder_figures WHERE metric = 'kl_mean' ORDER BY rung)")" "0 1 1 1"
}

# A file of claims in a folder of its own, for the scenario to find first.
claims_file() {
    mkdir -p "$out/claims/scenarios/claims"
    cat >"$out/claims/scenarios/claims/published_claims.csv"
}

# The claims at a small size; the rows of the file are counted and compared by sqlite's own reader.
claims() {
    local db=$out/claims.db file=scenarios/claims/published_claims.csv other there play
    there=(sh -c 'cd "$1" && shift && "$@"' - "$out/claims" "$cedar")
    play=("${there[@]}" run scenarios/claims.lua -q -r -o small.db lanes=4 seed=42 traces_max=6)
    exits "claims" 0 'wrote' "$cedar" run scenarios/claims.lua -q -o "$db" lanes=4 seed=42 traces_max=6
    other=$(sqlite3 :memory: '.mode csv' ".import $file t" "ATTACH '$db' AS c" "SELECT (count(*) > 200) || ' ' ||
        (count(*) - (SELECT count(*) FROM c.claims)) || ' ' || (SELECT count(*) FROM (
            SELECT source, date, model, hardware, engine, metric, condition, CAST(value AS REAL), unit, url FROM t
            EXCEPT SELECT source, date, model, hardware, engine, metric, condition, published, unit, url
            FROM c.claims)) FROM t" | tr -d '\r"')
    same "claims: every row of the file is in the table, as it is there" "$other" "1 0 0"
    same "claims: what follows from the shape or from published points comes out" "$(sql "$db" "SELECT count(*) ||
        ' ' || sum(verdict = 'reproduced') FROM claims WHERE provenance = 'computed'")" "10 10"
    same "claims: intervals hold the figure and its sensitivity" "$(sql "$db" "SELECT count(*) FROM claims c JOIN
        claim_sensitivity s USING (claim_id) WHERE NOT (lo <= ours AND ours <= hi AND lo <= min(ours_lo, ours_hi) AND
        max(ours_lo, ours_hi) <= hi)")" 0
    same "claims: each modelled one has its sensitivity" "$(sql "$db" "SELECT count(*) FROM claims WHERE provenance =
        'modelled' AND claim_id NOT IN (SELECT claim_id FROM claim_sensitivity)")" 0
    same "claims: verdicts follow from the numbers" "$(sql "$db" "SELECT count(*) FROM claims WHERE why LIKE
        'rule: within 20 %' AND verdict <> CASE WHEN lo >= published * 0.8 - 1e-9 AND hi <= published * 1.2 + 1e-9 THEN
        'reproduced' WHEN hi < published * 0.8 OR lo > published * 1.2 THEN 'not reproduced' ELSE 'undecided' END")" 0
    same "claims: means of a run are those of its requests" "$(sql "$db" "SELECT count(*) || ' ' || sum(abs(c.ours -
        l.mean_ns / 1e6) > 1e-9 * c.ours) FROM claims c JOIN v_latency l ON l.run_id = c.run_id AND l.metric =
        CASE c.metric WHEN 'ttft_mean' THEN 'ttft' WHEN 'tpot_mean' THEN 'itl' END")" "16 0"
    same "claims: anchors are no checks" "$(sql "$db" "SELECT group_concat(published, ' ') FROM claims WHERE why LIKE
        'The hardware description was set%'")" "160.9 2267.0 103.8 3950.0"
    same "claims: a sensitivity leaves no run behind" "$(sql "$db" "SELECT count(*) FROM runs WHERE
        json_extract(config_json, '$.keep') = 0 OR json_extract(config_json, '$.assume') NOT IN ('', 'gpus=2')")" 0
    exits "claims: as CSV" 0 '^2,vLLM blog.*throughput_ratio_at_interactivity' "$cedar" report "$db" --csv v_claims
    sed -n '1p;9p;246,247p' "$file" | claims_file
    exits "claims of another file" 0 'wrote' "${play[@]}"
    same "claims of another file: its rows" "$(sql "$out/claims/small.db" 'SELECT count(*) FROM claims')" 3
    exits "claims of another file: replay" 0 'same' "${there[@]}" replay small.db
    { sed -n '1p;9p' "$file"; echo 'a blog,,DeepSeek-V4.1-Flash,GB300,,joules_per_token,,5,J,'; } | claims_file
    exits "a claim that no test fits" 1 'published_claims.csv:3: no test fits this claim: .*joules_per_token' \
        "${play[@]}"
    { sed -n '1p;9p' "$file"; echo 'a blog,,DeepSeek-V4.1-Flash,GB300,,ratio,,much,x,'; } | claims_file
    exits "a claim without a number" 5 'published_claims.csv:3: field value: "much" is not a decimal number' \
        "${play[@]}"
}

goldens() {
    local folder arith
    for folder in tests/golden/*/; do
        [ -e "$folder/golden.safetensors" ] || continue
        # Vectors that round where the vendor's reference rounds are for the bf16 arithmetic.
        arith=wide
        ! grep -q '"precision": *"ref"' "$folder/manifest.json" || arith=bf16
        exits "golden $(basename "$folder") in $arith" 0 ' 0 miss' "$cedar" check-golden "$folder" --arith $arith
    done
    mkdir -p "$out/golden"
    cp tests/golden/tiny-s1/* "$out/golden/"
    # One weight byte further: the check must see it.
    printf '\125' | dd of="$out/golden/model.safetensors" bs=1 seek=1500000 conv=notrunc status=none
    exits "a changed weight is a miss: 4" 4 'MISS' "$cedar" check-golden "$out/golden"
}

several_ranks() {
    exits "a run on two ranks" 0 'wrote' "$cedar" run "$small" -o "$out/ranks.db" backend=cpu gpus=2
    exits "replay plays it again" 0 '2 runs, all the same' "$cedar" replay "$out/ranks.db"
    same "its options say so" "$(sql "$out/ranks.db" "SELECT DISTINCT config_json ->> '\$.gpus' FROM runs")" 2
    exits "its report too" 0 'cpu on 2 ranks' "$cedar" report "$out/ranks.db" --text
    exits "golden vectors on three ranks" 0 ' 0 miss' "$cedar" check-golden tests/golden/tiny2-s1 --gpus 3
    exits "vectors with the roundings of one" 5 'roundings of one GPU' \
        "$cedar" check-golden tests/golden/tiny-s1-ref --arith bf16 --gpus 2
    exits "an audit on two ranks, with taps" 0 'wrote' "$cedar" run -q "$out/audit.lua" -o "$out/audit-ranks.db" \
        backend=cpu gpus=2 layers=1,3
    exits "its report says so" 0 'on cpu, 2 ranks: ' "$cedar" report "$out/audit-ranks.db" --text
    exits "a plan for two GPUs" 0 'on each of 2 GPUs' "$cedar" plan --model flash-e128 --gpus 2
    exits "gpus = 0" 1 'gpus' "$cedar" run -q "$small" -o "$out/none.db" backend=cpu gpus=0
    exits "gpus = 9999" 1 'gpus' "$cedar" run -q "$small" -o "$out/none.db" backend=cpu gpus=9999
    exits "more ranks than output groups" 1 'at most 2' "$cedar" run -q "$small" -o "$out/none.db" backend=cpu gpus=3
    exits "a drill that is misspelt" 1 'RANK:STEP:WHAT' \
        env CEDAR_RANK_FAULT=5 "$cedar" run -q "$small" -o "$out/none.db" backend=cpu gpus=2
    local what
    for what in fail stall differ; do
        exits "a rank that does \"$what\" ends the run within 10 s, and the database is whole" 0 "^$what: ok" \
            tests/drills.py --cedar "$cedar" --out "$out/drills" "$what"
    done
}

# Token ids, one a line, as int32, little endian.
ids_to_bytes() {
    local id
    while read -r id; do printf "\\x$(printf %02x $((id & 255)))\\x$(printf %02x $((id >> 8)))\\0\\0"; done
}

# Expected sums were computed by numpy from the oracle's logits of tests/golden/tiny-s1.
scores() {
    local dir=tests/golden/tiny-s1
    sqlite3 :memory: "SELECT value FROM json_each(CAST(readfile('$dir/manifest.json') AS TEXT), '\$.tokens')" |
        ids_to_bytes >"$out/tokens.bin"
    exits "score: what the oracle says" 0 'tokens\.bin,208,207,1805\.96769[0-9],0$' \
        "$cedar" score --model $dir --arith wide "$out/tokens.bin"
    exits "score in small steps: the same" 0 'tokens\.bin,208,207,1805\.96769[0-9],0$' \
        "$cedar" score --model $dir --arith wide --step 7 "$out/tokens.bin"
    exits "score row by row" 0 'tokens\.bin,1,[0-9]+,93,-9\.53506[67]$' \
        "$cedar" score --model $dir --arith wide --rows --logits "$out/logits.bin" "$out/tokens.bin"
    same "score: logits of all rows" "$(wc -c <"$out/logits.bin")" $((208 * 512 * 4))
    printf '\1\0\0\0\2' >"$out/odd.bin"
    exits "score of half a token" 5 'holds 1 tokens and 1 bytes more' "$cedar" score --model $dir "$out/odd.bin"
    echo 600 | ids_to_bytes >"$out/outside.bin"
    exits "score of a token outside the vocabulary" 1 'token 0 is 600' "$cedar" score --model $dir "$out/outside.bin"
    exits "score of a directory" 5 'cannot be read' "$cedar" score --model $dir "$out"
    cp "$out/tokens.bin" "$out/a,\"b\".bin"
    exits "score: a path with a comma and quotes is one field" 0 'a,""b""\.bin",208,207,' \
        "$cedar" score --model $dir "$out/a,\"b\".bin"
    exits "score: logits do not overwrite tokens" 1 'holds tokens to be scored' \
        "$cedar" score --model $dir --logits "$out/tokens.bin" "$out/tokens.bin"
    same "score: the tokens are still there" "$(wc -c <"$out/tokens.bin")" $((208 * 4))
    exits "score without its model" 5 'nowhere' \
        "$cedar" score --model nowhere --logits "$out/none.bin" "$out/tokens.bin"
    same "score: no logits of no model" "$(ls "$out" | grep -c none)" 0
    exits "score without a model" 1 'give --model' "$cedar" score "$out/tokens.bin"
    exits "score without tokens" 1 'at least one file' "$cedar" score --model $dir
}

# ask PORT METHOD PATH BODY: one request, the answer as it comes
ask() {
    exec 9<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf '%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "$2" "$3" "${#4}" "$4" >&9
    cat <&9
    exec 9>&-
}

serves() {
    local db=$out/served.db log=$out/serve.log pid port rc
    "$cedar" serve --port 0 -o "$db" threads=1 replay=both >"$log" 2>&1 &
    pid=$!
    for _ in $(seq 100); do grep -q '/v1$' "$log" && break; sleep 0.1; done
    port=$(sed -n 's/.*:\([0-9]*\)\/v1$/\1/p' "$log")
    ask "$port" GET /health '' >"$out/serve-health.log"
    ok "the server says where it is, and is there" grep -q '"ok"' "$out/serve-health.log"
    ask "$port" POST /v1/completions '{"prompt":[5,6,7],"max_tokens":9,"temperature":0}' >"$out/serve-answer.log"
    ok "it answers" grep -q '"completion_tokens":9' "$out/serve-answer.log"
    exits "a port that is taken: 5" 5 'cannot be listened on.*another --port' "$cedar" serve --port "$port" \
        -o "$out/served-new.db"
    ok "no database is left of that" test ! -e "$out/served-new.db"
    cp "$out/a.db" "$out/served-old.db"
    exits "nor is one replaced: 5" 5 'cannot be listened on' "$cedar" serve --port "$port" -r -o "$out/served-old.db"
    ok "the older one is as it was" cmp "$out/a.db" "$out/served-old.db"
    sed -n '/^    run {/,/^    }/p' docs/SERVE.md >"$out/my.lua"
    exits "the scenario of docs/SERVE.md plays at it" 0 'wrote' "$cedar" run "$out/my.lua" -o "$out/my.db" \
        endpoints="http://127.0.0.1:$port"
    same "three requests, none failed" "$(sql "$out/my.db" "SELECT COUNT(*), SUM(error <> '') FROM requests")" "3|0"
    exits "a model that is not there: 5" 5 '3 of them of class http_4xx' "$cedar" run "$out/my.lua" \
        -o "$out/my-not.db" endpoints="http://127.0.0.1:$port" model=wrong
    kill -TERM $pid
    wait $pid
    rc=$?
    same "SIGTERM ends it with 0" "$rc" 0
    same "its database has the request" "$(sql "$db" "SELECT in_tokens || '|' || out_tokens || error FROM requests
        WHERE request_id = 1")" \
        "3|9"
    same "and a finished run" "$(sql "$db" "SELECT status, clock, requests FROM runs")" "finished|wall|4"
    exits "a report of it" 0 'clock wall' "$cedar" report "$db"
    exits "nothing to play again: 1" 1 'nothing to play again' "$cedar" replay "$db"
    ok "and no table" test -z "$("$cedar" replay "$db" 2>/dev/null)"
    exits "an option without use: 1" 1 'no use for' "$cedar" serve trace=x
    exits "a database that is there: 5" 5 'exists' "$cedar" serve -o "$db"
    exits "an address that is none: 1" 1 'numeric' "$cedar" serve --host localhost --port 0
}

[ -x "$cedar" ] || { echo "e2e.sh: there is no program $cedar" >&2; exit 1; }
command -v sqlite3 >/dev/null || { echo "e2e.sh needs sqlite3: apt-get install sqlite3" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out"
usage
scenarios
parts
repeat
reports
keeps
unended
terminals
replays
audits
kills
benches
modelled
ladders
claims
goldens
several_ranks
scores
serves
if [ -n "${CEDAR_TALLY:-}" ]; then
    echo "$passed $failed $skipped" >>"$CEDAR_TALLY"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed -eq 0 ]
