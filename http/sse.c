/* Server-sent events (the event stream format of the HTML standard), bytes as they come: lines end in \n, \r or \r\n,
 * data lines of an event are joined by \n, an empty line ends it, everything else is passed over. */
#include <string.h>

#include "base/mem.h"
#include "http/http_int.h"

static cedar_status make_room(http_sse *s, size_t more) {
    size_t need = s->data + s->line + more;
    if (need > s->limit) return CEDAR_E_BUDGET;
    if (need <= s->capacity) return CEDAR_OK;
    size_t capacity = s->capacity ? s->capacity : 512;
    while (capacity < need) capacity *= 2;
    char *grown = cedar_realloc(s->text, capacity, 1);
    if (!grown) return CEDAR_E_OOM;
    s->text = grown;
    s->capacity = capacity;
    return CEDAR_OK;
}

static cedar_status dispatch(http_sse *s) {
    size_t bytes = s->data;
    bool any = s->any_data;
    s->data = 0;
    s->any_data = false;
    if (!any) return CEDAR_OK;
    return s->event(s->self, s->text, bytes - 1) ? CEDAR_OK : CEDAR_E_INTERRUPT;
}

/* The line under way is complete: its data joins the event's. */
static cedar_status end_line(http_sse *s) {
    char *line = s->text + s->data;
    size_t n = s->line, skip = 5;
    s->line = 0;
    if (n == 0) return dispatch(s);
    if (n < skip ? n != 4 || memcmp(line, "data", 4) : memcmp(line, "data:", skip)) return CEDAR_OK;
    if (n < skip) skip = n;
    if (n > skip && line[skip] == ' ') skip++;
    cedar_status st = make_room(s, n - skip + 1);
    if (st) return st;
    line = s->text + s->data;
    memmove(line, line + skip, n - skip);
    line[n - skip] = '\n';
    s->data += n - skip + 1;
    s->any_data = true;
    return CEDAR_OK;
}

static cedar_status add(http_sse *s, const char *bytes, size_t count) {
    cedar_status st = make_room(s, count);
    if (st) return st;
    memcpy(s->text + s->data + s->line, bytes, count);
    s->line += count;
    if (!s->begun && s->line >= 3) {
        s->begun = true;
        if (memcmp(s->text, "\xEF\xBB\xBF", 3) == 0) {
            memmove(s->text, s->text + 3, s->line - 3);
            s->line -= 3;
        }
    }
    return CEDAR_OK;
}

cedar_status http_sse_feed(http_sse *s, const char *bytes, size_t count) {
    cedar_status st = CEDAR_OK;
    for (size_t at = 0; at < count && !st;) {
        if (s->cr && bytes[at] == '\n') at++;
        s->cr = false;
        size_t n = 0;
        while (at + n < count && bytes[at + n] != '\n' && bytes[at + n] != '\r') n++;
        if (n) st = add(s, bytes + at, n);
        at += n;
        if (st || at == count) break;
        s->cr = bytes[at++] == '\r';
        s->begun = true;
        st = s->text ? end_line(s) : CEDAR_OK;
    }
    return st;
}

cedar_status http_sse_end(http_sse *s) {
    cedar_status st = s->line ? end_line(s) : CEDAR_OK;
    return st ? st : dispatch(s);
}

void http_sse_restart(http_sse *s) {
    s->data = s->line = 0;
    s->cr = s->begun = s->any_data = false;
}

void http_sse_free(http_sse *s) {
    cedar_free(s->text);
    s->text = NULL;
    s->capacity = 0;
}
