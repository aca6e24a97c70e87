/* Tests of traces/: golden statistics of the sample traces, a hand-made trace for every oddity, the broken files of
 * tests/broken/traces with their messages, and failing allocations. Numbers come from traces/STATS_weka.csv, from
 * spec examples worked by hand, or from a short script over the sample files. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "traces/traces.h"

#define S_NS 1000000000ll
#define MS_NS 1000000ll

/* --- helpers ----------------------------------------------------------------------------------------------------- */

static int64_t live_before;

static void setup(void) {
    live_before = cedar_mem_live();
}

static void teardown(void) {
    ck_assert_int_eq(cedar_mem_live(), live_before); /* no test leaves memory behind, whatever path it took */
}

/* JSON with ' for ", so that fixtures can be read. */
static char *quoted(const char *text) {
    char *s = strdup(text);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    return s;
}

static cedar_status parse_as(const char *text, const char *name, bool strict, cedar_corpus **out, cedar_err *err) {
    cedar_corpus_opts opts = { .strict = strict };
    char *s = quoted(text);
    cedar_status st = cedar_corpus_parse(s, strlen(s), name, &opts, out, err);
    free(s);
    return st;
}

static cedar_corpus *parse(const char *text) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    ck_assert_msg(parse_as(text, "test.jsonl", true, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

static cedar_corpus *load(const char *path) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .strict = true };
    ck_assert_msg(cedar_corpus_load(&path, 1, &opts, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

static cedar_trace_stats stats_of(const cedar_trace *t) {
    cedar_trace_stats s;
    cedar_err err = { 0 };
    ck_assert_msg(cedar_trace_stats_make(t, &s, &err) == CEDAR_OK, "%s", err.msg);
    return s;
}

static const cedar_turn *turn(const cedar_corpus *c, uint32_t stream, uint32_t k) {
    ck_assert_uint_lt(stream, c->traces[0].stream_count);
    ck_assert_uint_lt(k, c->traces[0].streams[stream].turn_count);
    return &c->traces[0].streams[stream].turns[k];
}

/* A request with in = 128 and two ids; the fixtures that need more write it out. */
#define REQ(t, rest) "{'t':" t ",'type':'n','model':'m','in':128,'out':7,'hash_ids':[1,2]" rest "}"
#define SUB(t, id, list) "{'t':" t ",'type':'subagent','agent_id':'" id "','requests':[" list "]}"
#define TRACE(list) "{'id':'x','block_size':64,'hash_id_scope':'local','requests':[" list "]}"

/* --- golden statistics ------------------------------------------------------------------------------------------- */

static const cedar_trace *find_trace(const cedar_corpus *c, const char *id) {
    for (uint32_t i = 0; i < c->trace_count; i++)
        if (!strcmp(c->traces[i].id, id)) return &c->traces[i];
    return NULL;
}

static void check_row(const char *file, const cedar_trace *t, const char *wanted) {
    cedar_trace_stats s = stats_of(t);
    char *row = NULL;
    ck_assert_int_eq(cedar_trace_stats_row(file, &s, &row, NULL), CEDAR_OK);
    ck_assert_str_eq(row, wanted);
    cedar_free(row);
    cedar_trace_stats_free(&s);
}

START_TEST(golden_rows) {
    FILE *f = fopen("traces/STATS_weka.csv", "r");
    ck_assert_ptr_nonnull(f);
    char line[4096], path[512];
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    line[strcspn(line, "\r\n")] = 0;
    ck_assert_str_eq(cedar_trace_stats_header(), line);
    cedar_corpus *c48 = load("traces/kv-cache-tester/corpus48.jsonl.gz");
    int compared = 0, absent = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        char file[256];
        snprintf(file, sizeof file, "%.*s", (int)strcspn(line, ","), line);
        snprintf(path, sizeof path, "traces/%s", file);
        if (!strncmp(file, "corpus48#", 9)) {
            const cedar_trace *t = find_trace(c48, file + 9);
            ck_assert_ptr_nonnull(t);
            check_row(file, t, line);
            compared++;
        } else if (access(path, R_OK)) {
            absent++;
        } else {
            cedar_corpus *c = load(path);
            ck_assert_uint_eq(c->trace_count, 1);
            check_row(file, &c->traces[0], line);
            cedar_corpus_free(c);
            compared++;
        }
    }
    fclose(f);
    cedar_corpus_free(c48);
    ck_assert_int_eq(compared, 62);
    ck_assert_int_eq(absent, 3); /* neon 0080, 0332, 0471 are in the table only */
}
END_TEST

START_TEST(corpus48_sums) {
    cedar_corpus *c = load("traces/kv-cache-tester/corpus48.jsonl.gz");
    cedar_corpus_stats s;
    ck_assert_int_eq(cedar_corpus_stats_make(c, &s, NULL), CEDAR_OK);
    ck_assert_uint_eq(s.traces, 48);
    ck_assert_uint_eq(s.requests, 2107);
    ck_assert_uint_eq(s.isl_sum, 211076719);
    ck_assert_uint_eq(s.osl_sum, 878464);
    ck_assert_double_eq_tol(s.hit_rate, 0.95495, 5e-6);
    ck_assert_uint_eq(c->skipped, 0);
    ck_assert_uint_eq(c->bytes_read, 15097895);
    /* sha256sum of the file as it lies on disk */
    ck_assert_str_eq(c->hash, "f16a6b558b475501ea888a542969801c079d52e00f7fd9927eb26ec72318446e");
    cedar_corpus_free(c);
}
END_TEST

static void check_mooncake(const char *path, uint64_t isl, uint64_t osl, uint64_t blocks, uint64_t hits) {
    cedar_corpus *c = load(path);
    cedar_corpus_stats s;
    ck_assert_int_eq(cedar_corpus_stats_make(c, &s, NULL), CEDAR_OK);
    ck_assert_uint_eq(s.traces, 600);
    ck_assert_uint_eq(s.requests, 600);
    ck_assert_uint_eq(s.isl_sum, isl);
    ck_assert_uint_eq(s.osl_sum, osl);
    ck_assert_uint_eq(s.blocks_total, blocks);
    ck_assert_uint_eq(s.blocks_hit_seen, hits);
    ck_assert_double_eq_tol(s.hit_rate, (double)hits / (double)blocks, 1e-15);
    cedar_corpus_free(c);
}

/* Sums of a script that reads the rows in file order (they are sorted by time) with one set of seen ids. */
START_TEST(mooncake_samples) {
    check_mooncake("traces/mooncake/conversation_trace.first600.jsonl", 8293542, 214274, 16495, 2783);
    check_mooncake("traces/mooncake/synthetic_trace.first600.jsonl", 7414999, 118142, 14873, 1644);
}
END_TEST

/* Both files number their blocks from 0; together they must not share: 2783 + 1644 hits. */
START_TEST(mooncake_files_do_not_share) {
    cedar_corpus *c = load("traces/mooncake");
    cedar_corpus_stats s;
    ck_assert_int_eq(cedar_corpus_stats_make(c, &s, NULL), CEDAR_OK);
    ck_assert_uint_eq(s.traces, 1200);
    ck_assert_uint_eq(s.blocks_hit_seen, 4427);
    ck_assert_str_eq(c->traces[0].file, "traces/mooncake/conversation_trace.first600.jsonl");
    ck_assert_str_eq(c->traces[0].id, "conversation_trace:1");
    ck_assert_str_eq(c->traces[600].id, "synthetic_trace:1");
    ck_assert_uint_ne(c->traces[0].id_space, c->traces[600].id_space);
    ck_assert_uint_eq(c->traces[0].block_tokens, 512);
    cedar_corpus_free(c);
}
END_TEST

/* The example of the format page, worked by hand. */
#define DEMO \
    "{'id':'demo','models':['m'],'block_size':64,'hash_id_scope':'local','tool_tokens':100,'system_tokens':28," \
    "'requests':[" \
    "{'t':0.0,'type':'s','model':'m','in':200,'out':70,'hash_ids':[1,2,3],'input_types':['text']," \
    "'output_types':['tool_use'],'stop':'tool_use','api_time':2.0,'ttft':0.5,'think_time':0.0}," \
    "{'t':3.0,'type':'subagent','agent_id':'agent_001','subagent_type':'Explore','duration_ms':4000," \
    "'total_tokens':150,'tool_use_count':1,'status':'completed','tool_tokens':64,'system_tokens':0,'models':['m']," \
    "'requests':[{'t':0.0,'type':'n','model':'m','in':130,'out':20,'hash_ids':[9,10],'input_types':['text']," \
    "'output_types':['text'],'stop':'end_turn','api_time':4.0,'think_time':0.0}]}," \
    "{'t':8.0,'type':'s','model':'m','in':330,'out':10,'hash_ids':[1,2,3,4,5],'input_types':['tool_result']," \
    "'output_types':['text'],'stop':'end_turn','api_time':1.0,'think_time':6.0}]}"

START_TEST(demo_by_hand) {
    cedar_corpus *c = parse(DEMO);
    const cedar_trace *t = &c->traces[0];
    ck_assert_str_eq(t->id, "demo");
    ck_assert_uint_eq(t->model_count, 1);
    ck_assert_str_eq(t->models[0], "m");
    ck_assert(!t->ids_global);
    ck_assert_uint_eq(t->stream_count, 2);
    ck_assert_uint_eq(t->streams[0].system_tokens, 128);
    ck_assert_int_eq(turn(c, 0, 0)->ttft_ns, 500 * MS_NS);
    ck_assert_int_eq(turn(c, 0, 1)->ttft_ns, -1);
    ck_assert_int_eq(turn(c, 0, 1)->think_ns, 6 * S_NS);
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 6 * S_NS); /* 8 - (0 + 2) */
    const cedar_stream *s = &t->streams[1];
    ck_assert_str_eq(s->id, "agent_001");
    ck_assert_int_eq(s->start_ns, 3 * S_NS); /* 0.0 is below the marker's 3.0: relative */
    ck_assert(s->t_relative);
    ck_assert_int_eq(s->end_ns, 7 * S_NS);
    ck_assert_int_eq(s->spawn_turn, 0);
    ck_assert_int_eq(s->join_turn, 1);
    ck_assert_int_eq(s->spawn_offset_ns, S_NS); /* 3 - (0 + 2) */
    ck_assert_uint_eq(s->system_tokens, 64);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 0), turn(c, 0, 1)), 3);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 0), turn(c, 1, 0)), 0);
    check_row("demo,1", t, "\"demo,1\",3,2,1,660,100,200.0,330,20.0,0,10,3,3,0.3,6.0,6.0,0,6.0,0,0.0,8.0,2.0,6.0,3,0,"
                           "\"agent_001:0->1(1req,end 7.0)\"");
    cedar_corpus_free(c);
}
END_TEST

/* Waits 1, 2, 3, 4 s: median 2.5, 90th percentile between the 3rd and 4th at 0.9 * 3 = 2.7, so 3.7. */
START_TEST(percentiles_by_hand) {
    cedar_corpus *c = parse(TRACE(REQ("0", "") "," REQ("1", "") "," REQ("3", "") "," REQ("6", "") "," REQ("10", "")));
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_double_eq(s.delay_p50_s, 2.5);
    ck_assert_double_eq_tol(s.delay_p90_s, 3.7, 1e-12);
    ck_assert_double_eq(s.delay_sum_s, 10);
    ck_assert_double_eq(s.tstar_lo, 2.5);
    ck_assert_double_eq(s.tstar_hi, 7.5);
    ck_assert_uint_eq(s.no_api, 5);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(one_request) {
    cedar_corpus *c = parse(TRACE("{'t':5.25,'in':10,'out':0,'hash_ids':[]}"));
    check_row("a\"b", &c->traces[0], "\"a\"\"b\",1,1,0,10,0,10.0,10,0.0,1,0,0,0,0.0,0.0,0.0,0,0.0,0,"
                                     "5.25,5.25,5.25,5.25,1,1,");
    cedar_corpus_free(c);
}
END_TEST

/* --- oddities ---------------------------------------------------------------------------------------------------- */

static uint32_t found(const cedar_corpus *c, cedar_oddity kind) {
    cedar_trace_check k;
    cedar_trace_check_make(&c->traces[0], &k);
    return k.found[kind];
}

/* in = 64 n, 64 n + 1, 64 n - 1, each with floor and ceil ids: all accepted, told apart, ids and `in` untouched. */
START_TEST(id_counts) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':128,'out':1,'hash_ids':[1,2]},{'t':1,'in':129,'out':1,'hash_ids':[1,2]},"
                                  "{'t':2,'in':129,'out':1,'hash_ids':[1,2,3]},{'t':3,'in':127,'out':1,'hash_ids':[1]},"
                                  "{'t':4,'in':127,'out':1,'hash_ids':[1,2]},{'t':5,'in':8,'out':1,'hash_ids':[7,8,9]},"
                                  "{'t':6,'in':640,'out':1,'hash_ids':[7]}"));
    static const uint32_t in[] = { 128, 129, 129, 127, 127, 8, 640 }, blocks[] = { 2, 2, 3, 1, 2, 3, 1 };
    for (uint32_t k = 0; k < 7; k++) {
        ck_assert_uint_eq(turn(c, 0, k)->in_tokens, in[k]);
        ck_assert_uint_eq(turn(c, 0, k)->block_count, blocks[k]);
    }
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_IDS_NEITHER), 2);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_IDS_CEIL), 2);
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.len_floor, 3);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(zero_tokens) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':0,'out':0,'hash_ids':[]},{'t':1,'in':0,'out':3,'hash_ids':[4]}"));
    ck_assert_uint_eq(turn(c, 0, 0)->in_tokens, 1);
    ck_assert_uint_eq(turn(c, 0, 0)->in_recorded, 0);
    ck_assert_uint_eq(turn(c, 0, 0)->out_tokens, 0);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_IN_ZERO), 2);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_OUT_ZERO), 1);
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.isl_sum, 0);
    ck_assert_uint_eq(s.osl_zero, 1);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(missing_times) {
    cedar_corpus *c = parse(TRACE(REQ("0", ",'api_time':1.5,'think_time':0") "," REQ("4", ",'api_time':null") ","
                                  REQ("10", "")));
    ck_assert(turn(c, 0, 0)->has_api && turn(c, 0, 0)->has_think);
    ck_assert(!turn(c, 0, 1)->has_api && !turn(c, 0, 1)->has_think);
    ck_assert_int_eq(turn(c, 0, 0)->think_ns, 0);
    ck_assert_int_eq(turn(c, 0, 1)->think_ns, -1);
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 2500 * MS_NS);
    ck_assert_int_eq(turn(c, 0, 2)->delay_ns, 6 * S_NS); /* missing api_time counts as 0 */
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_NO_API), 2);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_NO_THINK), 2);
    cedar_corpus_free(c);
    c = parse(TRACE(REQ("0", ",'think_time':-0.25")));
    ck_assert(turn(c, 0, 0)->has_think && turn(c, 0, 0)->think_ns == 0);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(overlap) {
    cedar_corpus *c = parse(TRACE(REQ("0", ",'api_time':5") "," REQ("3", ",'api_time':1") "," REQ("4", "")));
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 0); /* back to back, never negative */
    ck_assert_int_eq(turn(c, 0, 2)->delay_ns, 0); /* exactly at the end: no overlap */
    ck_assert_int_eq(c->traces[0].streams[0].end_ns, 5 * S_NS);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_OVERLAP), 1);
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.overlap_pairs, 1);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* Compaction: the recorded prompt counts, not a running sum; the cut of the prefix shows. */
START_TEST(context_shrink) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':320,'out':9,'hash_ids':[1,2,3,4,5]},{'t':1,'in':130,'out':9,"
                                  "'hash_ids':[1,8]},{'t':2,'in':192,'out':9,'hash_ids':[1,7,6]}"));
    ck_assert_uint_eq(turn(c, 0, 1)->in_tokens, 130);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_SHRINK), 1);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_PREFIX_CUT), 1); /* 5 to 1 blocks; losing only the last is no cut */
    cedar_corpus_free(c);
}
END_TEST

START_TEST(models) {
    cedar_corpus *c = parse("{'id':'x','models':['b'],'requests':[{'t':0,'model':'b','in':1,'out':1,'hash_ids':[]},"
                            "{'t':1,'model':'a','in':1,'out':1,'hash_ids':[]},{'t':2,'in':1,'out':1,'hash_ids':[]}]}");
    ck_assert_uint_eq(c->traces[0].model_count, 2); /* one of them is not in the list of the session */
    ck_assert_int_eq(turn(c, 0, 0)->model, 0);
    ck_assert_int_eq(turn(c, 0, 1)->model, 1);
    ck_assert_int_eq(turn(c, 0, 2)->model, -1);
    ck_assert_str_eq(c->traces[0].models[1], "a");
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_MODELS), 1);
    cedar_corpus_free(c);
}
END_TEST

/* Ids equal modulo 2^32 are different blocks; 2^63 - 1 is the largest. */
START_TEST(wide_ids) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':128,'out':1,'hash_ids':[5,9223372036854775807]},"
                                  "{'t':1,'in':128,'out':1,'hash_ids':[4294967301,9223372036854775807]}"));
    ck_assert_int_eq(turn(c, 0, 0)->block_ids[1], INT64_MAX);
    ck_assert_int_eq(turn(c, 0, 1)->block_ids[0], 4294967301ll);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 0), turn(c, 0, 1)), 0);
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.blocks_hit_seen, 1);
    ck_assert_uint_eq(s.blocks_hit_prefix, 0);
    cedar_trace_stats_free(&s);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_IDS_WIDE), 2);
    cedar_corpus_free(c);
}
END_TEST

/* A block that comes twice in one request is not a hit: hits are counted before the request's ids go in. */
START_TEST(repeated_id) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':128,'out':1,'hash_ids':[5,5]},"
                                  "{'t':1,'in':128,'out':1,'hash_ids':[5,5]}"));
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.blocks_hit_seen, 2);
    ck_assert_uint_eq(s.blocks_hit_prefix, 2);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(fields_any_order) {
    cedar_corpus *c = parse("{'requests':[{'hash_ids':[1,2],'new':{'hash_ids':[3],'a':[{}]},'out':7,'in':128,'t':2}],"
                            "'totals':{'x':1},'later':'hash_ids','id':'x'}");
    ck_assert_uint_eq(turn(c, 0, 0)->block_count, 2);
    ck_assert_int_eq(turn(c, 0, 0)->block_ids[0], 1);
    ck_assert_uint_eq(c->traces[0].block_tokens, 64);
    cedar_corpus_free(c);
}
END_TEST

/* Documents that the scanner leaves to the parser give the same ids. */
START_TEST(ids_by_the_parser) {
    cedar_corpus *c = parse("{'id':'\\u0078','requests':[{'t':0,'in':1,'out':1,'hash_ids':[ 0 ,\t7]},"
                            "{'t':0,'in':1,'out':1,'hash\\u005fids':[3]}]}");
    ck_assert_str_eq(c->traces[0].id, "x");
    ck_assert_uint_eq(turn(c, 0, 0)->block_count, 2);
    ck_assert_int_eq(turn(c, 0, 0)->block_ids[1], 7);
    ck_assert_int_eq(turn(c, 0, 1)->block_ids[0], 3);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(idle) {
    cedar_corpus *c = parse(TRACE(REQ("0", "") "," REQ("300", "") "," REQ("600.001", "")));
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_IDLE), 1); /* exactly 300 s is not over */
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.delay_over_300, 1);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* Decimals of a second become exact nanoseconds, far from the start too. */
START_TEST(time_digits) {
    cedar_corpus *c = parse(TRACE(REQ("0.000000001", "") "," REQ("0.7", "") "," REQ("440412.123", "") ","
                                  REQ("1700000000.25", "")));
    ck_assert_int_eq(turn(c, 0, 0)->t_ns, 1);
    ck_assert_int_eq(turn(c, 0, 1)->t_ns, 700000000);
    ck_assert_int_eq(turn(c, 0, 2)->t_ns, 440412123000000ll);
    ck_assert_int_eq(turn(c, 0, 3)->t_ns, 1700000000250000000ll);
    cedar_corpus_free(c);
}
END_TEST

/* --- subagents --------------------------------------------------------------------------------------------------- */

START_TEST(subagent_times) {
    cedar_corpus *c = parse(TRACE(REQ("0", ",'api_time':1") "," SUB("10", "rel", REQ("0.5", "") "," REQ("2", "")) ","
                                  SUB("10", "abs", REQ("10", "") "," REQ("12", "")) "," REQ("20", "")));
    ck_assert_int_eq(turn(c, 1, 0)->t_ns, 10500 * MS_NS);
    ck_assert_int_eq(turn(c, 1, 1)->t_ns, 12 * S_NS);
    ck_assert_int_eq(turn(c, 2, 0)->t_ns, 10 * S_NS);
    ck_assert_int_eq(turn(c, 2, 1)->t_ns, 12 * S_NS);
    ck_assert(c->traces[0].streams[1].t_relative && !c->traces[0].streams[2].t_relative);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_RELATIVE), 1);
    cedar_corpus_free(c);
}
END_TEST

/* Two subagents that overlap in the recording keep their own start offsets. */
START_TEST(subagents_overlap) {
    cedar_corpus *c = parse(TRACE(REQ("0", ",'api_time':2") "," SUB("3", "a", REQ("3", ",'api_time':5")) ","
                                  SUB("4", "b", REQ("4", ",'api_time':5")) "," REQ("10", "")));
    const cedar_stream *s = c->traces[0].streams;
    ck_assert_int_eq(s[1].spawn_offset_ns, S_NS);
    ck_assert_int_eq(s[2].spawn_offset_ns, 2 * S_NS);
    ck_assert(s[1].join_turn == 1 && s[2].join_turn == 1);
    ck_assert_int_eq(s[2].turns[0].delay_ns, 0);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(join_rules) {
    /* ends: 8 s (joined by the turn at 8), 8.0000009 (the same, within 1e-6 s), 8.000002 (the next), 99 (none) */
    cedar_corpus *c = parse(TRACE(REQ("0", "") "," SUB("1", "a", REQ("1", ",'api_time':7")) ","
                                  SUB("1", "b", REQ("1", ",'api_time':7.0000009")) ","
                                  SUB("1", "c", REQ("1", ",'api_time':7.000002")) ","
                                  SUB("1", "d", REQ("1", ",'api_time':98")) "," REQ("8", "") "," REQ("9", "")));
    const cedar_stream *s = c->traces[0].streams;
    ck_assert_int_eq(s[1].join_turn, 1);
    ck_assert_int_eq(s[2].join_turn, 1);
    ck_assert_int_eq(s[3].join_turn, 2);
    ck_assert_int_eq(s[4].join_turn, -1);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_BACKGROUND), 1);
    cedar_corpus_free(c);
}
END_TEST

/* The join lies behind the spawn even when the subagent ends before the spawn turn starts. */
START_TEST(join_is_later) {
    cedar_corpus *c = parse(TRACE(REQ("0", "") "," REQ("50", ",'api_time':9") "," SUB("5", "a", REQ("5", "")) ","
                                  REQ("60", "")));
    const cedar_stream *s = &c->traces[0].streams[1];
    ck_assert_int_eq(s->spawn_turn, 1);
    ck_assert_int_eq(s->join_turn, 2);
    ck_assert_int_eq(s->spawn_offset_ns, 0);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(subagents_left_out) {
    cedar_corpus *c = parse(TRACE(SUB("0", "early", REQ("0", "")) "," REQ("1", "") "," SUB("2", "empty", "") ","
                                  SUB("2", "kept", REQ("2", ""))));
    ck_assert_uint_eq(c->traces[0].stream_count, 2);
    ck_assert_str_eq(c->traces[0].streams[1].id, "kept");
    ck_assert_uint_eq(c->traces[0].dropped_streams, 1);
    ck_assert_uint_eq(c->traces[0].empty_streams, 1);
    cedar_trace_check k;
    cedar_trace_check_make(&c->traces[0], &k);
    ck_assert_uint_eq(k.of[CEDAR_ODDITY_NO_SPAWN], 3);
    cedar_corpus_free(c);
}
END_TEST

/* Streams with prefixes of their own, interleaved in time: each keeps its context. The walk goes by time over all
 * streams with one set, so that the second stream's first request hits what the root has shown before it. */
START_TEST(streams_interleaved) {
    cedar_corpus *c = parse(TRACE(
        "{'t':0,'in':128,'out':1,'hash_ids':[1,2]},"
        "{'t':1,'type':'subagent','agent_id':'a','requests':[{'t':1,'in':128,'out':1,'hash_ids':[1,9]},"
        "{'t':3,'in':192,'out':1,'hash_ids':[1,9,10]}]},"
        "{'t':2,'in':192,'out':1,'hash_ids':[1,2,3]},{'t':4,'in':256,'out':1,'hash_ids':[1,2,3,4]}"));
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.blocks_total, 14);
    ck_assert_uint_eq(s.blocks_hit_seen, 8); /* 0 + 1 + 2 + 2 + 3 */
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_PREFIX_CUT), 0);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* Relative times are added in doubles, as the script behind the table does: 10.28 + 0.001 is 10.280999999999999, and a
 * quarter of it prints as 2.5702, where a quarter of 10.281 would print as 2.5703. In nanoseconds the sum is exact. */
START_TEST(relative_times_round) {
    cedar_corpus *c = parse(TRACE(REQ("0", "") "," SUB("10.28", "a", REQ("0.001", ""))));
    cedar_trace_stats s = stats_of(&c->traces[0]);
    char *row = NULL;
    ck_assert_int_eq(turn(c, 1, 0)->t_ns, 10281 * MS_NS);
    ck_assert_int_eq(cedar_trace_stats_row("x", &s, &row, NULL), CEDAR_OK);
    ck_assert_ptr_nonnull(strstr(row, ",0.0,10.281,2.5702,7.7107,2,2,"));
    cedar_free(row);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* The walk goes by time, not by place in the file: the subagent's request comes last, so that block 7 is not yet there
 * for the root's second request. By place its prefix would count 2 hits. */
START_TEST(walk_by_time) {
    cedar_corpus *c = parse(TRACE("{'t':0,'in':128,'out':1,'hash_ids':[1,2]},"
                                  "{'t':20,'type':'subagent','agent_id':'a','requests':[{'t':20,'in':64,'out':1,"
                                  "'hash_ids':[7]}]},{'t':10,'in':128,'out':1,'hash_ids':[7,2]}"));
    cedar_trace_stats s = stats_of(&c->traces[0]);
    ck_assert_uint_eq(s.blocks_hit_seen, 2);
    ck_assert_uint_eq(s.blocks_hit_prefix, 1);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* --- Mooncake ---------------------------------------------------------------------------------------------------- */

#define ROW(ts, in, ids, rest) "{'timestamp':" ts ",'input_length':" in ",'output_length':4,'hash_ids':" ids rest "}\n"

START_TEST(mooncake_rows) {
    cedar_corpus *c = parse(ROW("0", "512", "[0]", "") ROW("3000", "1100", "[0,2,3]", ",'other':[1]"));
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_str_eq(c->traces[1].id, "test:2");
    ck_assert_int_eq(c->traces[1].line, 2);
    ck_assert_int_eq(c->traces[1].streams[0].turns[0].t_ns, 3 * S_NS); /* milliseconds */
    ck_assert_int_eq(c->traces[1].streams[0].turns[0].delay_ns, 0);
    ck_assert(c->traces[1].ids_global);
    ck_assert_uint_eq(c->traces[0].id_space, c->traces[1].id_space);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(mooncake_sessions) {
    cedar_corpus *c = parse(ROW("100", "512", "[0]", ",'session_id':'b'") ROW("100", "512", "[9]", "")
                            ROW("200", "512", "[7]", ",'session_id':42")
                            "{'session_id':'b','delay':1500,'input_length':1024,'output_length':2,'hash_ids':[0,1]}\n"
                            ROW("5000", "1025", "[0,1,2]", ",'session_id':'b','delay':250.5"));
    ck_assert_uint_eq(c->trace_count, 3);
    ck_assert_str_eq(c->traces[0].id, "b"); /* in the order of first rows */
    ck_assert_str_eq(c->traces[1].id, "test:2");
    ck_assert_str_eq(c->traces[2].id, "42");
    const cedar_stream *s = &c->traces[0].streams[0];
    ck_assert_uint_eq(s->turn_count, 3);
    ck_assert_int_eq(s->turns[0].t_ns, 100 * MS_NS);
    ck_assert_int_eq(s->turns[1].t_ns, 1600 * MS_NS);
    ck_assert_int_eq(s->turns[1].delay_ns, 1500 * MS_NS);
    ck_assert_int_eq(s->turns[2].t_ns, 5 * S_NS);
    ck_assert_int_eq(s->turns[2].delay_ns, 250500000); /* a given delay wins over the difference of timestamps */
    cedar_trace_stats st = stats_of(&c->traces[0]);
    ck_assert_double_eq_tol(st.delay_sum_s, 1.7505, 1e-12);
    ck_assert_double_eq_tol(st.delay_p50_s, (1.5 + 0.2505) / 2, 1e-12);
    cedar_trace_stats_free(&st);
    cedar_corpus_free(c);
}
END_TEST

/* Rows without ids share nothing. */
START_TEST(mooncake_without_ids) {
    cedar_corpus *c = parse("{'timestamp':1,'input_length':700,'output_length':3}");
    ck_assert_uint_eq(turn(c, 0, 0)->block_count, 0);
    ck_assert_uint_eq(turn(c, 0, 0)->in_tokens, 700);
    cedar_corpus_free(c);
}
END_TEST

/* --- id spaces, files, limits ------------------------------------------------------------------------------------ */

START_TEST(global_and_local_ids) {
    const char *text = "{'id':'a','hash_id_scope':'%s','requests':[{'t':0,'in':64,'out':1,'hash_ids':[5]}]}\n"
                       "{'id':'b','hash_id_scope':'%s','requests':[{'t':0,'in':64,'out':1,'hash_ids':[5]}]}\n";
    for (int global = 0; global < 2; global++) {
        char buf[400];
        const char *scope = global ? "global" : "local";
        snprintf(buf, sizeof buf, text, scope, scope);
        cedar_corpus *c = parse(buf);
        cedar_corpus_stats s;
        ck_assert_int_eq(cedar_corpus_stats_make(c, &s, NULL), CEDAR_OK);
        ck_assert_uint_eq(s.blocks_hit_seen, (uint64_t)global);
        ck_assert(c->traces[1].ids_global == global);
        ck_assert((c->traces[0].id_space == c->traces[1].id_space) == global);
        cedar_corpus_free(c);
    }
}
END_TEST

static void write_file(const char *path, const char *text, bool gzip) {
    char *s = quoted(text);
    size_t n = strlen(s);
    if (gzip) {
        gzFile f = gzopen(path, "wb");
        ck_assert_int_eq(gzwrite(f, s, (unsigned)n), (int)n);
        gzclose(f);
    } else {
        FILE *f = fopen(path, "wb");
        ck_assert_uint_eq(fwrite(s, 1, n, f), n);
        fclose(f);
    }
    free(s);
}

/* All four kinds of names, in the order of names; other files and folders are passed over. */
START_TEST(directory) {
    char dir[] = "/tmp/cedar-traces-XXXXXX", path[4][80];
    static const char *const names[] = { "b.json", "a.jsonl.gz", "c.jsonl", "d.json.gz" };
    ck_assert_ptr_nonnull(mkdtemp(dir));
    for (int i = 0; i < 4; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", dir, names[i]);
        char text[200];
        snprintf(text, sizeof text, "{'id':'%c','requests':[%s]}\n", names[i][0], REQ("0", ""));
        write_file(path[i], text, strstr(names[i], ".gz"));
    }
    char other[80], slash[80];
    snprintf(other, sizeof other, "%s/README.md", dir);
    snprintf(slash, sizeof slash, "%s/", dir);
    write_file(other, "no trace", false);
    cedar_corpus *c = load(slash);
    ck_assert_uint_eq(c->trace_count, 4);
    for (uint32_t i = 0; i < 4; i++) ck_assert_int_eq(c->traces[i].id[0], 'a' + (int)i);
    ck_assert_str_eq(c->traces[1].file, path[0]);
    cedar_corpus_free(c);
    for (int i = 0; i < 4; i++) unlink(path[i]);
    cedar_corpus *none = NULL;
    cedar_err err = { 0 };
    const char *p = dir;
    ck_assert_int_eq(cedar_corpus_load(&p, 1, NULL, &none, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "no file here ends in .json"));
    unlink(other);
    rmdir(dir);
    ck_assert_int_eq(cedar_corpus_load(&p, 1, NULL, &none, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, dir));
}
END_TEST

/* Several gzip members one after the other are one file. */
START_TEST(gzip_members) {
    char path[] = "/tmp/cedar-traces-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    write_file(path, TRACE(REQ("0", "")) "\n", true);
    FILE *f = fopen(path, "rb");
    char bytes[400];
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    f = fopen(path, "ab");
    fwrite(bytes, 1, n, f);
    fclose(f);
    cedar_corpus *c = load(path);
    ck_assert_uint_eq(c->trace_count, 2);
    cedar_corpus_free(c);
    unlink(path);
}
END_TEST

START_TEST(line_ends) {
    cedar_corpus *c = parse("\xef\xbb\xbf\r\n" TRACE(REQ("0", "")) "\r\n\r\n" TRACE(REQ("1", "")) "  \r\n");
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_int_eq(c->traces[0].line, 2);
    ck_assert_int_eq(c->traces[1].line, 4);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(traces_max) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts opts = { .traces_max = 2 };
    const char *paths[] = { "traces/mooncake", "traces/kv-cache-tester" };
    ck_assert_int_eq(cedar_corpus_load(paths, 2, &opts, &c, NULL), CEDAR_OK);
    ck_assert_uint_eq(c->trace_count, 2);
    cedar_corpus_free(c);
    ck_assert_int_eq(cedar_corpus_load(paths + 1, 1, &opts, &c, NULL), CEDAR_OK);
    ck_assert_uint_eq(c->trace_count, 2);
    cedar_corpus_free(c);
}
END_TEST

/* A given format is believed, and its reader then says what is missing. */
START_TEST(given_format) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .format = CEDAR_TRACE_MOONCAKE };
    const char *path = "traces/kv-cache-tester/trace_0103.json";
    ck_assert_int_eq(cedar_corpus_load(&path, 1, &opts, &c, &err), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "traces/kv-cache-tester/trace_0103.json:1: \"input_length\" is missing");
}
END_TEST

START_TEST(no_paths) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_corpus_load(NULL, 0, NULL, &c, &err), CEDAR_E_ARG);
    cedar_corpus_free(NULL);
    cedar_trace_stats_free(NULL);
}
END_TEST

/* --- formats: names, goldens, units ------------------------------------------------------------------------------ */

START_TEST(format_names) {
    char list[300] = "";
    for (int i = 0; i < CEDAR_TRACE_FORMAT_COUNT; i++) {
        cedar_trace_format f = CEDAR_TRACE_AUTO;
        const char *name = cedar_trace_format_name((cedar_trace_format)i);
        ck_assert_int_eq(cedar_trace_format_find(name, &f, NULL), CEDAR_OK);
        ck_assert_int_eq((int)f, i);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "|" : "", name);
    }
    ck_assert_str_eq(list, CEDAR_TRACE_FORMAT_NAMES);
    cedar_err err = { 0 };
    cedar_trace_format f;
    ck_assert_int_eq(cedar_trace_format_find("csv", &f, &err), CEDAR_E_ARG);
    ck_assert_str_eq(err.msg, "\"csv\" is no trace format; known are " CEDAR_TRACE_FORMAT_NAMES);
}
END_TEST

/* Counted by a script over the sample files, which hashes nothing but compares prefixes of texts and token ids. */
START_TEST(sample_sums) {
    static const struct {
        const char *file;
        uint64_t traces, streams, requests, isl, osl, blocks, hits;
    } rows[] = {
        { "traces/azure/AzureLLMInferenceTrace_code.first2000.csv", 2000, 2000, 2000, 3973157, 59024, 0, 0 },
        { "traces/azure/AzureLLMInferenceTrace_conv.first2000.csv", 2000, 2000, 2000, 2209565, 529807, 0, 0 },
        { "traces/tracelab/multi_session_large.csv", 48, 48, 303, 1150397, 58678, 71758, 55499 },
        { "traces/tracelab/session_workload_example.csv", 1, 1, 11, 535277, 24798, 33450, 29246 },
        { "traces/tracelab/sanitized_round_trace.jsonl", 2, 2, 19, 514012, 11335, 32117, 27424 },
        { "traces/llmservingsim/example_trace.jsonl", 10, 10, 10, 120, 591, 3, 0 },
        { "traces/otel-inference-perf/fan_in_dependencies.json", 1, 3, 4, 217, 241, 11, 0 },
        { "traces/otel-inference-perf/parallel_requests.json", 1, 2, 5, 441, 203, 25, 12 },
        { "traces/otel-inference-perf/prefix_sharing_example.json", 1, 4, 7, 1065, 280, 24, 13 },
        { "traces/otel-inference-perf/simple_chain.json", 1, 1, 3, 187, 133, 10, 3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cedar_corpus *c = load(rows[i].file);
        cedar_corpus_stats s;
        ck_assert_int_eq(cedar_corpus_stats_make(c, &s, NULL), CEDAR_OK);
        ck_assert_uint_eq(s.traces, rows[i].traces);
        ck_assert_uint_eq(s.streams, rows[i].streams);
        ck_assert_uint_eq(s.requests, rows[i].requests);
        ck_assert_uint_eq(s.isl_sum, rows[i].isl);
        ck_assert_uint_eq(s.osl_sum, rows[i].osl);
        ck_assert_uint_eq(s.blocks_total, rows[i].blocks);
        ck_assert_uint_eq(s.blocks_hit_seen, rows[i].hits);
        cedar_corpus_free(c);
    }
}
END_TEST

static cedar_status parse_opts(const char *text, const char *name, const cedar_corpus_opts *opts, cedar_corpus **out,
                               cedar_err *err) {
    char *s = quoted(text);
    cedar_status st = cedar_corpus_parse(s, strlen(s), name, opts, out, err);
    free(s);
    return st;
}

static cedar_corpus *parse_format(const char *text, const char *name, cedar_trace_format format) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .strict = true, .format = format };
    ck_assert_msg(parse_opts(text, name, &opts, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

static cedar_corpus *table(const char *text) {
    return parse_format(text, "test.csv", CEDAR_TRACE_AUTO);
}

#define BLIS_COLUMNS "request_id,session_id,round_index,input_tokens,output_tokens,arrival_time_us," \
    "first_chunk_time_us," \
                     "last_chunk_time_us,think_time_us\n"
#define OTEL_SPAN(id, from, to, rest) \
    "{'span_id':'" id "','start_time':'2026-02-25T10:00:" from "','end_time':'2026-02-25T10:00:" to \
    "','attributes':{'gen_ai.usage.completion_tokens':5" rest "}}"
#define OTEL(list) "{'trace_id':'x','spans':[" list "]}"
#define USAGE ",'gen_ai.usage.prompt_tokens':40"

/* The same two requests, 1.5 s and 2.25 s apart from the start of time, in every format: one wrong unit and a time is
 * off by a thousand. */
START_TEST(units) {
    static const struct { const char *text, *name; cedar_trace_format format; int64_t first_ns; } rows[] = {
        { TRACE(REQ("1.5", "") "," REQ("2.25", "")), "a.jsonl", CEDAR_TRACE_WEKA, 1500 * MS_NS },
        { "{'session_id':1,'timestamp':1500,'input_length':9,'output_length':1}\n"
          "{'session_id':1,'timestamp':2250,'input_length':9,'output_length':1}", "a.jsonl", CEDAR_TRACE_MOONCAKE,
          1500 * MS_NS },
        { "{'session_id':'a','turns':[{'text':'x','timestamp':1500},{'text':'y','delay':750}]}", "a.jsonl",
          CEDAR_TRACE_AIPERF, 1500 * MS_NS },
        { "{'session_id':'s','arrival_time_ns':1500000000,'sub_requests':[{'input_toks':9,'output_toks':1,"
          "'tool_duration_ns':750000000},{'input_toks':9,'output_toks':1}]}", "a.jsonl", CEDAR_TRACE_LLMSERVINGSIM,
          1500 * MS_NS },
        { "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
          "7,1500,0,0,500,60,750\n7,1500,1,560,90,30,0\n", "a.csv", CEDAR_TRACE_TRACELAB_CSV, 1500 * MS_NS },
        { BLIS_COLUMNS "0,s,0,9,1,1500000,0,0,0\n1,s,1,9,1,2250000,0,0,0\n", "a.csv", CEDAR_TRACE_BLIS, 1500 * MS_NS },
        { "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type,Session ID\n"
          "1.5,m,9,1,10,x,s\n2.25,m,9,1,10,x,s\n", "a.csv", CEDAR_TRACE_BURSTGPT, 1500 * MS_NS },
        /* From here on times count from the first request. */
        { OTEL(OTEL_SPAN("a", "01.500000", "01.500000", USAGE ",'gen_ai.output.text':'q'") ","
               OTEL_SPAN("b", "02.250000Z", "02.25Z", ",'gen_ai.input.messages':[{'role':'assistant','content':'q'}]")),
          "a.json", CEDAR_TRACE_OTEL, 0 },
        { "{'session_id':'s','round_index':0,'input_tokens_total':9,'prefix_tokens':0,'output_tokens':1,"
         "'timing_events':"
          "[{'event_type':'user_message','timestamp':'2026-06-01T05:40:20.500Z'}]}\n"
          "{'session_id':'s','round_index':1,'input_tokens_total':9,'prefix_tokens':0,'output_tokens':1,"
              "'timing_events':"
          "[{'event_type':'user_message','timestamp':'2026-06-01T05:40:21.250Z'}]}", "a.jsonl", CEDAR_TRACE_TRACELAB,
          0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int given = 0; given < 2; given++) {
            cedar_corpus *c = parse_format(rows[i].text, rows[i].name, given ? rows[i].format : CEDAR_TRACE_AUTO);
            ck_assert_uint_eq(c->trace_count, 1);
            ck_assert_uint_eq(c->traces[0].streams[0].turn_count, 2);
            ck_assert_int_eq(turn(c, 0, 0)->t_ns, rows[i].first_ns);
            ck_assert_int_eq(turn(c, 0, 1)->t_ns, rows[i].first_ns + 750 * MS_NS);
            ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 750 * MS_NS);
            cedar_corpus_free(c);
        }
    }
}
END_TEST

/* Flat rows are sessions of their own; the one without sessions cannot be in the table above. */
START_TEST(units_flat) {
    cedar_corpus *c = table("output_length,timestamp,input_length\n1,1.5,9\n2,2.25,8\n");
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_str_eq(c->traces[1].id, "test:3");
    ck_assert_int_eq(c->traces[1].streams[0].turns[0].t_ns, 2250 * MS_NS);
    cedar_corpus_free(c);
    /* The same fields as JSON are Mooncake rows in milliseconds, unless the format is given. */
    static const char text[] = "{'timestamp':2.25,'input_length':8,'output_length':2}";
    c = parse_format(text, "a.jsonl", CEDAR_TRACE_AUTO);
    ck_assert_int_eq(turn(c, 0, 0)->t_ns, 2250000);
    cedar_corpus_free(c);
    c = parse_format(text, "a.jsonl", CEDAR_TRACE_TIMED);
    ck_assert_int_eq(turn(c, 0, 0)->t_ns, 2250 * MS_NS);
    cedar_corpus_free(c);
    /* Seven decimals, over midnight and the end of February in a leap year. */
    c = table("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 23:59:59.9999999,5,1\n"
              "2024-03-01 00:00:01.0000001,6,2\n");
    ck_assert_int_eq(c->traces[0].streams[0].turns[0].t_ns, 0);
    ck_assert_int_eq(c->traces[1].streams[0].turns[0].t_ns, 1000000200);
    cedar_corpus_free(c);
    /* BLIS durations, from arrival: first chunk 0.2 s, last 1.25 s; a recorded wait wins over the times. */
    c = table(BLIS_COLUMNS "0,s,0,9,1,1000000,1200000,2250000,0\n1,s,1,9,1,4000000,0,0,500000\n");
    ck_assert_int_eq(turn(c, 0, 0)->ttft_ns, 200 * MS_NS);
    ck_assert_int_eq(turn(c, 0, 0)->api_ns, 1250 * MS_NS);
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 500 * MS_NS);
    ck_assert_int_eq(turn(c, 0, 1)->ttft_ns, -1);
    ck_assert(!turn(c, 0, 1)->has_api);
    cedar_corpus_free(c);
    c = table("Timestamp,Request tokens,Response tokens,Elapsed time\n5,9,1,2.5\n");
    ck_assert_int_eq(turn(c, 0, 0)->api_ns, 2500 * MS_NS);
    cedar_corpus_free(c);
}
END_TEST

/* Second rounds of the sample: sent by the last tool result, 30.787 s after the first round was; the answer took
 * 13.924 s, its first event 12.731 s. */
START_TEST(tracelab_rounds) {
    cedar_corpus *c = load("traces/tracelab/sanitized_round_trace.jsonl");
    const cedar_turn *t = turn(c, 0, 1);
    ck_assert_int_eq(t->t_ns - turn(c, 0, 0)->t_ns, 30787 * MS_NS);
    ck_assert_int_eq(t->api_ns, 13924 * MS_NS);
    ck_assert_int_eq(t->ttft_ns, 12731 * MS_NS);
    ck_assert_int_eq(t->delay_ns, 19291 * MS_NS);
    ck_assert_uint_eq(t->prefix_tokens, 29380);
    ck_assert_str_eq(c->traces[0].models[0], "claude-opus-4-8");
    ck_assert_int_eq(c->traces[1].streams[0].turns[0].t_ns, 0); /* the file's first round */
    int64_t sum = 0;
    for (uint32_t k = 0; k < 10; k++) sum += turn(c, 0, k)->delay_ns;
    ck_assert_int_eq(sum, 92455 * MS_NS);
    cedar_corpus_free(c);
}
END_TEST

/* Rows in any order; prefix 560 = 500 + 60 goes on after the answer; 96 tokens are kept of the next, and 0 of the
 * last. */
START_TEST(tracelab_prefixes) {
    cedar_corpus *c = table("id,prefix_len,round_idx,input_len,output_len,tool_wait_after_ms\n"
                            "b,0,0,32,1,0\na,96,2,64,5,9\na,0,0,500,60,100\na,560,1,90,30,20\na,0,3,64,1,0\n");
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_str_eq(c->traces[0].id, "b");
    const cedar_turn *t = c->traces[1].streams[0].turns;
    ck_assert_uint_eq(c->traces[1].block_tokens, 16);
    ck_assert_uint_eq(t[0].block_count, 31); /* 500 / 16 */
    ck_assert_uint_eq(t[1].in_tokens, 650);
    ck_assert_uint_eq(t[1].block_count, 40);
    ck_assert_uint_eq(cedar_turn_common_blocks(&t[0], &t[1]), 31);
    ck_assert_uint_eq(cedar_turn_common_blocks(&t[1], &t[2]), 6);
    ck_assert_uint_eq(cedar_turn_common_blocks(&t[0], &t[2]), 6);
    ck_assert_uint_eq(cedar_turn_common_blocks(&t[2], &t[3]), 0);
    ck_assert_int_eq(t[1].delay_ns, 100 * MS_NS);
    ck_assert_int_eq(t[2].delay_ns, 20 * MS_NS);
    ck_assert_int_eq(t[3].t_ns, 129 * MS_NS);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(csv_syntax) {
    cedar_corpus *c = table("\xef\xbb\xbf\"input_len\", Round_IDX ,other,\"session_id\",prefix_len,output_len\r\n\r\n"
                            "5,0,\"a \"\"b\"\", c\r\nd\",\"x,\"\"y\",0,3\r\n12.0,1,,\"x,\"\"y\",0,3");
    ck_assert_uint_eq(c->trace_count, 1);
    ck_assert_str_eq(c->traces[0].id, "x,\"y");
    ck_assert_int_eq(c->traces[0].line, 3);
    ck_assert_uint_eq(turn(c, 0, 0)->in_tokens, 5);
    ck_assert_uint_eq(turn(c, 0, 1)->in_tokens, 12);
    ck_assert_int_eq(turn(c, 0, 1)->t_ns, 0);
    cedar_corpus_free(c);
    /* A table under another name, when the format is given. */
    c = parse_format("timestamp,input_length,output_length\n1e-3,5,1\n", "rows.txt", CEDAR_TRACE_TIMED);
    ck_assert_int_eq(turn(c, 0, 0)->t_ns, MS_NS);
    cedar_corpus_free(c);
}
END_TEST

/* A bad row costs itself, or its session. */
START_TEST(csv_lenient) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts opts = { 0 };
    ck_assert_int_eq(parse_opts("timestamp,input_length,output_length\n1,5,1\n2,x,1\n3,5\n4,6,1\n", "a.csv", &opts, &c,
                                NULL), CEDAR_OK);
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_uint_eq(c->skipped, 2);
    ck_assert_str_eq(c->skipped_first,
                     "a.csv:3: \"input_length\" is \"x\", allowed are whole numbers from 0 to 1073741824");
    cedar_corpus_free(c);
    ck_assert_int_eq(parse_opts("id,round_idx,prefix_len,input_len,output_len\na,0,0,5,1\nb,0,0,5,1\na,1,0,-5,1\n",
                                "a.csv", &opts, &c, NULL), CEDAR_OK);
    ck_assert_uint_eq(c->trace_count, 1);
    ck_assert_str_eq(c->traces[0].id, "b");
    ck_assert_uint_eq(c->skipped, 1);
    cedar_corpus_free(c);
}
END_TEST

/* "alpha" is 2 tokens, its answer of 70 unknown ones, "beta" 1; an empty text is 1 token. */
START_TEST(aiperf_by_hand) {
    cedar_corpus *c = parse("{'session_id':'a','turns':[{'role':'user','text':'alpha','max_tokens':70},"
                            "{'role':'user','text':'beta','delay':1500},{'texts':['',"
                                "{'contents':['\xc3\xa4\xc3\xb6x']}]}]}\n"
                            "{'text':'alpha'}");
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_uint_eq(turn(c, 0, 0)->in_tokens, 2);
    ck_assert_uint_eq(turn(c, 0, 0)->out_tokens, 70);
    ck_assert_uint_eq(turn(c, 0, 1)->in_tokens, 73);
    ck_assert_uint_eq(turn(c, 0, 2)->in_tokens, 73 + 1 + 2); /* 5 bytes of UTF-8 */
    ck_assert_uint_eq(turn(c, 0, 2)->block_count, 4);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 1), turn(c, 0, 2)), 4);
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, 1500 * MS_NS);
    ck_assert_str_eq(c->traces[1].id, "test:2");
    cedar_corpus_free(c);
}
END_TEST

#define TEXT64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" /* 16 tokens: one block */

/* Equal texts share across conversations and files; the same text from another speaker does not, nor do answers. */
START_TEST(aiperf_sharing) {
    cedar_corpus *c = parse("{'text':'" TEXT64 TEXT64 "'}\n{'text':'" TEXT64 "x'}\n{'text':'" TEXT64 "',"
                            "'role':'system'}\n"
                            "{'turns':[{'text':'" TEXT64 "','max_tokens':16},{'text':'z'}]}\n"
                            "{'turns':[{'text':'" TEXT64 "','max_tokens':16},{'text':'z'}]}");
    const cedar_turn *a = c->traces[0].streams[0].turns, *b = c->traces[1].streams[0].turns;
    ck_assert_uint_eq(a->block_count, 2);
    ck_assert_uint_eq(cedar_turn_common_blocks(a, b), 1);
    ck_assert_uint_eq(cedar_turn_common_blocks(a, c->traces[2].streams[0].turns), 0);
    ck_assert_uint_eq(c->traces[3].streams[0].turns[1].block_count, 2);
    ck_assert_uint_eq(cedar_turn_common_blocks(&c->traces[3].streams[0].turns[1],
                                               &c->traces[4].streams[0].turns[1]), 1);
    ck_assert_uint_eq(c->traces[0].id_space, c->traces[4].id_space);
    cedar_corpus_free(c);
}
END_TEST

/* Flat and agentic mixed; token ids share by prefix: 16 equal ones are one block. */
START_TEST(llmservingsim_mixed) {
    char ids[2][200], text[1200];
    for (int i = 0; i < 2; i++) {
        char *p = ids[i];
        for (int k = 0; k < 17; k++) p += sprintf(p, "%s%d", k ? "," : "", k < 16 ? k : 100 + i);
    }
    snprintf(text, sizeof text,
             "{'input_toks':17,'output_toks':3,'arrival_time_ns':5,'input_tok_ids':[%s]}\n"
             "{'session_id':'s0','arrival_time_ns':9,'sub_requests':[{'input_toks':17,'output_toks':4,"
             "'tool_duration_ns':120,'input_tok_ids':[%s],'output_tok_ids':[1,2,3,4]},"
             "{'input_toks':40,'output_toks':0,'tool_duration_ns':7,'hash_ids':[3,4],'block_size':16}]}", ids[0],
                 ids[1]);
    cedar_corpus *c = parse(text);
    ck_assert_uint_eq(c->trace_count, 2);
    ck_assert_str_eq(c->traces[0].id, "test:1");
    ck_assert_str_eq(c->traces[1].id, "s0");
    const cedar_turn *a = c->traces[0].streams[0].turns, *b = c->traces[1].streams[0].turns;
    ck_assert_uint_eq(cedar_turn_common_blocks(a, b), 1);
    ck_assert_int_eq(b[1].t_ns, 129);
    ck_assert_int_eq(b[1].delay_ns, 120);
    ck_assert_uint_eq(b[1].block_count, 2);
    ck_assert_uint_eq(b[1].out_tokens, 0);
    cedar_corpus_free(c);
}
END_TEST

/* An id names its block and all before it: the same text behind another one is another block. */
START_TEST(ids_are_chained) {
    cedar_corpus *c = parse("{'texts':['" TEXT64 "','" TEXT64 "']}\n{'texts':['x','" TEXT64 TEXT64 "']}\n"
                            "{'texts':['x123 67890123 5678 0123 567 90123 567 90123 567 90123 567 901234','"
                                TEXT64 "']}");
    const cedar_turn *a = c->traces[0].streams[0].turns, *b = c->traces[2].streams[0].turns;
    ck_assert(a->block_count == 2 && b->block_count == 2);
    ck_assert_int_ne(a->block_ids[0], b->block_ids[0]);
    ck_assert_int_ne(a->block_ids[1], b->block_ids[1]);
    cedar_corpus_free(c);
}
END_TEST

/* --- spans ------------------------------------------------------------------------------------------------------- */

#define SAYS(role, text) "{'role':'" role "','content':'" text "'}"
#define IN(list) ",'gen_ai.input.messages':[" list "]"
#define OUT(text) ",'gen_ai.output.text':'" text "'"

/* Two calls at once, then one that quotes the second, and one 40 s later that quotes nothing. */
START_TEST(otel_graph) {
    cedar_corpus *c = parse(OTEL(
        OTEL_SPAN("tool", "00.000000", "00.500000", "")                       /* no call of a model by itself */
        "," OTEL_SPAN("a", "01.000000", "02.000000", IN(SAYS("user", "q")) OUT("A"))
        "," OTEL_SPAN("b", "01.500000", "03.000000", IN(SAYS("user", "q")) OUT("B"))
        "," OTEL_SPAN("d", "45.000000", "46.000000", IN(SAYS("user", "other")))
        "," OTEL_SPAN("c", "04.000000", "05.000000", IN(SAYS("user", "q") "," SAYS("assistant", "B")))));
    const cedar_trace *t = &c->traces[0];
    ck_assert_uint_eq(t->stream_count, 3);
    ck_assert_uint_eq(t->streams[0].turn_count, 1);
    ck_assert_str_eq(t->streams[1].id, "b");
    ck_assert_uint_eq(t->streams[1].turn_count, 2);
    ck_assert_int_eq(t->streams[1].spawn_turn, -1); /* before any root turn had ended */
    ck_assert_int_eq(t->streams[1].spawn_offset_ns, 500 * MS_NS);
    ck_assert_int_eq(t->streams[1].turns[1].delay_ns, S_NS);
    ck_assert_int_eq(t->streams[2].spawn_turn, 0);
    ck_assert_int_eq(t->streams[2].spawn_offset_ns, 15 * S_NS); /* 43 s, capped */
    ck_assert_uint_eq(t->streams[1].turns[1].barrier_count, 1); /* after a, at a time */
    ck_assert_uint_eq(t->streams[1].turns[1].barriers[0].stream, 0);
    ck_assert_uint_eq(t->streams[2].turns[0].barrier_count, 1); /* c; a follows from it */
    ck_assert_uint_eq(t->streams[2].turns[0].barriers[0].stream, 1);
    ck_assert_uint_eq(t->streams[2].turns[0].barriers[0].turn, 1);
    cedar_corpus_free(c);
}
END_TEST

/* An answer that is quoted before it was complete is no edge: clocks of two machines differ. */
START_TEST(otel_quoted_too_early) {
    cedar_corpus *c = parse(OTEL(OTEL_SPAN("a", "00.000000", "02.000000", IN(SAYS("user", "q")) OUT("A")) ","
                                 OTEL_SPAN("b", "01.000000", "03.000000", IN(SAYS("assistant", "A")))));
    ck_assert_uint_eq(c->traces[0].stream_count, 2);
    cedar_corpus_free(c);
}
END_TEST

/* The sample: what features of three languages are is asked at 0 s, 2.5 s and 3 s; the comparison quotes all three. */
START_TEST(otel_fan_in) {
    cedar_corpus *c = load("traces/otel-inference-perf/fan_in_dependencies.json");
    const cedar_trace *t = &c->traces[0];
    ck_assert_str_eq(t->id, "test_trace_003");
    ck_assert_uint_eq(t->streams[0].turn_count, 2);
    for (uint32_t i = 1; i < 3; i++) {
        ck_assert_int_eq(t->streams[i].spawn_turn, 0);
        ck_assert_int_eq(t->streams[i].join_turn, 1);
        ck_assert_int_eq(t->streams[i].spawn_offset_ns, i * 500 * MS_NS);
    }
    ck_assert_uint_eq(t->streams[0].turns[1].barrier_count, 0); /* the joins say it */
    ck_assert_str_eq(t->models[0], "gpt-4");
    cedar_corpus_free(c);
}
END_TEST

/* Parts, JSON inside a string, calls of tools, and lengths that the server counted. */
START_TEST(otel_messages) {
    cedar_corpus *c = parse(OTEL(
        OTEL_SPAN("a", "00.000000", "01.000000",
                  ",'gen_ai.input.messages':'[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"abcdefgh\\\"}]',"
                  "'gen_ai.output.messages':[{'role':'assistant','parts':[{'type':'text','content':'xy'},"
                  "{'type':'text','content':'zz'}]}]")
        "," OTEL_SPAN("b", "02.000000", "03.000000", ",'gen_ai.usage.input_tokens':100"
                      IN(SAYS("user", "abcdefgh") "," SAYS("assistant", "xyzz") ",{'role':'tool','x':1}"))));
    ck_assert_uint_eq(c->traces[0].stream_count, 1);
    ck_assert_uint_eq(turn(c, 0, 0)->in_tokens, 2);
    ck_assert_uint_eq(turn(c, 0, 0)->out_tokens, 5); /* the server's count, not the text's */
    ck_assert_uint_eq(turn(c, 0, 1)->in_tokens, 100);
    ck_assert_uint_eq(turn(c, 0, 1)->block_count, 0); /* the texts cover 2 + 1 + 6 tokens only */
    cedar_corpus_free(c);
}
END_TEST

/* --- BLIS -------------------------------------------------------------------------------------------------------- */

#define BLIS_HEADER "# made by hand\ntrace_version: 2\ntime_unit: \"us\"   # as in the columns\nmode: " \
    "replayed\nserver:\n" \
                    "  model: m\n  block_size: 16\nwarm_up_requests: 0\n"
#define BLIS_ROWS "request_id,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,model," \
                  "arrival_time_us\n" \
                  "0,s,0,g,32,64,16,m,0\n1,s,1,g,32,112,16,m,1000\n2,s,2,g,32,32,16,m,2000\n3,t,0,g,32,64,16,,500\n" \
                  "4,,0,,0,64,16,,700\n"

/* With accumulation round 1 (144 tokens) repeats round 0 (96 + 16); round 2 (64) was compacted: only the group's prefix
 * is left, and its length is the recorded one, not a sum. Without it, rounds share the prefix alone. */
START_TEST(blis_prefixes) {
    for (int grows = 0; grows < 2; grows++) {
        char text[1000];
        snprintf(text, sizeof text, BLIS_HEADER "%s---\n" BLIS_ROWS, grows ? "session_context_growth: accumulate\n"
                 : "");
        cedar_corpus *c = table(text);
        ck_assert_uint_eq(c->trace_count, 3);
        const cedar_turn *t = c->traces[0].streams[0].turns, *other = c->traces[1].streams[0].turns;
        ck_assert_uint_eq(t[0].in_tokens, 96);
        ck_assert_uint_eq(t[1].in_tokens, 144);
        ck_assert_uint_eq(t[2].in_tokens, 64);
        ck_assert_uint_eq(cedar_turn_common_blocks(&t[0], &t[1]), grows ? 6 : 2);
        ck_assert_uint_eq(cedar_turn_common_blocks(&t[1], &t[2]), 2);
        ck_assert_uint_eq(cedar_turn_common_blocks(&t[0], other), 2); /* of another session, the same group */
        ck_assert_uint_eq(c->traces[2].streams[0].turns[0].block_count, 0);
        ck_assert_uint_eq(c->traces[0].id_space, c->traces[1].id_space);
        ck_assert_int_eq(t[2].model, 0);
        ck_assert_int_eq(other->model, -1);
        cedar_corpus_free(c);
    }
}
END_TEST

/* Header and table as two files: either name loads both. */
START_TEST(blis_files) {
    char dir[] = "/tmp/cedar-traces-XXXXXX", yaml[80], csv[80];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(yaml, sizeof yaml, "%s/t.yaml", dir);
    snprintf(csv, sizeof csv, "%s/t.csv", dir);
    write_file(csv, BLIS_ROWS, false);
    cedar_corpus *c = load(csv);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 0), turn(c, 0, 1)), 2);
    cedar_corpus_free(c);
    write_file(yaml, BLIS_HEADER "session_context_growth: accumulate\n", false);
    const char *names[] = { csv, yaml, dir };
    for (int i = 0; i < 3; i++) {
        c = load(names[i]);
        ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, 0, 0), turn(c, 0, 1)), 6);
        cedar_corpus_free(c);
    }
    write_file(yaml, "trace_version: 9\n", false);
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_corpus_load(names, 1, NULL, &c, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "t.yaml:1: \"trace_version\" is \"9\", known are 2 or 3"));
    unlink(yaml);
    unlink(csv);
    rmdir(dir);
}
END_TEST

/* --- flattened agents -------------------------------------------------------------------------------------------- */

static cedar_corpus *parse_split(const char *text) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .strict = true, .split_flattened = true };
    ck_assert_msg(parse_opts(text, "test.jsonl", &opts, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

#define R(t, api, in, ids) "{'t':" t ",'api_time':" api ",'in':" in ",'out':1,'hash_ids':" ids "}"

static void check_name(const cedar_corpus *c, uint32_t stream, const char *wanted) {
    char name[100];
    ck_assert_uint_eq(cedar_stream_name(&c->traces[0], stream, name, sizeof name), strlen(wanted));
    ck_assert_str_eq(name, wanted);
}

#define INTERLEAVED TRACE(R("0", "1", "128", "[1,2]") "," R("0.5", "2", "128", "[7,8]") "," \
                          R("2", "1", "192", "[1,2,3]") "," R("4", "1", "192", "[7,8,9]") "," \
                          R("5", "1", "256", "[1,2,3,4]") "," R("6", "1", "256", "[7,8,9,10]"))

/* Two agents with distinct prefixes, interleaved: apart, each keeps its context and waits for itself only. */
START_TEST(split_interleaved) {
    cedar_corpus *c = parse(INTERLEAVED);
    ck_assert_uint_eq(c->traces[0].stream_count, 1); /* a switch */
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_PREFIX_CUT), 5);
    cedar_corpus_free(c);
    c = parse_split(INTERLEAVED);
    const cedar_trace *t = &c->traces[0];
    ck_assert_uint_eq(t->stream_count, 2);
    ck_assert_uint_eq(t->split_streams, 1);
    check_name(c, 0, "x");
    check_name(c, 1, "x::fa:000");
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(t->streams[i].turn_count, 3);
        ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, i, 0), turn(c, i, 1)), 2);
        ck_assert_uint_eq(cedar_turn_common_blocks(turn(c, i, 1), turn(c, i, 2)), 3);
    }
    ck_assert_int_eq(turn(c, 0, 1)->delay_ns, S_NS);        /* 2 - 1 */
    ck_assert_int_eq(turn(c, 1, 1)->delay_ns, 1500 * MS_NS); /* 4 - 2.5 */
    ck_assert_int_eq(t->streams[1].spawn_turn, 0);
    ck_assert_int_eq(t->streams[1].join_turn, -1);
    ck_assert_uint_eq(found(c, CEDAR_ODDITY_PREFIX_CUT), 0);
    cedar_trace_stats s = stats_of(t);
    ck_assert_uint_eq(s.blocks_hit_seen, 10);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
}
END_TEST

/* A shortened context that nobody returns from is the same agent; one that somebody returns from is another. */
START_TEST(split_compacted) {
    cedar_corpus *c = parse_split(TRACE(R("0", "1", "256", "[1,2,3,4]") "," R("2", "1", "128", "[1,9]") ","
                                        R("4", "1", "192", "[1,9,10]")));
    ck_assert_uint_eq(c->traces[0].stream_count, 1);
    cedar_corpus_free(c);
    c = parse_split(TRACE(R("0", "1", "256", "[1,2,3,4]") "," R("2", "1", "128", "[1,9]") ","
                          R("4", "1", "320", "[1,2,3,4,5]")));
    ck_assert_uint_eq(c->traces[0].stream_count, 2);
    ck_assert_uint_eq(c->traces[0].streams[0].turn_count, 2);
    ck_assert_int_eq(c->traces[0].streams[1].join_turn, 1);
    cedar_corpus_free(c);
}
END_TEST

/* Starts before the last one ended, or another model: not the same agent though the prompt goes on. */
START_TEST(split_conditions) {
    cedar_corpus *c = parse_split(TRACE(R("0", "3", "64", "[1]") "," R("2", "1", "128", "[1,2]")));
    ck_assert_uint_eq(c->traces[0].stream_count, 2);
    cedar_corpus_free(c);
    c = parse_split("{'id':'x','requests':[{'t':0,'model':'a','in':64,'out':1,'hash_ids':[1]},"
                    "{'t':1,'model':'b','in':128,'out':1,'hash_ids':[1,2]},{'t':2,'model':'a','in':128,'out':1,"
                    "'hash_ids':[1,3]}]}");
    ck_assert_uint_eq(c->traces[0].stream_count, 2);
    check_name(c, 1, "x::aux:000"); /* one request of another model */
    cedar_corpus_free(c);
}
END_TEST

/* Three at once from the same open turn are a work group; a small fresh prompt is auxiliary; subagents keep their
 * places among the turns that are left in the root. */
START_TEST(split_kinds) {
    cedar_corpus *c = parse_split(TRACE(
        R("0", "100", "512", "[1,2,3,4,5,6,7,8]") "," R("1", "50", "128", "[1,20]") "," R("2", "50", "128", "[1,"
                "30]") ","
        R("3", "50", "128", "[1,40]") "," R("4", "1", "64", "[99]") "," SUB("5", "a", REQ("5", "")) ","
        R("200", "1", "576", "[1,2,3,4,5,6,7,8,9]")));
    const cedar_trace *t = &c->traces[0];
    ck_assert_uint_eq(t->stream_count, 6);
    ck_assert_uint_eq(t->streams[0].turn_count, 2);
    check_name(c, 1, "x::sa:a");
    check_name(c, 2, "x::wg:000_000");
    check_name(c, 3, "x::wg:000_001");
    check_name(c, 4, "x::wg:000_002");
    check_name(c, 5, "x::aux:000");
    ck_assert_int_eq(t->streams[1].spawn_turn, 0);
    for (uint32_t i = 1; i < 6; i++) ck_assert_int_eq(t->streams[i].join_turn, 1);
    cedar_corpus_free(c);
}
END_TEST

/* --- barriers ---------------------------------------------------------------------------------------------------- */

static void check_barriers(const cedar_corpus *c, uint32_t stream, uint32_t k, const char *wanted) {
    char got[200] = "";
    const cedar_turn *t = turn(c, stream, k);
    for (uint32_t i = 0; i < t->barrier_count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u.%u", i ? " " : "", t->barriers[i].stream,
                 t->barriers[i].turn);
    ck_assert_msg(!strcmp(got, wanted), "turn %u.%u waits for \"%s\", wanted \"%s\"", stream, k, got, wanted);
}

#define Q(t, api) REQ(t, ",'api_time':" api)

/* Root 0-1, 40-41; a: 2-3, 10-12, 50-51; b: 5-6, 12-13, 30-60. Worked by hand:
 * b0 (5): a0 has ended (3). a1 (10): b0 (6), a0 is its own. b1 (12): a1 ended at 12 exactly. b2 (30): a1 follows
 * from b1.
 * Root 1 (40): a1 follows from b1, which ended at 13. a2 (50): root 1, which covers b1. */
START_TEST(barriers_by_hand) {
    cedar_corpus *c = parse(TRACE(Q("0", "1") "," SUB("2", "a", Q("2", "1") "," Q("10", "2") "," Q("50", "1")) ","
                                  SUB("5", "b", Q("5", "1") "," Q("12", "1") "," Q("30", "30")) "," Q("40", "1")));
    check_barriers(c, 0, 0, "");
    check_barriers(c, 0, 1, "2.1");
    check_barriers(c, 1, 0, "");
    check_barriers(c, 1, 1, "2.0");
    check_barriers(c, 1, 2, "0.1");
    check_barriers(c, 2, 0, "1.0");
    check_barriers(c, 2, 1, "1.1");
    check_barriers(c, 2, 2, "");
    cedar_corpus_free(c);
}
END_TEST

/* Equal starts impose no order, not even between requests without a duration. */
START_TEST(barriers_equal_starts) {
    cedar_corpus *c = parse(TRACE(Q("0", "1") "," SUB("5", "a", Q("5", "0") "," Q("6", "1")) "," SUB("5", "b",
            Q("5", "0"))
                                  "," Q("5", "0") "," Q("6", "1")));
    check_barriers(c, 0, 1, "");
    check_barriers(c, 1, 0, "");
    check_barriers(c, 2, 0, "");
    check_barriers(c, 1, 1, "0.1"); /* b, too, but root 1 joins it */
    check_barriers(c, 0, 2, "1.0"); /* a1 starts with it */
    cedar_corpus_free(c);
}
END_TEST

/* A recording that contradicts its structure: x runs before the turn that spawns it. No circle comes of it. */
START_TEST(barriers_no_circle) {
    cedar_corpus *c = parse(TRACE(Q("0", "1") "," SUB("10", "y", Q("10", "1")) "," Q("50", "1") "," SUB("5", "x",
            Q("5", "1"))
                                  "," Q("60", "1")));
    check_barriers(c, 0, 1, ""); /* y joins there */
    check_barriers(c, 2, 0, "");
    check_barriers(c, 1, 0, ""); /* not behind x, which follows root 1 */
    cedar_corpus_free(c);
}
END_TEST

/* x joins root 1 though it starts half a microsecond later, as rounding makes it: root 1 and root 2 follow x all the
 * same, and with it the first turn of y. */
START_TEST(barriers_slack) {
    cedar_corpus *c = parse(TRACE(Q("0", "1") "," SUB("10", "y", Q("10", "1") "," Q("100", "1")) ","
                                  SUB("10", "x", Q("60.0000005", "0")) "," Q("60", "0") "," Q("60", "1")));
    ck_assert_int_eq(c->traces[0].streams[2].join_turn, 1);
    check_barriers(c, 2, 0, "1.0");
    check_barriers(c, 0, 1, "");
    check_barriers(c, 0, 2, "");
    cedar_corpus_free(c);
}
END_TEST

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* Some turns at `from` seconds or later, on a grid of halves so that ties are common; overlap happens. */
static int random_turns(char *p, uint64_t *rng, int most, int *t2) {
    int n = 1 + (int)(next_random(rng) % (unsigned)most), len = 0;
    for (int k = 0; k < n; k++) {
        if (k) *t2 += (int)(next_random(rng) % 9);
        len += sprintf(p + len, "%s{'t':%d.%d,'api_time':%d.%d,'in':9,'out':1,'hash_ids':[]}", k ? "," : "", *t2 / 2,
                       *t2 % 2 * 5, (int)(next_random(rng) % 4), (int)(next_random(rng) % 2) * 5);
    }
    return len;
}

static void random_tree(char *text, uint64_t *rng) {
    int root = 2 + (int)(next_random(rng) % 6), t2 = 0;
    char *p = text + sprintf(text, "{'id':'r','requests':[");
    for (int k = 0; k < root; k++) {
        p += sprintf(p, "%s{'t':%d.%d,'api_time':%d.0,'in':9,'out':1,'hash_ids':[]}", k ? "," : "", t2 / 2, t2 % 2 * 5,
                     (int)(next_random(rng) % 4));
        for (int subs = (int)(next_random(rng) % 3); subs > 0; subs--) {
            int s2 = t2 + (int)(next_random(rng) % 9);
            p += sprintf(p, ",{'t':%d.%d,'type':'subagent','agent_id':'a','requests':[", s2 / 2, s2 % 2 * 5);
            p += random_turns(p, rng, 5, &s2);
            p += sprintf(p, "]}");
        }
        t2 += (int)(next_random(rng) % 12);
    }
    sprintf(p, "]}");
}

#define NODES_MAX 160

/* The graph of a trace as a matrix: before[b][a] says that b follows a. */
typedef struct order {
    int count, first[40], stream[NODES_MAX];
    bool before[NODES_MAX][NODES_MAX];
} order;

static void close_order(order *o) {
    for (int m = 0; m < o->count; m++)
        for (int b = 0; b < o->count; b++)
            for (int a = 0; o->before[b][m] && a < o->count; a++) o->before[b][a] |= o->before[m][a];
}

/* Streams, spawns and joins. */
static void structure(const cedar_trace *t, order *o) {
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < t->stream_count; i++) {
        o->first[i] = o->count;
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) {
            if (k) o->before[o->count][o->count - 1] = true;
            o->stream[o->count++] = (int)i;
        }
    }
    o->first[t->stream_count] = o->count;
    for (uint32_t i = 1; i < t->stream_count; i++) {
        o->before[o->first[i]][t->streams[i].spawn_turn] = true;
        if (t->streams[i].join_turn >= 0) o->before[t->streams[i].join_turn][o->first[i + 1] - 1] = true;
    }
}

static const cedar_turn *node_turn(const cedar_trace *t, const order *o, int n) {
    return &t->streams[o->stream[n]].turns[n - o->first[o->stream[n]]];
}

/* The rule as it is written: per other stream the latest turn, by its end, that started before and had ended. */
static void add_naive(const cedar_trace *t, order *o) {
    for (int b = 0; b < o->count; b++)
        for (uint32_t s = 0; s < t->stream_count; s++) {
            const cedar_turn *y = node_turn(t, o, b);
            int best = -1;
            for (int a = o->first[s]; (int)s != o->stream[b] && a < o->first[s + 1]; a++) {
                const cedar_turn *x = node_turn(t, o, a), *z = best < 0 ? NULL : node_turn(t, o, best);
                int64_t end = x->t_ns + x->api_ns;
                if (end > y->t_ns || x->t_ns >= y->t_ns) continue;
                if (!z || end > z->t_ns + z->api_ns || (end == z->t_ns + z->api_ns && x->t_ns >= z->t_ns)) best = a;
            }
            if (best >= 0) o->before[b][best] = true;
        }
}

/* Adds the barriers of the trace, but for number `skip` of turn `of`. */
static void add_barriers(const cedar_trace *t, order *o, int of, uint32_t skip) {
    for (int b = 0; b < o->count; b++) {
        const cedar_turn *y = node_turn(t, o, b);
        for (uint32_t i = 0; i < y->barrier_count; i++)
            if (b != of || i != skip)
                o->before[b][o->first[y->barriers[i].stream] + (int)y->barriers[i].turn] = true;
    }
}

/* Random trees: the barriers say all that the rule says, and none can be spared. */
START_TEST(barriers_random) {
    static char text[20000];
    static order naive, reduced;
    uint64_t rng = (uint64_t)_i * 7919 + 1;
    for (int n = 0; n < 20; n++) {
        random_tree(text, &rng);
        cedar_corpus *c = parse(text);
        const cedar_trace *t = &c->traces[0];
        structure(t, &naive);
        ck_assert_int_lt(naive.count, NODES_MAX);
        add_naive(t, &naive);
        close_order(&naive);
        structure(t, &reduced);
        add_barriers(t, &reduced, -1, 0);
        close_order(&reduced);
        ck_assert_msg(!memcmp(naive.before, reduced.before, sizeof naive.before), "%s", text);
        for (int b = 0; b < naive.count; b++) {
            ck_assert(!naive.before[b][b]);
            const cedar_turn *y = node_turn(t, &naive, b);
            for (uint32_t i = 0; i < y->barrier_count; i++) {
                structure(t, &reduced);
                add_barriers(t, &reduced, b, i);
                close_order(&reduced);
                ck_assert(!reduced.before[b][reduced.first[y->barriers[i].stream] + (int)y->barriers[i].turn]);
            }
        }
        cedar_corpus_free(c);
    }
}
END_TEST

/* --- writing ----------------------------------------------------------------------------------------------------- */

/* The text of a corpus in a format; the caller frees it. */
static char *written(const cedar_corpus *c, cedar_trace_format format, cedar_losses *losses) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    cedar_err err = { 0 };
    ck_assert_msg(cedar_trace_write(c, format, f, NULL, losses, &err) == CEDAR_OK, "%s", err.msg);
    fclose(f);
    return text;
}

static cedar_corpus *reread(const char *text, const char *name) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .strict = true };
    ck_assert_msg(cedar_corpus_parse(text, strlen(text), name, &opts, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

static void same_turn(const cedar_trace *x, const cedar_turn *a, const cedar_trace *y, const cedar_turn *b) {
    ck_assert_int_eq(a->t_ns, b->t_ns);
    ck_assert_int_eq(a->api_ns, b->api_ns);
    ck_assert_int_eq(a->ttft_ns, b->ttft_ns);
    ck_assert_int_eq(a->think_ns, b->think_ns);
    ck_assert_int_eq(a->delay_ns, b->delay_ns);
    ck_assert_uint_eq(a->in_recorded, b->in_recorded);
    ck_assert_uint_eq(a->out_tokens, b->out_tokens);
    ck_assert(a->has_api == b->has_api && a->has_think == b->has_think);
    ck_assert_uint_eq(a->block_count, b->block_count);
    ck_assert(!a->block_count || !memcmp(a->block_ids, b->block_ids, a->block_count * sizeof *a->block_ids));
    ck_assert((a->model < 0) == (b->model < 0));
    if (a->model >= 0) ck_assert_str_eq(x->models[a->model], y->models[b->model]);
    ck_assert_uint_eq(a->barrier_count, b->barrier_count);
    ck_assert(!a->barrier_count || !memcmp(a->barriers, b->barriers, a->barrier_count * sizeof *a->barriers));
}

static void same_trace(const cedar_trace *a, const cedar_trace *b) {
    ck_assert_str_eq(a->id, b->id);
    ck_assert_uint_eq(a->block_tokens, b->block_tokens);
    ck_assert(a->ids_global == b->ids_global);
    ck_assert_uint_eq(a->model_count, b->model_count);
    ck_assert_uint_eq(a->stream_count, b->stream_count);
    for (uint32_t i = 0; i < a->stream_count; i++) {
        const cedar_stream *s = &a->streams[i], *r = &b->streams[i];
        ck_assert_str_eq(s->id, r->id);
        ck_assert_uint_eq(s->turn_count, r->turn_count);
        ck_assert_int_eq(s->spawn_turn, r->spawn_turn);
        ck_assert_int_eq(s->join_turn, r->join_turn);
        ck_assert_int_eq(s->spawn_offset_ns, r->spawn_offset_ns);
        ck_assert_uint_eq(s->system_tokens, r->system_tokens);
        ck_assert_int_eq(s->marker_ns, r->marker_ns);
        ck_assert(s->t_relative == r->t_relative);
        for (uint32_t k = 0; k < s->turn_count; k++) same_turn(a, &s->turns[k], b, &r->turns[k]);
    }
}

static void weka_round(const cedar_corpus *c) {
    cedar_losses losses;
    char *text = written(c, CEDAR_TRACE_WEKA, &losses), lost[1000];
    cedar_corpus *back = reread(text, "back.jsonl");
    ck_assert_uint_eq(cedar_losses_format(&losses, lost, sizeof lost), 0);
    ck_assert_uint_eq(back->trace_count, c->trace_count);
    for (uint32_t i = 0; i < c->trace_count; i++) same_trace(&c->traces[i], &back->traces[i]);
    char *again = written(back, CEDAR_TRACE_WEKA, NULL);
    ck_assert_str_eq(text, again);
    free(again);
    free(text);
    cedar_corpus_free(back);
}

/* weka -> internal -> weka keeps ids, times and structure exactly. */
START_TEST(write_weka) {
    static const char *const files[] = { "traces/kv-cache-tester", "traces/kv-cache-tester-neon/trace_0009.json" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        cedar_corpus *c = load(files[i]);
        weka_round(c);
        cedar_corpus_free(c);
    }
    static char text[20000];
    uint64_t rng = 11;
    for (int n = 0; n < 100; n++) {
        random_tree(text, &rng);
        cedar_corpus *c = parse(text);
        weka_round(c);
        cedar_corpus_free(c);
    }
    cedar_corpus *c = parse_split(INTERLEAVED); /* split agents go on as subagents */
    weka_round(c);
    cedar_corpus_free(c);
    c = parse("{'id':'q\\\"\\\\\\u0001\xc3\xa4','hash_id_scope':'global','requests':[{'t':1700000000.25,'in':0,'out':0,"
              "'api_time':0.000000001,'think_time':0.1,'hash_ids':[9223372036854775807]}]}");
    weka_round(c);
    cedar_corpus_free(c);
}
END_TEST

static uint64_t lost(const cedar_losses *l, cedar_loss kind) {
    return l->count[kind];
}

/* The demo has floor ids: 3 of 200 tokens become 4, as the format asks, 2 of 130 become 3, 5 of 330 become 6. */
START_TEST(write_mooncake) {
    cedar_corpus *c = parse(DEMO);
    cedar_losses l;
    char *text = written(c, CEDAR_TRACE_MOONCAKE, &l), *wanted = quoted(
        "{'session_id':'demo','timestamp':0,'input_length':200,'output_length':70,'hash_ids':[1,2,3,11],"
            "'block_size':64}\n"
        "{'session_id':'demo','timestamp':8000,'delay':6000,'input_length':330,'output_length':10,"
        "'hash_ids':[1,2,3,4,5,12],'block_size':64}\n"
        "{'session_id':'demo::sa:agent_001','timestamp':3000,'input_length':130,'output_length':20,"
        "'hash_ids':[9,10,13],'block_size':64}\n");
    ck_assert_str_eq(text, wanted);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_STREAMS), 1);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS_ADDED), 3);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS_NUMBERED), 0);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_DURATION), 3);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_TTFT), 1);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_SYSTEM), 2);
    char report[900];
    static const char first[] = "  spawn and join lost, written as sessions of their own: 1 streams\n";
    size_t n = cedar_losses_format(&l, report, sizeof report);
    ck_assert_uint_eq(n, strlen(report));
    ck_assert_int_eq(strncmp(report, first, sizeof first - 1), 0);
    ck_assert_uint_eq(cedar_losses_format(&l, NULL, 0), n);
    for (int i = 0; i < CEDAR_LOSS_COUNT; i++) ck_assert_str_ne(cedar_loss_text((cedar_loss)i), "unknown");
    free(wanted);
    cedar_corpus *back = reread(text, "m.jsonl");
    ck_assert_uint_eq(back->trace_count, 2);
    ck_assert_int_eq(turn(back, 0, 1)->delay_ns, 6 * S_NS);
    free(text);
    text = written(back, CEDAR_TRACE_MOONCAKE, &l);
    cedar_corpus *again = reread(text, "m.jsonl");
    for (uint32_t i = 0; i < 2; i++) same_trace(&back->traces[i], &again->traces[i]);
    ck_assert_uint_eq(cedar_losses_format(&l, NULL, 0), 0);
    free(text);
    cedar_corpus_free(again);
    cedar_corpus_free(back);
    cedar_corpus_free(c);
}
END_TEST

/* Two sessions whose local ids are the same numbers for different blocks must not share in a file of global ids. */
START_TEST(write_spaces) {
    cedar_corpus *c = parse("{'id':'a','requests':[{'t':0,'in':64,'out':1,'hash_ids':[5]},{'t':1,'in':128,'out':1,"
                            "'hash_ids':[5,6]}]}\n{'id':'b','requests':[{'t':0,'in':64,'out':1,'hash_ids':[5]}]}");
    static const cedar_trace_format formats[] = { CEDAR_TRACE_MOONCAKE, CEDAR_TRACE_LLMSERVINGSIM };
    for (int i = 0; i < 2; i++) {
        cedar_losses l;
        char *text = written(c, formats[i], &l);
        cedar_corpus *back = reread(text, "m.jsonl");
        cedar_corpus_stats s;
        ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS_NUMBERED), 3);
        ck_assert_int_eq(cedar_corpus_stats_make(back, &s, NULL), CEDAR_OK);
        ck_assert_uint_eq(s.blocks_total, 4);
        ck_assert_uint_eq(s.blocks_hit_seen, 1);
        cedar_corpus_free(back);
        free(text);
    }
    cedar_corpus_free(c);
    /* Mooncake files number their blocks from 0; two of them as one weka file keep apart, too. */
    c = load("traces/mooncake");
    char *text = written(c, CEDAR_TRACE_WEKA, NULL);
    cedar_corpus *back = reread(text, "w.jsonl");
    cedar_corpus_stats s;
    ck_assert_int_eq(cedar_corpus_stats_make(back, &s, NULL), CEDAR_OK);
    ck_assert_uint_eq(s.blocks_hit_seen, 4427);
    ck_assert_uint_eq(s.isl_sum, 8293542 + 7414999);
    cedar_corpus_free(back);
    free(text);
    cedar_corpus_free(c);
}
END_TEST

/* Sessions of the same name stay apart. */
START_TEST(write_names) {
    cedar_corpus *c = parse(TRACE(REQ("5", "") "," SUB("6", "a", REQ("6", "")) "," SUB("7", "a", REQ("7", ""))) "\n"
                            TRACE(REQ("0", "")) "\n" TRACE(REQ("1", "")));
    static const cedar_trace_format formats[] = { CEDAR_TRACE_MOONCAKE, CEDAR_TRACE_TRACELAB_CSV, CEDAR_TRACE_BLIS };
    static const char *const names[] = { "x", "x::sa:a", "x::sa:a#2", "x#2", "x#3" };
    for (int i = 0; i < 3; i++) {
        cedar_losses l;
        char *text = written(c, formats[i], &l);
        cedar_corpus *back = reread(text, i ? "n.csv" : "n.jsonl");
        ck_assert_uint_eq(back->trace_count, 5);
        for (uint32_t k = 0; k < 5; k++) ck_assert_str_eq(back->traces[k].id, names[k]);
        ck_assert_uint_eq(lost(&l, CEDAR_LOSS_NAMES), 3);
        cedar_corpus_free(back);
        free(text);
    }
    cedar_corpus_free(c);
}
END_TEST

START_TEST(write_llmservingsim) {
    cedar_corpus *c = load("traces/kv-cache-tester/trace_0489.json");
    cedar_losses l;
    char *text = written(c, CEDAR_TRACE_LLMSERVINGSIM, &l);
    cedar_corpus *back = reread(text, "l.jsonl");
    const cedar_stream *a = c->traces[0].streams, *b = back->traces[0].streams;
    ck_assert_uint_eq(back->trace_count, 1);
    ck_assert_str_eq(back->traces[0].id, "trace_0489");
    ck_assert_uint_eq(back->traces[0].block_tokens, 64);
    ck_assert_uint_eq(a->turn_count, b->turn_count);
    for (uint32_t k = 0; k < a->turn_count; k++) {
        ck_assert_int_eq(a->turns[k].delay_ns, b->turns[k].delay_ns);
        ck_assert_uint_eq(a->turns[k].block_count, b->turns[k].block_count);
        ck_assert(!memcmp(a->turns[k].block_ids, b->turns[k].block_ids, 8 * a->turns[k].block_count));
    }
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_DURATION), a->turn_count);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_START), a->turn_count - 1);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS_NUMBERED), 0);
    free(text);
    cedar_corpus_free(back);
    cedar_corpus_free(c);
}
END_TEST

static char *file_text(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 100000);
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_lt(fread(text, 1, 99999, f), 99999);
    fclose(f);
    return text;
}

/* The sample table comes back byte by byte. */
START_TEST(write_tracelab) {
    char *original = file_text("traces/tracelab/multi_session_large.csv");
    cedar_corpus *c = load("traces/tracelab/multi_session_large.csv");
    cedar_losses l;
    char *text = written(c, CEDAR_TRACE_TRACELAB_CSV, &l);
    ck_assert_str_eq(text, original);
    ck_assert_uint_eq(cedar_losses_format(&l, NULL, 0), 0);
    free(text);
    free(original);
    cedar_corpus_free(c);
    c = parse(DEMO); /* 3 blocks of 64 tokens of the first prompt are kept */
    text = written(c, CEDAR_TRACE_TRACELAB_CSV, &l);
    ck_assert_str_eq(text, "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
                           "demo,0,0,0,200,70,6000\ndemo,0,1,192,138,10,0\ndemo::sa:agent_001,3000,0,0,130,20,0\n");
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS), 3);
    free(text);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(write_blis) {
    cedar_corpus *c = parse(DEMO);
    cedar_losses l;
    char *text = written(c, CEDAR_TRACE_BLIS, &l);
    cedar_corpus *back = reread(text, "b.csv");
    ck_assert_uint_eq(back->trace_count, 2);
    ck_assert_int_eq(turn(back, 0, 0)->api_ns, 2 * S_NS);
    ck_assert_int_eq(turn(back, 0, 0)->ttft_ns, 500 * MS_NS);
    ck_assert_int_eq(turn(back, 0, 1)->t_ns, 8 * S_NS);
    ck_assert_int_eq(turn(back, 0, 1)->delay_ns, 6 * S_NS);
    ck_assert_uint_eq(turn(back, 0, 1)->in_tokens, 330);
    ck_assert_uint_eq(cedar_turn_common_blocks(turn(back, 0, 0), turn(back, 0, 1)), 12); /* 200 / 16 */
    ck_assert_str_eq(back->traces[0].models[0], "m");
    ck_assert_str_eq(back->traces[1].id, "demo::sa:agent_001");
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_IDS), 3);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_ROUNDED), 0);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_DURATION), 0);
    cedar_corpus_free(back);
    free(text);
    cedar_corpus_free(c);
}
END_TEST

/* A stream that starts with the session has no place among subagents; a capped wait none among times. */
START_TEST(write_losses) {
    cedar_corpus *c = parse(OTEL(OTEL_SPAN("a", "00.000000", "02.000000", IN(SAYS("user", "q")) OUT("A")) ","
                                 OTEL_SPAN("b", "01.000000", "01.500000", IN(SAYS("user", "r")) OUT("B")) ","
                                 OTEL_SPAN("c", "50.000000", "51.000000", IN(SAYS("assistant", "A")))));
    cedar_losses l;
    char *text = written(c, CEDAR_TRACE_WEKA, &l);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_SPAWN), 1);
    ck_assert_uint_eq(lost(&l, CEDAR_LOSS_DELAY), 1);
    free(text);
    cedar_err err = { 0 };
    ck_assert(!cedar_trace_writable(CEDAR_TRACE_OTEL) && cedar_trace_writable(CEDAR_TRACE_BLIS));
    ck_assert_int_eq(cedar_trace_write(c, CEDAR_TRACE_OTEL, stdout, NULL, &l, &err), CEDAR_E_UNSUPPORTED);
    ck_assert_str_eq(err.msg, "the format otel cannot be written; weka, mooncake, llmservingsim, tracelab_csv and "
                     "blis can");
    cedar_corpus_free(c);
}
END_TEST

static cedar_status convert(const char *from, cedar_trace_format to, const char *to_path, cedar_err *err) {
    cedar_losses l;
    uint32_t traces = 0, skipped = 9;
    cedar_status st = cedar_trace_convert(&from, 1, NULL, to, to_path, &l, &traces, &skipped, err);
    ck_assert(st || (traces > 0 && skipped == 0));
    return st;
}

/* Taking the name of a pipe (or of /dev/null) would remove it. */
START_TEST(convert_leaves_pipes_alone) {
    char dir[] = "/tmp/cedar-traces-XXXXXX", pipe[80];
    struct stat info;
    cedar_err err = { 0 };
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    cedar_status st = convert("traces/llmservingsim/example_trace.jsonl", CEDAR_TRACE_MOONCAKE, pipe, &err);
    ck_assert_int_eq(stat(pipe, &info), 0);
    ck_assert(S_ISFIFO(info.st_mode));
    ck_assert_int_eq(st, CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "not a plain file"));
    ck_assert_int_eq(unlink(pipe), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(convert_files) {
    char dir[] = "/tmp/cedar-traces-XXXXXX", csv[80], yaml[80], part[90];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(csv, sizeof csv, "%s/a.csv", dir);
    snprintf(yaml, sizeof yaml, "%s/a.yaml", dir);
    snprintf(part, sizeof part, "%s.part", csv);
    cedar_err err = { 0 };
    ck_assert_int_eq(convert("traces/kv-cache-tester/trace_0291.json", CEDAR_TRACE_BLIS, csv, &err), CEDAR_OK);
    char *header = file_text(yaml);
    ck_assert_str_eq(header, "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
                             "session_context_growth: accumulate\n");
    free(header);
    cedar_corpus *c = load(yaml);
    ck_assert_uint_eq(c->trace_count, 3); /* the root and two subagents */
    cedar_corpus_free(c);
    unlink(yaml);
    ck_assert_int_eq(convert("traces/none.json", CEDAR_TRACE_WEKA, csv, &err), CEDAR_E_IO);
    ck_assert_int_eq(access(csv, R_OK), 0); /* what was there stays */
    unlink(csv);
    ck_assert_int_ne(access(part, F_OK), 0);
    snprintf(csv, sizeof csv, "%s/no/a.csv", dir);
    ck_assert_int_eq(convert("traces/kv-cache-tester/trace_0291.json", CEDAR_TRACE_BLIS, csv, &err), CEDAR_E_IO);
    rmdir(dir);
}
END_TEST

/* --- findings ---------------------------------------------------------------------------------------------------- */

/* Counted by a script over the sample files. */
START_TEST(sample_findings) {
    static const struct {
        const char *file;
        uint32_t neither, zero, no_api, no_think, overlap, shrink, cut, models;
    } rows[] = {
        { "traces/kv-cache-tester-neon/trace_0009.json", 21, 0, 0, 0, 1, 3, 21, 7 },
        { "traces/kv-cache-tester/trace_0058.json", 0, 0, 3, 3, 0, 0, 0, 0 },
        { "traces/kv-cache-tester/trace_0091.json", 0, 1, 7, 5, 0, 0, 0, 0 },
        { "traces/kv-cache-tester/trace_0242.json", 0, 0, 1, 0, 0, 0, 0, 0 },
        { "traces/kv-cache-tester/trace_0460.json", 0, 0, 0, 0, 0, 1, 1, 0 },
        { "traces/kv-cache-tester/trace_0489.json", 0, 0, 0, 0, 1, 0, 0, 0 },
        { "traces/kv-cache-tester/trace_0538.json", 0, 0, 0, 0, 0, 0, 1, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cedar_corpus *c = load(rows[i].file);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_IDS_NEITHER), rows[i].neither);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_OUT_ZERO), rows[i].zero);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_NO_API), rows[i].no_api);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_NO_THINK), rows[i].no_think);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_OVERLAP), rows[i].overlap);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_SHRINK), rows[i].shrink);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_PREFIX_CUT), rows[i].cut);
        ck_assert_uint_eq(found(c, CEDAR_ODDITY_MODELS), rows[i].models);
        cedar_corpus_free(c);
    }
}
END_TEST

START_TEST(findings_text) {
    cedar_corpus *c = parse(TRACE(REQ("0", ",'api_time':2,'think_time':1") "," REQ("1", ",'think_time':0") ","
                                  SUB("2", "a", REQ("2", ",'api_time':1,'think_time':0"))));
    static const char text[] = "test.jsonl:1: x: 3 requests, 1 subagents\n"
                               "  no api_time, counted as 0: 1 of 3 requests\n"
                               "  overlap with the previous turn: 1 of 1 pairs\n"
                               "  never joined, run in the background: 1 of 1 subagents\n";
    cedar_trace_check k;
    cedar_trace_check_make(&c->traces[0], &k);
    char buf[400];
    ck_assert_uint_eq(cedar_trace_check_format(&c->traces[0], &k, buf, sizeof buf), sizeof text - 1);
    ck_assert_str_eq(buf, text);
    ck_assert_uint_eq(cedar_trace_check_format(&c->traces[0], &k, NULL, 0), sizeof text - 1);
    ck_assert_uint_eq(cedar_trace_check_format(&c->traces[0], &k, buf, 10), sizeof text - 1);
    ck_assert_str_eq(buf, "test.json");
    for (int i = 0; i < CEDAR_ODDITY_COUNT; i++) {
        ck_assert_str_ne(cedar_oddity_text((cedar_oddity)i), "unknown");
        ck_assert_str_ne(cedar_oddity_unit((cedar_oddity)i), "");
    }
    cedar_corpus_free(c);
}
END_TEST

/* --- broken files ------------------------------------------------------------------------------------------------ */

#define BROKEN "tests/broken/traces/"

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

/* The sidecar's first line is the message of a strict load; the second says what a lenient one does: "fails" with the
 * same message, or "2 loaded, 1 skipped" with the message kept. */
static void check_broken(const char *path) {
    char sidecar[320], message[600], lenient[100], got[100];
    snprintf(sidecar, sizeof sidecar, "%s.expect", path);
    FILE *f = fopen(sidecar, "r");
    ck_assert_msg(f != NULL, "%s is missing", sidecar);
    ck_assert(fgets(message, sizeof message, f) && fgets(lenient, sizeof lenient, f));
    message[strcspn(message, "\n")] = lenient[strcspn(lenient, "\n")] = 0;
    fclose(f);

    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    cedar_corpus_opts opts = { .strict = true };
    ck_assert_msg(cedar_corpus_load(&path, 1, &opts, &c, &err) == CEDAR_E_FORMAT, "%s: loads", path);
    ck_assert_str_eq(err.msg, message);
    ck_assert_ptr_null(c);

    err = (cedar_err){ 0 };
    opts.strict = false;
    cedar_status st = cedar_corpus_load(&path, 1, &opts, &c, &err);
    if (st) snprintf(got, sizeof got, "fails");
    else snprintf(got, sizeof got, "%u loaded, %u skipped", c->trace_count, c->skipped);
    ck_assert_msg(!strcmp(got, lenient), "%s: %s, expected: %s", path, got, lenient);
    ck_assert_str_eq(st ? err.msg : c->skipped_first, message);
    cedar_corpus_free(c);
}

START_TEST(broken_files) {
    DIR *d = opendir(BROKEN);
    ck_assert_ptr_nonnull(d);
    int checked = 0;
    const struct dirent *e;
    while ((e = readdir(d))) {
        char path[300];
        if (e->d_name[0] == '.' || ends_with(e->d_name, ".expect")) continue;
        snprintf(path, sizeof path, BROKEN "%.200s", e->d_name);
        check_broken(path);
        checked++;
    }
    closedir(d);
    ck_assert_int_ge(checked, 100);
}
END_TEST

START_TEST(several_broken) {
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    ck_assert_int_eq(parse_as("{'id':1,'requests':[]}\n{'id':2,'requests':[]}\n", "a.jsonl", false, &c, &err),
                     CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "no usable trace, 2 broken ones; the first: a.jsonl:1: \"id\" must be a string");
}
END_TEST

/* Every prefix of a trace is an error, not a crash, and never another trace. */
START_TEST(every_prefix) {
    char *s = quoted(DEMO);
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        cedar_corpus *c = NULL;
        char *cut = malloc(i + 1); /* of its exact size, so that reading past the end shows in a sanitizer */
        memcpy(cut, s, i);
        ck_assert_int_eq(cedar_corpus_parse(cut, i, "cut.json", NULL, &c, NULL), CEDAR_E_FORMAT);
        free(cut);
    }
    free(s);
}
END_TEST

/* --- failing allocations ----------------------------------------------------------------------------------------- */

typedef cedar_status (*job)(cedar_err *err);

/* Fails the 1st, 2nd, ... allocation until the job succeeds; each failure is a clean CEDAR_E_OOM without a leak. */
static void sweep(job run, int at_least) {
    int failures = 0;
    for (;; failures++) {
        cedar_err err = { 0 };
        int64_t live = cedar_mem_live();
        cedar_mem_fail_at(failures + 1);
        cedar_status st = run(&err);
        cedar_mem_fail_at(0);
        ck_assert_int_eq(cedar_mem_live(), live);
        if (!st) break;
        ck_assert_int_eq(st, CEDAR_E_OOM);
        ck_assert_int_eq(err.code, CEDAR_E_OOM);
        ck_assert_ptr_nonnull(strstr(err.msg, "no memory"));
        ck_assert_int_lt(failures, 10000);
    }
    ck_assert_int_ge(failures, at_least);
}

static cedar_status load_and_measure(const char *path, cedar_err *err) {
    cedar_corpus *c = NULL;
    cedar_trace_stats s = { 0 };
    cedar_corpus_stats sums;
    char *row = NULL;
    cedar_status st = cedar_corpus_load(&path, 1, NULL, &c, err);
    if (!st) st = cedar_trace_stats_make(&c->traces[0], &s, err);
    if (!st) st = cedar_trace_stats_row(path, &s, &row, err);
    if (!st) st = cedar_corpus_stats_make(c, &sums, err);
    cedar_free(row);
    cedar_trace_stats_free(&s);
    cedar_corpus_free(c);
    return st;
}

static cedar_status job_subagents(cedar_err *err) {
    return load_and_measure("traces/kv-cache-tester/trace_0291.json", err);
}

static cedar_status job_pretty(cedar_err *err) {
    return load_and_measure("traces/kv-cache-tester-neon/trace_0009.json", err);
}

static cedar_status job_directory(cedar_err *err) {
    return load_and_measure("traces/kv-cache-tester-neon/", err);
}

static cedar_status job_skipped(cedar_err *err) {
    return load_and_measure("tests/broken/traces/mooncake_session_hole.jsonl", err);
}

static cedar_status job_gzip(cedar_err *err) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts opts = { .traces_max = 1 };
    const char *path = "traces/kv-cache-tester/corpus48.jsonl.gz";
    cedar_status st = cedar_corpus_load(&path, 1, &opts, &c, err);
    cedar_corpus_free(c);
    return st;
}

/* Every format: read, split, and written in every format that can be. */
static const char *fault_path;

static cedar_status job_formats(cedar_err *err) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts opts = { .split_flattened = true, .traces_max = 3 };
    cedar_status st = cedar_corpus_load(&fault_path, 1, &opts, &c, err);
    for (int i = 0; !st && i < CEDAR_TRACE_FORMAT_COUNT; i++) {
        FILE *f = fopen("/dev/null", "wb");
        if (cedar_trace_writable((cedar_trace_format)i))
            st = cedar_trace_write(c, (cedar_trace_format)i, f, NULL, NULL, err);
        fclose(f);
    }
    cedar_corpus_free(c);
    return st;
}

static cedar_status job_convert(cedar_err *err) {
    const char *path = "traces/llmservingsim/example_trace.jsonl";
    return cedar_trace_convert(&path, 1, NULL, CEDAR_TRACE_BLIS, "/tmp/cedar-traces-fault.csv", NULL, NULL, NULL, err);
}

START_TEST(faults_formats) {
    static const char *const files[] = {
        "traces/azure/AzureLLMInferenceTrace_code.first2000.csv", "traces/tracelab/session_workload_example.csv",
        "traces/tracelab/sanitized_round_trace.jsonl", "traces/llmservingsim/example_trace.jsonl",
        "traces/otel-inference-perf/prefix_sharing_example.json", "traces/kv-cache-tester-neon/trace_0009.json",
        "tests/broken/traces/tracelab_wait.csv", "tests/broken/traces/aiperf_image.jsonl",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fault_path = files[i];
        sweep(job_formats, 15);
    }
    sweep(job_convert, 15);
    ck_assert_int_ne(access("/tmp/cedar-traces-fault.csv.part", F_OK), 0);
    unlink("/tmp/cedar-traces-fault.csv");
    unlink("/tmp/cedar-traces-fault.yaml");
}
END_TEST

START_TEST(faults) {
    sweep(job_subagents, 20);
    sweep(job_pretty, 15);
    sweep(job_directory, 18);
    sweep(job_skipped, 10);
    sweep(job_gzip, 10);
}
END_TEST

/* --- suite ------------------------------------------------------------------------------------------------------- */

#define ADD(c, ...) add_tests(c, (const TTest *const[]){ __VA_ARGS__, NULL })

static void add_tests(TCase *c, const TTest *const *tests) {
    tcase_add_checked_fixture(c, setup, teardown);
    for (; *tests; tests++) tcase_add_test(c, *tests);
}

static TCase *new_case(Suite *s, const char *name, double seconds) {
    TCase *c = tcase_create(name);
    tcase_set_timeout(c, seconds);
    suite_add_tcase(s, c);
    return c;
}

int main(void) {
    Suite *s = suite_create("traces");
    ADD(new_case(s, "golden", 60), golden_rows, corpus48_sums, mooncake_samples, mooncake_files_do_not_share,
        demo_by_hand, percentiles_by_hand, one_request);
    ADD(new_case(s, "oddities", 10), id_counts, zero_tokens, missing_times, overlap, context_shrink, models, wide_ids,
        repeated_id, fields_any_order, ids_by_the_parser, idle, time_digits);
    ADD(new_case(s, "subagents", 10), subagent_times, subagents_overlap, join_rules, join_is_later, subagents_left_out,
        streams_interleaved, walk_by_time, relative_times_round);
    ADD(new_case(s, "mooncake", 10), mooncake_rows, mooncake_sessions, mooncake_without_ids);
    ADD(new_case(s, "files", 10), global_and_local_ids, directory, gzip_members, line_ends, traces_max, given_format,
        no_paths);
    ADD(new_case(s, "formats", 30), format_names, sample_sums, units, units_flat, tracelab_rounds, tracelab_prefixes,
        csv_syntax, csv_lenient, aiperf_by_hand, aiperf_sharing, ids_are_chained, llmservingsim_mixed,
            blis_prefixes, blis_files);
    ADD(new_case(s, "spans", 10), otel_graph, otel_quoted_too_early, otel_fan_in, otel_messages);
    ADD(new_case(s, "split", 10), split_interleaved, split_compacted, split_conditions, split_kinds);
    TCase *barriers = new_case(s, "barriers", 60);
    ADD(barriers, barriers_by_hand, barriers_equal_starts, barriers_no_circle, barriers_slack);
    tcase_add_loop_test(barriers, barriers_random, 0, 10);
    ADD(new_case(s, "write", 120), write_weka, write_mooncake, write_spaces, write_names, write_llmservingsim,
        write_tracelab,
        write_blis, write_losses, convert_files, convert_leaves_pipes_alone);
    ADD(new_case(s, "findings", 10), sample_findings, findings_text);
    ADD(new_case(s, "broken", 30), broken_files, several_broken, every_prefix);
    ADD(new_case(s, "faults", 120), faults, faults_formats);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
