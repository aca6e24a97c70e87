/* Scenario files, one or several: sim/cli_scenario.h. */
#include "sim/cli_scenario.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { SCENARIO_BYTES_MAX = 16 << 20, PATH_BYTES = 2048 };

static const char between_texts[] = "\n\f\n", between_names[] = " + ";

/* --- reading ------------------------------------------------------------------------------------------------------ */

static cedar_status read_part(const char *path, const char *data_dir, bool alone, char **text, size_t *bytes,
                              cedar_err *err) {
    char found[PATH_BYTES];
    int n = snprintf(found, sizeof found, "%s", path);
    if (access(found, R_OK)) n = snprintf(found, sizeof found, "%s/%s", data_dir, path);
    if (n >= (int)sizeof found || access(found, R_OK))
        return cedar_fail(err, CEDAR_E_IO, "scenario %s: no such file, neither here nor under %s", path, data_dir);
    cedar_status st = cedar_file_read(found, SCENARIO_BYTES_MAX, text, bytes, err);
    if (st) return st;
    size_t length = strlen(*text);              /* what the database can hold */
    bool compiled = (*text)[0] == '\033';       /* the sandbox has a better word for it */
    if (length < *bytes && !compiled)
        return cedar_fail(err, CEDAR_E_SCRIPT, "%s: byte %zu is 0; a scenario must be text", path, length + 1);
    if (!alone && (compiled || strstr(*text, between_texts)))
        return cedar_fail(err, CEDAR_E_SCRIPT, "%s: holds %s, which stands between scenarios that are played together; "
                          "play it alone", path, compiled ? "compiled Lua" : "a line of one form feed");
    return CEDAR_OK;
}

/* `more` behind *to, which has `at` bytes, with `gap` in front unless it is the first. */
static cedar_status append(char **to, size_t *at, const char *gap, const char *more, size_t bytes, cedar_err *err) {
    size_t gap_bytes = *to ? strlen(gap) : 0;
    char *grown = cedar_realloc(*to, *at + gap_bytes + bytes + 1, 1);
    if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for a scenario of %zu bytes", bytes);
    memcpy(grown + *at, gap, gap_bytes);
    memcpy(grown + *at + gap_bytes, more, bytes);
    *at += gap_bytes + bytes;
    grown[*at] = 0;
    *to = grown;
    return CEDAR_OK;
}

cedar_status cedar_cli_scenario_read(char *const *paths, int count, const char *data_dir, cedar_cli_scenario *out,
                                     cedar_err *err) {
    cedar_cli_scenario s = { 0 };
    size_t name_bytes = 0;
    cedar_status st = CEDAR_OK;
    for (int i = 0; i < count && !st; i++) {
        char *text = NULL;
        size_t bytes = 0;
        st = read_part(paths[i], data_dir, count == 1, &text, &bytes, err);
        if (!st) st = append(&s.text, &s.bytes, between_texts, text, bytes, err);
        if (!st) st = append(&s.path, &name_bytes, between_names, paths[i], strlen(paths[i]), err);
        cedar_free(text);
    }
    if (st) cedar_cli_scenario_free(&s);
    else *out = s;
    return st;
}

void cedar_cli_scenario_free(cedar_cli_scenario *s) {
    cedar_free(s->path);
    cedar_free(s->text);
    *s = (cedar_cli_scenario){ 0 };
}

/* --- playing ------------------------------------------------------------------------------------------------------ */

static size_t count_of(const char *text, const char *gap) {
    size_t n = 1;
    while ((text = strstr(text, gap))) {
        n++;
        text += strlen(gap);
    }
    return n;
}

cedar_status cedar_cli_scenario_play(const cedar_cli_scenario *s, const cedar_script_opts *opts,
                                     const cedar_script_host *host, cedar_err *err) {
    size_t names = count_of(s->path, between_names), parts = names > 1 ? count_of(s->text, between_texts) : 1;
    bool named = names == parts;                /* else a name holds " + ", and all are called by the whole */
    const char *text = s->text, *path = s->path;
    cedar_status st = CEDAR_OK, failed = CEDAR_OK;
    for (size_t i = 0; i < parts && !st; i++) {
        const char *end = i + 1 < parts ? strstr(text, between_texts) : s->text + s->bytes;
        size_t name_bytes = named && i + 1 < parts ? (size_t)(strstr(path, between_names) - path) : strlen(path);
        char name[PATH_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)name_bytes, path);
        cedar_script_opts o = *opts;
        o.name = name;
        o.text = text;
        o.bytes = (size_t)(end - text);
        st = cedar_script_run(&o, host, err);
        if (st == CEDAR_E_EXPECT) {
            failed = st;
            st = CEDAR_OK;
        }
        text = end + strlen(between_texts);
        if (named) path += name_bytes + strlen(between_names);
    }
    return st ? st : failed;
}
