-- Tables of a cedar database, schema version 5 (PRAGMA user_version). The views are in views.sql, both are explained
-- in docs/METRICS.md.
--
-- Times are integer nanoseconds. "schedule" times decide the order of events and repeat bit for bit; "meter" times are
-- what metrics use. Every column that may differ between two runs of one scenario is named in timing_columns.
-- Numbers that need 64 unsigned bits are text: seed in decimal, hashes in hexadecimal.

CREATE TABLE manifest (                     -- one row: what was executed, by what
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    cedar_version TEXT    NOT NULL,
    commit_id     TEXT    NOT NULL,         -- "" when unknown
    commit_dirty  INTEGER NOT NULL CHECK (commit_dirty IN (0, 1)),  -- 1: built from changed files
    compiler      TEXT    NOT NULL,
    build_flags   TEXT    NOT NULL,
    scenario_path TEXT    NOT NULL,
    scenario_text TEXT    NOT NULL,         -- the whole scenario
    scenario_hash TEXT    NOT NULL,         -- SHA-256 of scenario_text
    overrides     TEXT    NOT NULL,         -- key=value words of the command line, JSON array
    machine       TEXT    NOT NULL,         -- JSON object
    started_at    TEXT    NOT NULL,         -- ISO 8601, UTC; timing
    seed          TEXT    NOT NULL CHECK (seed <> '' AND seed NOT GLOB '*[^0-9]*'),
    finished      INTEGER NOT NULL DEFAULT 0 CHECK (finished IN (0, 1))  -- 1: the scenario came to its end
) STRICT;

CREATE TABLE runs (                         -- one row per run{...}: an arm, a point of a sweep
    run_id              INTEGER NOT NULL PRIMARY KEY CHECK (run_id >= 1),
    label               TEXT    NOT NULL,
    config_json         TEXT    NOT NULL,   -- all options and values, JSON object
    config_hash         TEXT    NOT NULL,
    model_name          TEXT    NOT NULL,
    model_hash          TEXT    NOT NULL,
    model_origin        TEXT    NOT NULL,   -- "checkpoint PATH" or "synthetic seed N"
    trace_paths         TEXT    NOT NULL,
    trace_hash          TEXT    NOT NULL,
    backend             TEXT    NOT NULL,
    device              TEXT    NOT NULL,   -- GPU that computed, or "2 x GPU", "2 ranks" of a CPU; "" = none
    arith               TEXT    NOT NULL,
    clock               TEXT    NOT NULL,
    replay              TEXT    NOT NULL,   -- which bounded replay the arm uses
    rules               TEXT    NOT NULL,   -- "plain", or the AgentX rules the run was played by; "" for imported runs
    admission           TEXT    NOT NULL,   -- name and hash of the scenario's admission policy, "" = none
    floor_mode          TEXT    NOT NULL,   -- "mark": a missed speed floor is marked; "admit": it is also kept
    floor_milli_tok_s_user INTEGER NOT NULL CHECK (floor_milli_tok_s_user >= 0),  -- speed floor, 1/1000 tok/s; 0 = none
    floor_percentile    INTEGER NOT NULL CHECK (floor_percentile BETWEEN 0 AND 100),  -- of the inter-token latency
    seed                TEXT    NOT NULL CHECK (seed <> '' AND seed NOT GLOB '*[^0-9]*'),
    lanes               INTEGER NOT NULL CHECK (lanes >= 0),
    vocab               INTEGER NOT NULL CHECK (vocab >= 0),
    window              INTEGER NOT NULL CHECK (window >= 0),       -- positions of the sliding window
    page_tokens         INTEGER NOT NULL CHECK (page_tokens >= 0),
    -- bytes of global KV and index keys per token, times 1000
    kv_token_bytes_x1000 INTEGER NOT NULL CHECK (kv_token_bytes_x1000 >= 0),
    window_snap_bytes   INTEGER NOT NULL CHECK (window_snap_bytes >= 0),    -- stored windows of one position
    plan_total_bytes    INTEGER NOT NULL CHECK (plan_total_bytes >= 0),     -- memory planned before the run
    -- filled when the run ends
    status              TEXT    NOT NULL DEFAULT 'running'
                        CHECK (status IN ('running', 'finished', 'failed', 'interrupted')),
    error               TEXT    NOT NULL DEFAULT '',
    event_hash          TEXT    CHECK (event_hash IS NULL OR length(event_hash) = 16),  -- 64 bits, hexadecimal
    requests            INTEGER CHECK (requests >= 0),              -- rows the run reported, to compare with the tables
    sessions            INTEGER CHECK (sessions >= 0),
    steps               INTEGER CHECK (steps >= 0),
    quality_rows        INTEGER CHECK (quality_rows >= 0),
    requests_unfinished INTEGER CHECK (requests_unfinished >= 0),   -- cut at the end, not in table requests
    sessions_unfinished INTEGER CHECK (sessions_unfinished >= 0),
    end_sched_ns        INTEGER,            -- schedule
    end_ns              INTEGER,            -- meter; timing
    wall_ns             INTEGER,            -- wall clock the run took; timing
    profile_sched_ns    INTEGER,            -- schedule, start of the profiling phase; -1: it never began
    profile_ns          INTEGER,            -- meter, the same; timing
    primers             INTEGER CHECK (primers >= 0),               -- requests that brought lanes to their start
    warmups             INTEGER CHECK (warmups >= 0),               -- warm-up requests behind them
    overflows           INTEGER CHECK (overflows >= 0),             -- context overflows of the profiling phase
    traces_passed_over  INTEGER CHECK (traces_passed_over >= 0),    -- whose start left a lane nothing to do
    forced_turns        INTEGER CHECK (forced_turns >= 0),          -- started although all of their tree waited
    idle_cut_ns         INTEGER,            -- schedule, idle time that the global cap took out
    submission_valid    INTEGER CHECK (submission_valid IN (0, 1)), -- keeps the AgentX rules; others cannot
    gate_ok             INTEGER CHECK (gate_ok IN (0, 1)),          -- something completed, and few enough failed
    invalid             TEXT,               -- names of the reasons why not, joined by spaces
    invalid_why         TEXT,               -- the same as sentences
    CHECK ((status = 'running') = (event_hash IS NULL))
) STRICT;

-- Sessions, requests and scored positions are written when each of them ends, so a row may come before the row it
-- belongs to: they refer to their run by a foreign key and to each other by plain ids.

CREATE TABLE sessions (                     -- one row per session tree played by a lane
    run_id           INTEGER NOT NULL REFERENCES runs,
    session_id       INTEGER NOT NULL CHECK (session_id >= 1),  -- in starting order within the run
    lane             INTEGER NOT NULL CHECK (lane >= 0),
    pass             INTEGER NOT NULL CHECK (pass >= 0),        -- trees the lane has played before
    trace_id         TEXT    NOT NULL,
    streams          INTEGER NOT NULL CHECK (streams >= 0),
    requests_planned INTEGER NOT NULL CHECK (requests_planned >= 0),
    requests_done    INTEGER NOT NULL CHECK (requests_done >= 0),
    start_sched_ns   INTEGER NOT NULL,      -- schedule
    end_sched_ns     INTEGER NOT NULL,      -- schedule
    start_ns         INTEGER NOT NULL,      -- meter; timing
    end_ns           INTEGER NOT NULL,      -- meter; timing
    outcome          TEXT    NOT NULL CHECK
                     (outcome = 'finished' OR outcome = 'cut' OR outcome = 'overflow' OR outcome = 'error'),
    first_turn       INTEGER NOT NULL CHECK (first_turn >= 0),  -- of the root, at the session's start
    t_star_ns        INTEGER NOT NULL,      -- recorded time of the start, -1: at the first turn
    idle_cut_ns      INTEGER NOT NULL,      -- schedule, idle time of this tree alone that its cap took out
    PRIMARY KEY (run_id, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE requests (                     -- one row per request; counts are never negative, the store sees to it
    run_id           INTEGER NOT NULL REFERENCES runs,
    request_id       INTEGER NOT NULL CHECK (request_id >= 1),  -- in arrival order within the run
    session_id       INTEGER NOT NULL,
    lane             INTEGER NOT NULL CHECK (lane >= 0),
    stream           INTEGER NOT NULL CHECK (stream >= 0),      -- 0 is the root agent
    turn             INTEGER NOT NULL CHECK (turn >= 0),
    engine           INTEGER NOT NULL,      -- that served it: 1, 2, ...; 0: it never came to one
    trace_id         TEXT    NOT NULL,
    phase            TEXT    NOT NULL CHECK (phase <> ''),      -- only 'profiling' counts in metrics
    in_recorded      INTEGER NOT NULL, -- tokens, as in the trace
    out_recorded     INTEGER NOT NULL,
    in_tokens        INTEGER NOT NULL,   -- ISL: prompt tokens, cached ones included
    out_tokens       INTEGER NOT NULL,  -- OSL: tokens really produced
    hit_tokens       INTEGER NOT NULL,  -- prefix adopted from the cache
    matched_tokens   INTEGER NOT NULL,  -- prefix found in the cache, adopted or not
    replayed_tokens  INTEGER NOT NULL, -- fed again to rebuild windows
    trimmed_tokens   INTEGER NOT NULL,  -- prompt rows that skipped the late layers
    prefill_steps    INTEGER NOT NULL,
    decode_steps     INTEGER NOT NULL,
    drafted_tokens   INTEGER NOT NULL,  -- drafts that decode steps fed beside the sampled tokens
    accepted_tokens  INTEGER NOT NULL,  -- those of them that stayed
    blocks_total     INTEGER NOT NULL,
    blocks_hit_theory INTEGER NOT NULL, -- infinite cache, one seen-set per trace
    provenance_depth INTEGER NOT NULL,   -- earlier replays that produced adopted rows
    miss             TEXT    NOT NULL       -- OR: a longer IN would make SQLite build a table for every row
                     CHECK (miss = 'page_tail' OR miss = 'cold' OR miss = 'evicted' OR miss = 'no_windows'
                            OR miss = 'short_hit' OR miss = 'off' OR miss = 'none'),
    arrival_sched_ns INTEGER NOT NULL,      -- schedule
    admit_sched_ns   INTEGER NOT NULL,      -- schedule, -1: never
    first_sched_ns   INTEGER NOT NULL,      -- schedule, first token, -1: none
    last_sched_ns    INTEGER NOT NULL,      -- schedule, last token, -1: none
    arrival_ns       INTEGER NOT NULL,      -- meter; timing
    admit_ns         INTEGER NOT NULL,      -- meter, -1: never; timing
    first_ns         INTEGER NOT NULL,      -- meter, first token, -1: none; timing
    last_ns          INTEGER NOT NULL,      -- meter, last token, -1: none; timing
    error            TEXT    NOT NULL,      -- "" or a sentence
    PRIMARY KEY (run_id, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE request_ends (                 -- requests whose response went on after its last token (imported runs)
    run_id           INTEGER NOT NULL REFERENCES runs,
    request_id       INTEGER NOT NULL CHECK (request_id >= 1),
    end_ns           INTEGER NOT NULL,      -- meter, the response is complete; timing
    PRIMARY KEY (run_id, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE http_requests (                -- requests of runs at endpoints (backend "http")
    run_id           INTEGER NOT NULL REFERENCES runs,
    request_id       INTEGER NOT NULL CHECK (request_id >= 1),
    endpoint         INTEGER NOT NULL,      -- 1, 2, ...; 0: it was not sent
    status           INTEGER NOT NULL,      -- HTTP status, 0: none came
    error_class      TEXT    NOT NULL,      -- "" or what went wrong
    finish           TEXT    NOT NULL,      -- finish_reason, "": none
    in_asked         INTEGER NOT NULL,      -- tokens of the prompt as it was made; requests.in_tokens: as counted there
    out_asked        INTEGER NOT NULL,      -- max_tokens
    deltas           INTEGER NOT NULL,      -- events with content
    "usage"          INTEGER NOT NULL CHECK ("usage" IN (0, 1)),   -- 1: the endpoint has counted tokens
    retry_after_s    INTEGER NOT NULL,      -- -1: not asked for
    end_ns           INTEGER NOT NULL,      -- meter, the answer is complete or has failed; timing
    PRIMARY KEY (run_id, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE endpoint_metrics (             -- samples of the endpoints' /metrics, with http_metrics
    run_id           INTEGER NOT NULL REFERENCES runs,
    endpoint         INTEGER NOT NULL CHECK (endpoint >= 1),
    moment           TEXT    NOT NULL CHECK (moment = 'before' OR moment = 'after'),
    name             TEXT    NOT NULL,
    labels           TEXT    NOT NULL,
    value            REAL    NOT NULL
) STRICT;

-- One row per engine step, or in modelled runs with steps_per_row > 1 per so many steps of one engine: then counts are
-- sums over them, and waiting, running, pages_cached and bytes are the most of any, pages_free the least.
CREATE TABLE steps (
    run_id           INTEGER NOT NULL REFERENCES runs,
    step_id          INTEGER NOT NULL CHECK (step_id >= 1),     -- of the first of its steps
    steps            INTEGER NOT NULL CHECK (steps >= 1),       -- how many the row sums up
    engine           INTEGER NOT NULL CHECK (engine >= 1),      -- 1, 2, ...
    entries          INTEGER NOT NULL,     -- sequences in the step
    prefill_entries  INTEGER NOT NULL,
    decode_entries   INTEGER NOT NULL,
    rows             INTEGER NOT NULL,        -- token rows fed
    prefill_rows     INTEGER NOT NULL, -- replayed ones included
    decode_rows      INTEGER NOT NULL,
    replayed_rows    INTEGER NOT NULL,
    kept_rows        INTEGER NOT NULL,   -- rows that ran behind the cut
    trimmed          INTEGER NOT NULL CHECK (trimmed BETWEEN 0 AND steps), -- steps with rows that skipped late layers
    graph            TEXT    NOT NULL,
    waiting          INTEGER NOT NULL,     -- requests, after planning
    running          INTEGER NOT NULL,
    pages_free       INTEGER NOT NULL,
    pages_cached     INTEGER NOT NULL,
    kv_bytes_used    INTEGER NOT NULL,       -- pages in use, cached ones included
    window_bytes_stored INTEGER NOT NULL, -- snapshots the prefix cache holds
    start_sched_ns   INTEGER NOT NULL,      -- schedule
    end_sched_ns     INTEGER NOT NULL,      -- schedule
    start_ns         INTEGER NOT NULL,      -- meter; timing
    end_ns           INTEGER NOT NULL,      -- meter; timing
    duration_ns      INTEGER NOT NULL CHECK (duration_ns >= 0), -- measured, recorded or modelled; timing
    plan_ns          INTEGER NOT NULL,      -- host time spent planning; timing
    PRIMARY KEY (run_id, step_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE quality (                      -- one row per scored position: the arm (Q) against exact recomputation (P)
    run_id        INTEGER NOT NULL REFERENCES runs,
    request_id    INTEGER NOT NULL CHECK (request_id >= 1),
    pos           INTEGER NOT NULL CHECK (pos >= 0),        -- absolute position whose next token is predicted
    "offset"      INTEGER NOT NULL,         -- pos - hit (encoder replay) or pos - prompt end + 1 (decoder replay)
    hit_tokens    INTEGER NOT NULL CHECK (hit_tokens >= 0),
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    token         INTEGER NOT NULL,         -- forced next token
    kl_pq         REAL    NOT NULL,         -- KL(P||Q), nats, full vocabulary
    kl_qp         REAL    NOT NULL,         -- KL(Q||P), nats
    js            REAL    NOT NULL,         -- Jensen-Shannon divergence, nats
    logp_p        REAL    NOT NULL,         -- log P(token), nats
    logp_q        REAL    NOT NULL,         -- log Q(token), nats
    top1_prob_p   REAL    NOT NULL,
    margin_p      REAL    NOT NULL,         -- P(top 1) - P(top 2)
    ratio_max     REAL    NOT NULL,         -- max |log P - log Q| over P > 1e-4, nats
    top1_same     INTEGER NOT NULL CHECK (top1_same IN (0, 1)),
    PRIMARY KEY (run_id, request_id, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE expectations (                 -- one row per expect{...} of the scenario, in order
    expect_id INTEGER NOT NULL PRIMARY KEY,
    what      TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    ok        INTEGER NOT NULL CHECK (ok IN (0, 1))
) STRICT;

-- Audits: bounded replay against exact recomputation of the same tokens (docs/AUDIT.md). doc and turn count from 0.

CREATE TABLE audits (                       -- one row per audit{...}
    audit_id          INTEGER NOT NULL PRIMARY KEY CHECK (audit_id >= 1),
    label             TEXT    NOT NULL,
    config_json       TEXT    NOT NULL,     -- all options and values, JSON object of texts
    model_name        TEXT    NOT NULL,
    model_hash        TEXT    NOT NULL,
    model_origin      TEXT    NOT NULL,
    documents         TEXT    NOT NULL,     -- where they come from
    backend           TEXT    NOT NULL,     -- and on what: 'cpu', 'cpu, 2 ranks', 'cuda, NVIDIA H200'
    arith             TEXT    NOT NULL,
    seed              TEXT    NOT NULL CHECK (seed <> '' AND seed NOT GLOB '*[^0-9]*'),
    docs              INTEGER NOT NULL CHECK (docs >= 1),       -- documents, the unit of the statistics
    turns             INTEGER NOT NULL CHECK (turns >= 1),      -- of all documents
    vocab             INTEGER NOT NULL CHECK (vocab >= 1),
    window            INTEGER NOT NULL CHECK (window >= 1),
    layers            INTEGER NOT NULL CHECK (layers >= 1),
    cut               INTEGER NOT NULL CHECK (cut >= 0),        -- last layer that writes global rows
    halo_encoder      INTEGER NOT NULL CHECK (halo_encoder >= 0),   -- replayed rows that make a hit exact
    halo_decoder      INTEGER NOT NULL CHECK (halo_decoder >= 0),   -- kept rows that make decoder replay exact
    kv_token_bytes_x1000 INTEGER NOT NULL CHECK (kv_token_bytes_x1000 >= 0),
    window_snap_bytes INTEGER NOT NULL CHECK (window_snap_bytes >= 0),  -- stored windows of one position
    resamples         INTEGER NOT NULL CHECK (resamples >= 2),
    margin_kl         REAL    NOT NULL,     -- equivalence margins, given before the audit
    margin_dlogp      REAL    NOT NULL,
    margin_top1       REAL    NOT NULL,
    -- filled when the audit ends
    status            TEXT    NOT NULL DEFAULT 'running'
                      CHECK (status IN ('running', 'finished', 'failed', 'interrupted')),
    error             TEXT    NOT NULL DEFAULT '',
    result_hash       TEXT    CHECK (result_hash IS NULL OR length(result_hash) = 16),
    positions         INTEGER CHECK (positions >= 0),           -- scored, all arms
    exact_ns          INTEGER,              -- steps of the exact arm; timing
    forward_ns        INTEGER,              -- steps of all arms, the exact one included; timing
    score_ns          INTEGER,              -- comparing and storing; timing
    wall_ns           INTEGER,              -- everything; timing
    CHECK ((status = 'running') = (result_hash IS NULL))
) STRICT;

CREATE TABLE audit_arms (                   -- one row per arm, in the order given
    audit_id        INTEGER NOT NULL REFERENCES audits,
    arm_id          INTEGER NOT NULL CHECK (arm_id >= 1),
    label           TEXT    NOT NULL,
    control         TEXT    NOT NULL CHECK (control IN ('', 'C0', 'C1', 'C2', 'C3', 'C4', 'C5')),
    what            TEXT    NOT NULL,       -- one sentence
    decoder         INTEGER NOT NULL CHECK (decoder IN (0, 1)),
    encoder         INTEGER NOT NULL CHECK (encoder IN (0, 1)),
    cut             TEXT    NOT NULL,       -- of decoder replay, else ""
    hits            TEXT    NOT NULL CHECK (hits IN ('continue', 'stored', 'replay', 'cold')),
    fault           TEXT    NOT NULL,       -- deliberate, else ""
    rows            INTEGER NOT NULL CHECK (rows >= 0),         -- replayed before a hit
    keep            INTEGER NOT NULL CHECK (keep >= 0),         -- kept behind the cut
    chunk           INTEGER NOT NULL CHECK (chunk >= 0),        -- rows of a step; 0: as many as allowed
    -- filled when the audit ends
    positions       INTEGER CHECK (positions >= 0),
    rows_fed        INTEGER CHECK (rows_fed >= 0),
    kept            INTEGER CHECK (kept >= 0),                  -- rows that ran behind the cut
    prompt_rows     INTEGER CHECK (prompt_rows >= 0),           -- fed rows of prompts
    prompt_kept     INTEGER CHECK (prompt_kept >= 0),
    replayed        INTEGER CHECK (replayed >= 0),
    steps           INTEGER CHECK (steps >= 0),
    adopted_changed INTEGER CHECK (adopted_changed >= 0),       -- cached rows that replay overwrote
    global_rows     INTEGER CHECK (global_rows >= 0),           -- new ones
    global_differ   INTEGER CHECK (global_differ >= 0),         -- of them, with any byte that differs
    window_bytes    INTEGER CHECK (window_bytes >= 0),          -- windows stored for hits, all turns
    greedy_mean     REAL,                   -- restricted mean of greedy tokens that agree
    prompt_ns       INTEGER,                -- timing
    forward_ns      INTEGER,                -- timing
    PRIMARY KEY (audit_id, arm_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_fronts (                 -- from which offset on theory promises an exact output of a layer
    audit_id    INTEGER NOT NULL REFERENCES audits,
    arm_id      INTEGER NOT NULL,
    layer       INTEGER NOT NULL CHECK (layer >= 0),
    from_offset INTEGER NOT NULL,
    holds       INTEGER NOT NULL CHECK (holds IN (0, 1)),       -- 0: global rows of inexact positions may undo it
    PRIMARY KEY (audit_id, arm_id, layer)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_turns (                  -- one row per arm, document and turn
    audit_id        INTEGER NOT NULL REFERENCES audits,
    arm_id          INTEGER NOT NULL CHECK (arm_id >= 1),
    doc             INTEGER NOT NULL CHECK (doc >= 0),
    turn            INTEGER NOT NULL CHECK (turn >= 0),
    doc_name        TEXT    NOT NULL,
    hit             INTEGER NOT NULL CHECK (hit >= 0),          -- H
    start           INTEGER NOT NULL CHECK (start >= 0),        -- S: first position fed
    prompt_end      INTEGER NOT NULL CHECK (prompt_end >= 1),   -- T
    "end"           INTEGER NOT NULL CHECK ("end" > prompt_end),
    replayed        INTEGER NOT NULL CHECK (replayed >= 0),
    trimmed         INTEGER NOT NULL CHECK (trimmed >= 0),      -- rows that skipped the late layers
    rows            INTEGER NOT NULL CHECK (rows >= 0),
    kept            INTEGER NOT NULL CHECK (kept >= 0),
    prompt_rows     INTEGER NOT NULL CHECK (prompt_rows >= 0),
    prompt_kept     INTEGER NOT NULL CHECK (prompt_kept >= 0),
    steps           INTEGER NOT NULL CHECK (steps >= 0),
    provenance_depth INTEGER NOT NULL CHECK (provenance_depth >= 0),    -- earlier replays behind the adopted rows
    adopted_changed INTEGER NOT NULL CHECK (adopted_changed >= 0),
    window_bytes    INTEGER NOT NULL CHECK (window_bytes >= 0),
    prompt_ns       INTEGER NOT NULL,       -- timing
    forward_ns      INTEGER NOT NULL,       -- timing
    PRIMARY KEY (audit_id, arm_id, doc, turn)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_positions (              -- one row per scored position: the arm (Q) against exact recomputation (P)
    audit_id     INTEGER NOT NULL REFERENCES audits,
    arm_id       INTEGER NOT NULL CHECK (arm_id >= 1),
    doc          INTEGER NOT NULL CHECK (doc >= 0),
    turn         INTEGER NOT NULL CHECK (turn >= 0),
    pos          INTEGER NOT NULL CHECK (pos >= 0),
    "offset"     INTEGER NOT NULL,          -- pos - H; decoder replay alone, and without a hit: pos - T + 1
    token        INTEGER NOT NULL,          -- forced next token
    kl_pq        REAL    NOT NULL,          -- nats, full vocabulary, as in table quality
    kl_qp        REAL    NOT NULL,
    js           REAL    NOT NULL,
    logp_p       REAL    NOT NULL,
    logp_q       REAL    NOT NULL,
    top1_prob_p  REAL    NOT NULL,
    margin_p     REAL    NOT NULL,
    ratio_max    REAL    NOT NULL,
    top5_jaccard REAL    NOT NULL,          -- of the five most likely tokens
    top1_p       INTEGER NOT NULL,
    top1_q       INTEGER NOT NULL,
    top1_same    INTEGER NOT NULL CHECK (top1_same IN (0, 1)),
    PRIMARY KEY (audit_id, arm_id, doc, turn, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_layers (                 -- one row per scored position and chosen layer
    audit_id       INTEGER NOT NULL REFERENCES audits,
    arm_id         INTEGER NOT NULL CHECK (arm_id >= 1),
    doc            INTEGER NOT NULL CHECK (doc >= 0),
    turn           INTEGER NOT NULL CHECK (turn >= 0),
    pos            INTEGER NOT NULL CHECK (pos >= 0),
    "offset"       INTEGER NOT NULL,
    layer          INTEGER NOT NULL CHECK (layer >= 0),
    stream_rel     REAL    NOT NULL,        -- relative L2 error of the streams behind the layer
    vector_rel     REAL    NOT NULL,        -- of the vector they collapse to
    cosine         REAL    NOT NULL,        -- between the two vectors
    window_differ  REAL,                    -- share of the window row's bytes that differ
    topk_jaccard   REAL,                    -- of the selected global rows; NULL where the layer selects none itself
    router_flip    INTEGER NOT NULL CHECK (router_flip IN (0, 1)),      -- another set of experts
    engram_differs INTEGER NOT NULL CHECK (engram_differs IN (0, 1)),
    PRIMARY KEY (audit_id, arm_id, doc, turn, pos, layer)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_globals (                -- one row per new global row of a turn
    audit_id     INTEGER NOT NULL REFERENCES audits,
    arm_id       INTEGER NOT NULL CHECK (arm_id >= 1),
    doc          INTEGER NOT NULL CHECK (doc >= 0),
    turn         INTEGER NOT NULL CHECK (turn >= 0),
    layer        INTEGER NOT NULL CHECK (layer >= 0),   -- source
    entry        INTEGER NOT NULL CHECK (entry >= 0),
    pos          INTEGER NOT NULL CHECK (pos >= 0),     -- last position of the entry
    "offset"     INTEGER NOT NULL,
    kv_differ    REAL    NOT NULL,          -- share of stored bytes that differ
    index_differ REAL    NOT NULL,
    latent_rel   REAL,                      -- relative L2 error before quantisation; NULL: not tapped
    PRIMARY KEY (audit_id, arm_id, doc, turn, layer, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_greedy (                 -- the exact arm's greedy continuation, followed by the arm
    audit_id    INTEGER NOT NULL REFERENCES audits,
    arm_id      INTEGER NOT NULL CHECK (arm_id >= 1),
    doc         INTEGER NOT NULL CHECK (doc >= 0),
    turn        INTEGER NOT NULL CHECK (turn >= 0),
    tokens      INTEGER NOT NULL CHECK (tokens >= 1),
    diverged_at INTEGER NOT NULL CHECK (diverged_at >= -1),     -- first token that differs, -1: none (censored)
    margin_p    REAL,                       -- P(top 1) - P(top 2) there
    tie         INTEGER NOT NULL CHECK (tie IN (0, 1)),
    PRIMARY KEY (audit_id, arm_id, doc, turn)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_drafts (                 -- one row per draft cycle along the greedy continuation
    audit_id  INTEGER NOT NULL REFERENCES audits,
    arm_id    INTEGER NOT NULL CHECK (arm_id >= 0),             -- 0: the exact arm
    doc       INTEGER NOT NULL CHECK (doc >= 0),
    turn      INTEGER NOT NULL CHECK (turn >= 0),
    generated INTEGER NOT NULL CHECK (generated >= 0),          -- tokens before the cycle
    drafted   INTEGER NOT NULL CHECK (drafted >= 1),
    accepted  INTEGER NOT NULL CHECK (accepted BETWEEN 0 AND drafted),
    PRIMARY KEY (audit_id, arm_id, doc, turn, generated)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_needles (                -- one row per planted fact that is asked for
    audit_id INTEGER NOT NULL REFERENCES audits,
    arm_id   INTEGER NOT NULL CHECK (arm_id >= 1),
    doc      INTEGER NOT NULL CHECK (doc >= 0),
    turn     INTEGER NOT NULL CHECK (turn >= 0),
    needle   INTEGER NOT NULL CHECK (needle >= 0),
    pos      INTEGER NOT NULL CHECK (pos >= 0),
    tokens   INTEGER NOT NULL CHECK (tokens >= 1),
    place    TEXT    NOT NULL CHECK (place IN ('replayed', 'window', 'near', 'far', 'suffix')),
    logp_p   REAL    NOT NULL,              -- of the whole forced answer, nats
    logp_q   REAL    NOT NULL,
    exact_p  INTEGER NOT NULL CHECK (exact_p IN (0, 1)),        -- every token of it is the most likely one
    exact_q  INTEGER NOT NULL CHECK (exact_q IN (0, 1)),
    PRIMARY KEY (audit_id, arm_id, doc, turn, needle)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_stats (                  -- statistics over documents
    audit_id          INTEGER NOT NULL REFERENCES audits,
    arm_id            INTEGER NOT NULL CHECK (arm_id >= 1),
    metric            TEXT    NOT NULL,
    bin               INTEGER NOT NULL,     -- of offset_bins, -1: all positions
    docs              INTEGER NOT NULL CHECK (docs >= 0),
    positions         INTEGER NOT NULL CHECK (positions >= 0),
    value             REAL,
    lo                REAL,                 -- 95 % interval
    hi                REAL,
    p                 REAL,                 -- of value = 0
    p_holm            REAL,                 -- adjusted over the bins
    margin            REAL,
    p_equivalent      REAL,                 -- of a difference as large as the margin
    p_equivalent_holm REAL,
    verdict           TEXT    NOT NULL CHECK (verdict IN ('zero', 'equivalent', 'different', 'undecided')),
    PRIMARY KEY (audit_id, arm_id, metric, bin)
) STRICT, WITHOUT ROWID;

-- What a scenario concludes from its runs. A ladder is measured or modelled, never both.

CREATE TABLE ladders (                      -- one row per ladder{...}: optimisations one at a time
    ladder_id  INTEGER NOT NULL PRIMARY KEY CHECK (ladder_id >= 1),
    title      TEXT    NOT NULL,
    provenance TEXT    NOT NULL CHECK (provenance IN ('measured', 'modelled')),
    hardware   TEXT    NOT NULL,
    model      TEXT    NOT NULL,
    note       TEXT    NOT NULL
) STRICT;

CREATE TABLE ladder_rungs (                 -- each rung has the switches of those before it
    ladder_id INTEGER NOT NULL REFERENCES ladders,
    rung      INTEGER NOT NULL CHECK (rung >= 1),
    name      TEXT    NOT NULL,
    why       TEXT    NOT NULL,
    switches  TEXT    NOT NULL,             -- options that differ from the rung before, JSON object
    beyond    INTEGER NOT NULL CHECK (beyond IN (0, 1)),    -- 1: more than what is published
    PRIMARY KEY (ladder_id, rung)
) STRICT, WITHOUT ROWID;

CREATE TABLE ladder_figures (               -- what a rung reaches
    ladder_id      INTEGER NOT NULL REFERENCES ladders,
    rung           INTEGER NOT NULL CHECK (rung >= 1),
    metric         TEXT    NOT NULL CHECK (metric <> ''),
    context_tokens INTEGER NOT NULL CHECK (context_tokens >= 0),    -- 0: not of one context length
    value          REAL    NOT NULL,        -- timing where measured, as lo and hi
    lo             REAL,                    -- interval, NULL: unknown
    hi             REAL,
    n              INTEGER NOT NULL CHECK (n >= 0),     -- requests or repetitions behind it
    unit           TEXT    NOT NULL,
    run_id         INTEGER REFERENCES runs, -- NULL: of no single run
    note           TEXT    NOT NULL,
    PRIMARY KEY (ladder_id, rung, metric, context_tokens),
    FOREIGN KEY (ladder_id, rung) REFERENCES ladder_rungs
) STRICT, WITHOUT ROWID;

-- The time of a modelled figure's run is modelled, of a measured one's not. Quality does not hang on time.
CREATE TRIGGER ladder_provenance BEFORE INSERT ON ladder_figures
WHEN NEW.metric <> 'kl_mean' AND (SELECT provenance = 'modelled' FROM ladders WHERE ladder_id = NEW.ladder_id) <>
     (SELECT clock = 'modelled' FROM runs WHERE run_id = NEW.run_id)
BEGIN SELECT RAISE(ABORT, 'the ladder''s provenance is not that of the figure''s run'); END;

CREATE TABLE claims (                       -- one row per claim{...}: a published figure against ours
    claim_id   INTEGER NOT NULL PRIMARY KEY CHECK (claim_id >= 1),  -- row of the file of claims
    source     TEXT    NOT NULL,
    date       TEXT    NOT NULL,
    model      TEXT    NOT NULL,
    hardware   TEXT    NOT NULL,
    engine     TEXT    NOT NULL,
    metric     TEXT    NOT NULL,
    condition  TEXT    NOT NULL,
    published  REAL    NOT NULL,
    unit       TEXT    NOT NULL,
    url        TEXT    NOT NULL,
    ours       REAL,                        -- timing where measured, as lo, hi, verdict and why; NULL: none
    lo         REAL,                        -- interval, NULL: unknown
    hi         REAL,
    n          INTEGER NOT NULL CHECK (n >= 0),         -- requests or positions behind our figure
    provenance TEXT    NOT NULL CHECK (provenance IN ('measured', 'modelled', 'computed', 'imported', 'none')),
    verdict    TEXT    NOT NULL CHECK (verdict IN ('reproduced', 'not reproduced', 'undecided', 'not tested')),
    why        TEXT    NOT NULL CHECK (why <> ''),      -- the rule applied, or why it is not tested
    run_id     INTEGER REFERENCES runs,     -- NULL: of no single run
    CHECK ((ours IS NULL) = (verdict = 'not tested')),
    CHECK ((ours IS NULL) = (provenance = 'none')),
    CHECK ((lo IS NULL) = (hi IS NULL) AND (lo IS NULL OR lo <= hi))
) STRICT;

CREATE TRIGGER claim_provenance BEFORE INSERT ON claims
WHEN NEW.provenance IN ('measured', 'modelled') AND (NEW.provenance = 'modelled') <>
     (SELECT clock = 'modelled' FROM runs WHERE run_id = NEW.run_id)
BEGIN SELECT RAISE(ABORT, 'its provenance is not that of the run it names'); END;

CREATE TABLE claim_sensitivity (            -- our figure with one assumption set low and high
    claim_id   INTEGER NOT NULL REFERENCES claims,
    assumption TEXT    NOT NULL CHECK (assumption <> ''),
    setting_lo REAL    NOT NULL,
    setting_hi REAL    NOT NULL,
    ours_lo    REAL    NOT NULL,            -- at setting_lo; may be the larger one
    ours_hi    REAL    NOT NULL,
    PRIMARY KEY (claim_id, assumption)
) STRICT, WITHOUT ROWID;

CREATE TABLE paired (                       -- one row per paired(a, b, {...}): runs compared request by request
    paired_id  INTEGER NOT NULL PRIMARY KEY CHECK (paired_id >= 1),
    a_run      INTEGER NOT NULL REFERENCES runs,    -- the first of side a
    b_run      INTEGER NOT NULL REFERENCES runs,
    a_runs     TEXT    NOT NULL,            -- all of side a, with commas, in the order in which they are paired
    b_runs     TEXT    NOT NULL,
    metric     TEXT    NOT NULL CHECK (metric <> ''),
    pairs      INTEGER NOT NULL CHECK (pairs >= 0),
    sessions   INTEGER NOT NULL CHECK (sessions >= 0),
    left_out   INTEGER NOT NULL CHECK (left_out >= 0),  -- requests of either side without a partner
    mean_a     REAL,                        -- NULL: no pairs
    mean_b     REAL,
    diff       REAL,                        -- mean of b - a
    diff_lo    REAL,                        -- 95 % interval over sessions, NULL: fewer than two
    diff_hi    REAL,
    ratio      REAL,                        -- mean of b / mean of a
    ratio_lo   REAL,
    ratio_hi   REAL,
    resamples  INTEGER NOT NULL CHECK (resamples >= 1),
    seed       TEXT    NOT NULL
) STRICT;

-- Columns that may differ between two runs of one scenario. Everything else must be equal.
CREATE TABLE timing_columns (
    table_name  TEXT NOT NULL,
    column_name TEXT NOT NULL,
    PRIMARY KEY (table_name, column_name)
) STRICT, WITHOUT ROWID;

INSERT INTO timing_columns (table_name, column_name) VALUES
    ('manifest', 'started_at'), ('runs', 'end_ns'), ('runs', 'wall_ns'), ('runs', 'profile_ns'),
    ('sessions', 'start_ns'), ('sessions', 'end_ns'), ('requests', 'arrival_ns'), ('requests', 'admit_ns'),
    ('requests', 'first_ns'),
    ('requests', 'last_ns'), ('request_ends', 'end_ns'),
    ('http_requests', 'end_ns'), ('steps', 'start_ns'), ('steps', 'end_ns'),
    ('steps', 'duration_ns'), ('steps', 'plan_ns'), ('audits', 'exact_ns'), ('audits', 'forward_ns'),
    ('audits', 'score_ns'), ('audits', 'wall_ns'), ('audit_arms', 'prompt_ns'), ('audit_arms', 'forward_ns'),
    ('audit_turns', 'prompt_ns'), ('audit_turns', 'forward_ns'),
    ('ladder_figures', 'value'), ('ladder_figures', 'lo'), ('ladder_figures', 'hi'),
    ('paired', 'mean_a'), ('paired', 'mean_b'), ('paired', 'diff'), ('paired', 'diff_lo'), ('paired', 'diff_hi'),
    ('paired', 'ratio'), ('paired', 'ratio_lo'), ('paired', 'ratio_hi'),
    ('claims', 'ours'), ('claims', 'lo'), ('claims', 'hi'), ('claims', 'verdict'), ('claims', 'why');

-- Bins of quality by offset; lo and hi are inclusive.
CREATE TABLE offset_bins (
    bin   INTEGER NOT NULL PRIMARY KEY,
    label TEXT    NOT NULL,
    lo    INTEGER NOT NULL,
    hi    INTEGER NOT NULL
) STRICT;

INSERT INTO offset_bins (bin, label, lo, hi) VALUES
    (0, '< 0', -9223372036854775807, -1), (1, '0', 0, 0), (2, '1-15', 1, 15), (3, '16-63', 16, 63),
    (4, '64-127', 64, 127), (5, '128-254', 128, 254), (6, '255-888', 255, 888), (7, '889-1650', 889, 1650),
    (8, '1651-2412', 1651, 2412), (9, '2413-4952', 2413, 4952), (10, '> 4952', 4953, 9223372036854775807);

PRAGMA application_id = 1128612946;         -- "CEDR"
PRAGMA user_version = 5;
