/* Tests of traces/: golden statistics of the sample traces, a hand-made trace for every oddity, the broken files of
 * tests/broken/traces with their messages, and failing allocations. Numbers come from traces/STATS_weka.csv, from
 * spec examples worked by hand, or from a short script over the sample files. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    ck_assert_int_ge(checked, 55);
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
    ADD(new_case(s, "findings", 10), sample_findings, findings_text);
    ADD(new_case(s, "broken", 30), broken_files, several_broken, every_prefix);
    ADD(new_case(s, "faults", 120), faults);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
