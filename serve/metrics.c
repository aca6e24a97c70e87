/* Counters -> the Prometheus text format (version 0.0.4). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve/serve_int.h"

/* Upper bounds in seconds. */
static const double bounds[SERVE_BUCKETS] = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
                                              5,      10,    25,     50,    100,  250 };

void serve_histogram_add(serve_histogram *h, int64_t ns) {
    double s = (double)ns / 1e9;
    int i = 0;
    while (i < SERVE_BUCKETS && s > bounds[i]) i++;
    h->counts[i]++;
    h->sum_s += s;
}

typedef struct page { FILE *to; const char *model; } page;

static void head(const page *p, const char *name, const char *type, const char *help) {
    fprintf(p->to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* label "": none beside the model */
static void value(const page *p, const char *name, const char *label, uint64_t n) {
    fprintf(p->to, "%s{model_name=\"%s\"%s%s} %" PRIu64 "\n", name, p->model, *label ? "," : "", label, n);
}

static void single(const page *p, const char *name, const char *type, const char *help, uint64_t n) {
    head(p, name, type, help);
    value(p, name, "", n);
}

static void histogram(const page *p, const char *name, const char *help, const serve_histogram *h) {
    head(p, name, "histogram", help);
    uint64_t sum = 0;
    for (int i = 0; i <= SERVE_BUCKETS; i++) {
        char bound[24] = "+Inf";
        if (i < SERVE_BUCKETS) snprintf(bound, sizeof bound, "%g", bounds[i]);
        fprintf(p->to, "%s_bucket{model_name=\"%s\",le=\"%s\"} %" PRIu64 "\n", name, p->model, bound,
                sum += h->counts[i]);
    }
    fprintf(p->to, "%s_sum{model_name=\"%s\"} %.9g\n%s_count{model_name=\"%s\"} %" PRIu64 "\n", name, p->model,
            h->sum_s, name, p->model, sum);
}

static void requests(const page *p, const serve_metrics *m) {
    const char *name = "cedar_requests_total";
    head(p, name, "counter", "Requests that ended, by how.");
    value(p, name, "outcome=\"length\"", m->finished_length);
    value(p, name, "outcome=\"stop\"", m->finished_stop);
    value(p, name, "outcome=\"cancelled\"", m->cancelled);
    value(p, name, "outcome=\"failed\"", m->failed);
    name = "cedar_requests_refused_total";
    head(p, name, "counter", "Requests that were refused, by reason.");
    value(p, name, "reason=\"invalid\"", m->refused_invalid);
    value(p, name, "reason=\"queue_full\"", m->refused_full);
    value(p, name, "reason=\"shutting_down\"", m->refused_draining);
    single(p, "cedar_requests_running", "gauge", "Requests on the engine.", m->running);
    single(p, "cedar_requests_waiting", "gauge", "Requests in line.", m->waiting);
}

static void tokens(const page *p, const serve_metrics *m) {
    single(p, "cedar_prompt_tokens_total", "counter", "Prompt tokens of admitted requests, cached ones included.",
           m->prompt_tokens);
    single(p, "cedar_generation_tokens_total", "counter", "Tokens produced.", m->generated_tokens);
    single(p, "cedar_prefix_cache_queries_total", "counter", "Prompt tokens looked for in the prefix cache.",
           m->prefix_queries);
    single(p, "cedar_prefix_cache_hits_total", "counter", "Prompt tokens adopted from the prefix cache.",
           m->prefix_hits);
    single(p, "cedar_engine_steps_total", "counter", "Steps of the engine.", m->steps);
    single(p, "cedar_kv_pages", "gauge", "KV pages in the pool.", m->pages);
    single(p, "cedar_kv_pages_free", "gauge", "KV pages that nothing holds.", m->pages_free);
    single(p, "cedar_kv_pages_cached", "gauge", "KV pages that the prefix cache holds.", m->pages_cached);
}

char *serve_metrics_text(const serve_metrics *m, const char *model) {
    char *out = NULL;
    size_t bytes = 0;
    const page p = { open_memstream(&out, &bytes), model };
    if (!p.to) return NULL;
    requests(&p, m);
    tokens(&p, m);
    histogram(&p, "cedar_time_to_first_token_seconds", "Arrival to first token.", &m->ttft);
    histogram(&p, "cedar_inter_token_latency_seconds",
              "(last - first token) / (tokens - 1), one value a request.", &m->itl);
    histogram(&p, "cedar_request_latency_seconds", "Arrival to last token.", &m->e2el);
    if (fclose(p.to) == 0) return out;
    free(out);
    return NULL;
}
