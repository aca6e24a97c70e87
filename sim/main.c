/* The cedar program: finds the verb and says how the verbs are used. */
#include <string.h>

#include "base/version.h"
#include "sim/cli_int.h"
#include "traces/traces.h"

static int verb_help(int argc, char **argv);
static int verb_version(int argc, char **argv);

static const cedar_verb verbs[] = {
    { "run", "play a scenario and write a database of results",
      "usage: cedar run SCENARIO.lua ... [-o OUT.db] [--replace] [key=value ...]\n"
      "\n"
      "Plays a scenario and writes every request, step and quality difference into one SQLite file. The default\n"
      "file is SCENARIO.db in the current folder. key=value words win over every run{...} and audit{...} of the\n"
      "scenario. Several scenarios are played one after the other into one database, and so into one report.\n"
      "\n"
      "  -o, --output FILE   the database\n"
      "  -r, --replace       overwrite a database that is there\n"
      "  -q, --quiet         no progress and no summary\n"
      "\n"
      "examples:\n"
      "  cedar run scenarios/quickstart.lua                 play it; results in quickstart.db\n"
      "  cedar run scenarios/lanes.lua -o /tmp/a.db         elsewhere\n"
      "  cedar run scenarios/quickstart.lua -r lanes=8      again, with eight lanes\n"
      "  cedar run scenarios/endpoint-ab.lua                two HTTP endpoints; name them in it first\n"
      "  cedar run scenarios/ladder.lua scenarios/claims.lua -o verdict.db\n"
      "Ctrl-C ends after the step that is running; the database is complete up to there.\n",
      cedar_cli_run },
    { "report", "show the results of a run: text, HTML, or CSV",
      "usage: cedar report [--import FILE] RUN.db [-o OUT.html | --text | --csv VIEW]\n"
      "\n"
      "  -o, --output FILE   one self-contained HTML file\n"
      "  -t, --text          a table for the terminal (default)\n"
      "  -c, --csv VIEW      a view as CSV on standard output; an unknown VIEW lists the known ones,\n"
      "                      one with audit, ladder or claim in it those of that kind\n"
      "  -i, --import FILE   first make RUN.db from the records of another tool: AIPerf's profile_export.jsonl\n"
      "      --strict        with --import: the first line that is no usable record ends it\n"
      "  -r, --replace       with --import: overwrite a database that is there\n"
      "      --lanes N       with --import: the concurrency the records were made with\n"
      "\n"
      "examples:\n"
      "  cedar report quickstart.db\n"
      "  cedar report quickstart.db -o quickstart.html\n"
      "  cedar report --import profile_export.jsonl theirs.db --lanes 32\n",
      cedar_cli_report },
    { "replay", "play a database's scenario again and compare, event for event",
      "usage: cedar replay RUN.db [-v]\n"
      "\n"
      "Plays the scenario stored in the database again, with the durations recorded there, and compares the event\n"
      "hash of every run. Exit code 4 when one differs. Traces and models must still be where they were.\n"
      "\n"
      "example:\n"
      "  cedar replay quickstart.db\n",
      cedar_cli_replay },
    { "trace", "look into trace files: stat, check; write them in another format: convert",
      "usage: cedar trace stat [--from FORMAT] [--csv] FILE...\n"
      "       cedar trace check [--from FORMAT] [--strict] FILE...\n"
      "       cedar trace convert [--from FORMAT] [--strict] --to FORMAT -o OUT FILE...\n"
      "\n"
      "stat prints requests, lengths, prefix hits and delays of each trace; --csv prints the columns of\n"
      "traces/STATS_weka.csv. check lists what is odd in each trace. convert writes all traces into one file and says\n"
      "what its format cannot keep. With --strict, broken traces are errors. A FILE may be a folder.\n"
      "\n"
      "  -f, --from FORMAT   " CEDAR_TRACE_FORMAT_NAMES "\n"
      "  -t, --to FORMAT     weka, mooncake, llmservingsim, tracelab_csv or blis\n"
      "\n"
      "examples:\n"
      "  cedar trace stat traces/kv-cache-tester\n"
      "  cedar trace check --strict traces/kv-cache-tester/trace_0291.json\n"
      "  cedar trace convert traces/tracelab --to weka -o tracelab.jsonl\n",
      cedar_cli_trace },
    { "plan", "memory plan: what fits into how many bytes",
      "usage: cedar plan --model NAME|DIR [--hbm SIZE] [--context TOKENS] [--seqs N] [--page TOKENS] [--step TOKENS]\n"
      "                  [--gpus N]\n"
      "\n"
      "Works out weights, KV pages, windows and workspace from the shape alone; nothing is loaded.\n"
      "SIZE takes kB, MB, GB (powers of 1000) and KiB, MiB, GiB; TOKENS takes k and m (1024 and 1024^2).\n"
      "With --gpus N the weights and pages are shared out; what is shown, and SIZE, are then of one GPU.\n"
      "\n"
      "examples:\n"
      "  cedar plan --model flash-e32 --hbm 141GB --context 128k\n"
      "  cedar plan --model tiny --context 4096 --seqs 8\n"
      "  cedar plan --model flash-e128 --hbm 141GB --gpus 2\n",
      cedar_cli_plan },
    { "check-golden", "compare the engine with golden vectors",
      "usage: cedar check-golden DIR... [--backend cpu|cuda] [--arith wide|f32|bf16] [--threads N]\n"
      "                          [--gpus N] [-v]\n"
      "\n"
      "Each DIR holds a checkpoint, golden.safetensors and manifest.json. Exit code 4 when a quantity misses.\n"
      "Directories of the oracle's precision \"ref\" (names ending in -ref) hold with --arith bf16 and one GPU only.\n"
      "\n"
      "wide  every byte, list and pick must be the same, logits within 1e-6.\n"
      "f32   follows the decisions of a wide run of the same case: one of its own that differs must be a near-tie\n"
      "      within fp32 noise; then every row must be within 1e-5. -v tells how many there were and how wide.\n"
      "      With --backend cuda, blocks one by one; logits of whole runs that are off are shown, not counted.\n"
      "bf16  blocks one by one; logits of whole runs are shown, not counted.\n"
      "\n"
      "examples:\n"
      "  cedar check-golden tests/golden/tiny-s1 --arith wide -v\n"
      "  cedar check-golden tests/golden/tiny2-s1 --arith f32 -v\n",
      cedar_cli_check_golden },
    { "score", "how likely a model finds given tokens, in exact mode",
      "usage: cedar score --model NAME|DIR [--backend auto|cpu|cuda] [--arith wide|f32|bf16] [--threads N]\n"
      "                   [--step ROWS] [--rows] [--logits FILE] TOKENS...\n"
      "\n"
      "Each file holds token ids, int32, little endian, from position 0. One line a file, as CSV: tokens, how many of\n"
      "them are scored (all but the first), the sum of their negative log-probabilities in nats, and how many are the\n"
      "most likely one. Nothing is replayed or trimmed.\n"
      "\n"
      "      --step ROWS     rows of a step (default 512)\n"
      "      --rows          one line a token instead\n"
      "      --logits FILE   the logits of all rows of all files, float32\n"
      "\n"
      "example:\n"
      "  cedar score --model tiny --rows tokens.bin\n",
      cedar_cli_score },
    { "bench", "measure the program itself; each figure against a limit or a peer of the same run",
      "usage: cedar bench sim [--requests N] [--repeat N] [--lanes N] [--csv]\n"
      "       cedar bench gpu [MODEL] [--row NAME]... [--repeat N] [--csv]\n"
      "\n"
      "sim   the simulator on one core: requests a second of a modelled replay of 48 recorded sessions, with the\n"
      "      store and without; the store against bare prepared inserts of the same rows; the replay against a bare\n"
      "      event loop; loading traces. Each is repeated; shown are median, least and most (docs/MODELLED.md).\n"
      "\n"
      "      --requests N    requests of each replay (default 200000)\n"
      "      --repeat N      repetitions (default 5)\n"
      "      --lanes N       sessions at the same time (default 128)\n"
      "\n"
      "gpu   the CUDA engine: operators, decode steps and prefill of MODEL (default flash-e32) against the bandwidth\n"
      "      and the matrix rate of the device, measured first. Shown are median, least and 90th percentile\n"
      "      (docs/ENGINE.md). About three minutes and 60 GB of device memory.\n"
      "\n"
      "      --row NAME      only rows whose names begin so; may be given again\n"
      "      --repeat N      measurements of a row (default 50; rows that take seconds get fewer, at least 3)\n"
      "\n"
      "both  -c, --csv       comma-separated values\n"
      "\n"
      "examples:\n"
      "  cedar bench sim --repeat 9\n"
      "  cedar bench gpu --row decode_b1 --row linear\n",
      cedar_cli_bench },
    { "calibrate", "fit a hardware description to the steps that a GPU run logged",
      "usage: cedar calibrate RUN.db -o NAME.lua [--hardware NAME] [--device TEXT] [--held-out 1/4] [--seed N]\n"
      "                       [--run N-M] [--replace]\n"
      "       cedar calibrate RUN.db [--hardware NAME] [--run N-M]\n"
      "\n"
      "Fits efficiencies of the cost model to measured steps and writes a description for hardware=... of modelled\n"
      "runs; prints mean and worst error on the fitted and on the held-out steps, by kind of step. The model, the\n"
      "arithmetic and the graphs must be the same in all runs; a GPU must have run them (docs/MODELLED.md).\n"
      "Without -o nothing is fitted: the description of --hardware is compared with the steps.\n"
      "\n"
      "  -o, --output FILE    the description; its name without .lua is the name of the hardware\n"
      "      --hardware NAME  where all other figures, and the fit, start from (default h200)\n"
      "      --device TEXT    which device it was (default: what the database says)\n"
      "      --held-out A/B   share of the steps that is only predicted (default 1/4)\n"
      "      --seed N         of the stream that chooses them (default 1)\n"
      "      --run N, N-M     these runs of the database alone (default: all)\n"
      "  -r, --replace        overwrite a description that is there\n"
      "\n"
      "example:\n"
      "  cedar calibrate h200-agentx.db -o scenarios/hardware/h200-cedar.lua\n"
      "  cedar calibrate other.db --hardware h200-cedar\n",
      cedar_cli_calibrate },
    { "serve", "an OpenAI-compatible endpoint over the engine, for other people's clients",
      "usage: cedar serve [--model NAME] [--host ADDRESS] [--port N] [-o OUT.db] [key=value ...]\n"
      "\n"
      "Serves /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics (docs/SERVE.md), with\n"
      "continuous batching and the prefix cache of runs, until Ctrl-C or SIGTERM. Says where once it listens.\n"
      "\n"
      "      --model NAME       the same as model=NAME (default tiny)\n"
      "      --host ADDRESS     numeric address to listen on (default 127.0.0.1: this machine alone)\n"
      "  -p, --port N           0 takes a free one (default 8000)\n"
      "      --queue N          requests that may wait; one more gets status 429 (default 4096)\n"
      "      --connections N    open at the same time (default 4096)\n"
      "      --body BYTES       longest body of a request (default 16777216)\n"
      "      --grace SECONDS    after a signal, for what is on its way (default 30)\n"
      "  -o, --output FILE      write requests and steps into a database, as runs do\n"
      "  -r, --replace          overwrite a database that is there\n"
      "  -q, --quiet            print nothing\n"
      "\n"
      "key=value: options of runs that mean the same here: model, weights_seed, backend, arith, threads, lanes\n"
      "(requests that run at the same time), seed, context_max, replay, cut, encoder_rows, decoder_rows,\n"
      "adopt_short_hits, prefix_cache, page_tokens, kv_pages, window_cache_bytes, step_tokens, chunk_tokens,\n"
      "batch_max, graphs, gpus, one_stream, allreduce, label.\n"
      "\n"
      "examples:\n"
      "  cedar serve --model tiny --port 8000 lanes=8\n"
      "  cedar serve --port 0 -o served.db replay=both      bounded replay; results as those of a run\n"
      "  curl -s http://127.0.0.1:8000/v1/completions -d '{\"prompt\": [1, 2, 3], \"max_tokens\": 8}'\n"
      "There is no authentication: listen on other addresses only where everybody may use the model.\n",
      cedar_cli_serve },
    { "help", "how to use a verb",
      "usage: cedar help [VERB]\n"
      "\n"
      "example:\n"
      "  cedar help run\n",
      verb_help },
    { "version", "version and build of this program", "usage: cedar version\n", verb_version },
    { NULL, NULL, NULL, NULL }
};

static const cedar_verb *find_verb(const char *name) {
    for (const cedar_verb *v = verbs; v->name; v++)
        if (strcmp(v->name, name) == 0) return v;
    return NULL;
}

static void overview(FILE *to) {
    fputs(
        "cedar: replays recorded agent sessions against an engine for DeepSeek-V4.1-Flash\n\nusage: cedar VERB ...\n\n",
        to);
    for (const cedar_verb *v = verbs; v->name; v++) fprintf(to, "  %-13s %s\n", v->name, v->summary);
    fputs("\nstart here:\n"
          "  cedar run scenarios/quickstart.lua\n"
          "  cedar report quickstart.db -o quickstart.html\n"
          "\n`cedar help VERB` says more. Exit codes: 0 ok, 1 usage, 2 an expectation failed, 3 no progress, 4 "
          "divergence,\n"
          "5 files, memory or another part of the environment, 128 + N ended by signal N.\n",
          to);
}

static int unknown_verb(const char *name) {
    const char *names[16];
    size_t count = 0;
    for (const cedar_verb *v = verbs; v->name; v++) names[count++] = v->name;
    const char *near = cedar_nearest(name, names, count);
    if (near) fprintf(stderr, "cedar: there is no verb \"%s\"; do you mean \"%s\"?\n", name, near);
    else fprintf(stderr, "cedar: there is no verb \"%s\"; `cedar help` lists them\n", name);
    return CEDAR_EXIT_USAGE;
}

static int verb_help(int argc, char **argv) {
    if (argc > 2) return cedar_cli_usage("help", "give one verb");
    if (argc < 2) {
        overview(stdout);
        return CEDAR_EXIT_OK;
    }
    const cedar_verb *v = find_verb(argv[1]);
    if (!v) return unknown_verb(argv[1]);
    printf("cedar %s: %s\n\n%s", v->name, v->summary, v->help);
    return CEDAR_EXIT_OK;
}

static int verb_version(int argc, char **argv) {
    if (argc > 1) return cedar_cli_usage("version", "\"%s\" is too much", argv[1]);
    const char *commit = cedar_build_commit();
    printf("cedar %s%s%s%s, built with %s, flags %s\n", cedar_version(), *commit ? ", commit " : "", commit,
           *commit && cedar_build_dirty() ? " with changes" : "", cedar_build_compiler(), cedar_build_flags());
    return CEDAR_EXIT_OK;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        overview(stderr);
        return CEDAR_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) name = "help";
    if (strcmp(name, "-V") == 0 || strcmp(name, "--version") == 0) name = "version";
    const cedar_verb *v = find_verb(name);
    if (!v) return unknown_verb(name);
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            char *words[] = { argv[0], argv[1], NULL };
            return verb_help(2, words);
        }
    int code = v->run(argc - 1, argv + 1);
    if (fflush(stdout) || ferror(stdout)) {
        fputs("cedar: standard output could not be written\n", stderr);
        return CEDAR_EXIT_ENVIRONMENT;
    }
    return code;
}
