/* Parts of the HTML report: escaped text, embedded files, tables, figures, choices. */
#include "reports/html_int.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

int page_shared(const page *p, int limit) {
    int runs = p->run_count < PAGE_RUNS ? p->run_count : PAGE_RUNS;
    return runs > PAGE_FULL_RUNS ? limit * PAGE_FULL_RUNS / runs : limit;
}

int page_step_rows(const page *p) {
    int runs = p->run_count < 1 ? 1 : p->run_count > PAGE_FULL_RUNS ? PAGE_FULL_RUNS : p->run_count;
    return page_shared(p, PAGE_STEPS * PAGE_FULL_RUNS / runs);
}

/* --- escaping ----------------------------------------------------------------------------------------------------- */

/* Controls other than line ends have no place in HTML; bytes that are not UTF-8 come as U+FFFD already. */
static uint32_t printable(uint32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || (c & 0xFFFE) == 0xFFFE ? 0xFFFD : c;
}

void page_char(FILE *to, uint32_t c) {
    switch (c) {
    case '<': fputs("&lt;", to); break;
    case '>': fputs("&gt;", to); break;
    case '&': fputs("&amp;", to); break;
    case '"': fputs("&quot;", to); break;
    case '\'': fputs("&#39;", to); break;
    default: reports_utf8_put(to, printable(c));
    }
}

void page_text(FILE *to, const char *s) {
    for (uint32_t c; (c = reports_utf8_next(&s));) page_char(to, c);
}

/* JSON string that cannot end a script element either. */
void page_json_text(FILE *to, const char *s) {
    fputc('"', to);
    for (uint32_t c; (c = reports_utf8_next(&s));) {
        if (c < 0x20 || strchr("<>&\"\\'", (int)(c < 0x80 ? c : 'x')) || c == 0x2028 || c == 0x2029)
            fprintf(to, "\\u%04x", c);
        else reports_utf8_put(to, printable(c));
    }
    fputc('"', to);
}

void page_json_value(FILE *to, sqlite3_stmt *q, int column) {
    double x;
    switch (sqlite3_column_type(q, column)) {
    case SQLITE_INTEGER: fprintf(to, "%lld", (long long)sqlite3_column_int64(q, column)); return;
    case SQLITE_FLOAT:
        x = sqlite3_column_double(q, column);
        if (isfinite(x)) fprintf(to, "%.7g", x);
        else fputs("null", to);
        return;
    case SQLITE_NULL: fputs("null", to); return;
    default: page_json_text(to, reports_column_text(q, column));
    }
}

/* A word of a shell command, quoted when it has to be. */
void page_shell_word(FILE *to, const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+-";
    if (*word && word[strspn(word, plain)] == 0) {
        fputs(word, to);
        return;
    }
    page_char(to, '\'');
    for (uint32_t c; (c = reports_utf8_next(&word));) {
        if (c == '\'') page_text(to, "'\\''");
        else page_char(to, c);
    }
    page_char(to, '\'');
}
/* --- embedded files --------------------------------------------------------------------------------------------- */

void page_file(FILE *to, const char *from, const char *end) { fwrite(from, 1, (size_t)(end - from), to); }

void page_script_hash(FILE *to, const char *from, const char *end) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t d[33] = { 0 };      /* 32 bytes and a zero: 11 groups of 3 */
    cedar_sha256 hash;
    cedar_sha256_init(&hash);
    cedar_sha256_add(&hash, from, (size_t)(end - from));
    cedar_sha256_digest(&hash, d);
    fputs(" &#39;sha256-", to);
    for (int i = 0; i < 33; i += 3) {
        uint32_t v = (uint32_t)d[i] << 16 | (uint32_t)d[i + 1] << 8 | d[i + 2];
        for (int k = 18; k >= (i == 30 ? 6 : 0); k -= 6) fputc(digits[v >> k & 63], to);
    }
    fputs("=&#39;", to);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* How one table is written: ?1 of its query is `bound`, which is also part of its id when there is a title of its
 * own. */
typedef struct shape {
    const reports_table *table;
    const char *title;
    int64_t bound;
    bool own_title, fold;
} shape;

/* Tables with something to choose by can be sorted and filtered. */
static bool explored(const reports_table *t) {
    int i = 0;
    while (t->columns[i].head && t->columns[i].kind != REPORTS_CHOICE) i++;
    return t->columns[i].head != NULL;
}

static void put_heading_cell(FILE *to, const reports_column *c) {
    fprintf(to, "<th scope=\"col\"%s%s>", reports_is_text(c->kind) ? "" : " class=\"n\"",
            c->kind == REPORTS_CHOICE ? " data-filter=\"\"" : "");
    page_text(to, c->head);
    fputs("</th>", to);
}

static void put_table_head(const page *p, const shape *s) {
    if (s->fold) {
        fputs("<details class=\"data\"><summary>Data: ", p->to);
        page_text(p->to, s->title);
        fputs("</summary>\n", p->to);
    }
    fprintf(p->to, "<div class=\"scroll%s\" tabindex=\"0\" role=\"region\" aria-label=\"",
            explored(s->table) ? " tall" : "");
    page_text(p->to, s->title);
    fprintf(p->to, "\"><table id=\"t-%s", s->table->id);
    if (s->own_title) fprintf(p->to, "-%lld", (long long)s->bound);
    fprintf(p->to, "\"%s><caption>", explored(s->table) ? " class=\"explore\"" : "");
    page_text(p->to, s->title);
    if (s->table->note[0]) {
        fputs(" <small>", p->to);
        page_text(p->to, s->table->note);
        fputs("</small>", p->to);
    }
    fputs("</caption><thead><tr>", p->to);
    for (int i = 0; s->table->columns[i].head; i++) put_heading_cell(p->to, &s->table->columns[i]);
    fputs("</tr></thead><tbody>\n", p->to);
}

static void put_link(FILE *to, const char *text) {
    bool safe = !strncmp(text, "https://", 8);
    if (safe) {
        fputs("<a rel=\"noreferrer\" href=\"", to);
        page_text(to, text);
        fputs("\">", to);
    }
    page_text(to, safe ? text + 8 : text);
    if (safe) fputs("</a>", to);
}

/* The bare number of a cell lets the script sort, and draw what is shown. */
static void put_cell(const page *p, const reports_table *t, sqlite3_stmt *q, int i) {
    char text[REPORTS_CELL_BYTES];
    reports_kind kind = t->columns[i].kind;
    if (reports_is_text(kind)) {
        fputc('>', p->to);
        if (kind == REPORTS_LINK) put_link(p->to, reports_column_text(q, i));
        else page_text(p->to, reports_column_text(q, i));
        return;
    }
    fputs(" class=\"n\"", p->to);
    if (explored(t) && sqlite3_column_type(q, i) != SQLITE_NULL) {
        fputs(" data-v=\"", p->to);
        page_json_value(p->to, q, i);
        fputc('"', p->to);
    }
    reports_format(kind, q, i, text);
    fputc('>', p->to);
    page_text(p->to, text);
}

static void put_table_row(const page *p, const reports_table *t, sqlite3_stmt *q) {
    fputs("<tr>", p->to);
    for (int i = 0; t->columns[i].head; i++) {
        fputs(i == 0 ? "<th scope=\"row\"" : "<td", p->to);
        put_cell(p, t, q, i);
        fputs(i == 0 ? "</th>" : "</td>", p->to);
    }
    fputs("</tr>\n", p->to);
}

static cedar_status put_shape(const page *p, const shape *s, bool *any, cedar_err *err) {
    sqlite3_stmt *q;
    bool row, first = true;
    cedar_status st = reports_prepare(p->db, p->path, s->table->sql, &q, err);
    if (!st && sqlite3_bind_parameter_count(q)) sqlite3_bind_int64(q, 1, s->bound);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        if (first) put_table_head(p, s);
        first = false;
        put_table_row(p, s->table, q);
    }
    sqlite3_finalize(q);
    if (!first) fputs(s->fold ? "</tbody></table></div></details>\n" : "</tbody></table></div>\n", p->to);
    if (any) *any = !first;
    return st;
}

cedar_status page_table(const page *p, const char *id, bool fold, bool *any, cedar_err *err) {
    const reports_table *t = reports_table_get(id);
    shape s = { .table = t, .title = t->title, .fold = fold };
    return put_shape(p, &s, any, err);
}

cedar_status page_table_bound(const page *p, const char *id, int64_t bound, const char *title, cedar_err *err) {
    const reports_table *t = reports_table_get(id);
    shape s = { .table = t, .title = title ? title : t->title, .bound = bound, .own_title = title != NULL };
    return put_shape(p, &s, NULL, err);
}

cedar_status page_tables(const page *p, const char *const *ids, bool fold, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (; *ids && !st; ids++) st = page_table(p, *ids, fold, NULL, err);
    return st;
}

/* --- figures, sections, choices ----------------------------------------------------------------------------------- */

void page_chart(const page *p, const char *id, const char *title, const char *about) {
    fprintf(p->to,
            "<figure id=\"fig-%s\"><figcaption><b>%s</b> <span>%s</span></figcaption><div class=\"chart\">"
            "<canvas id=\"%s\" role=\"img\" aria-label=\"%s. %s The numbers are in the tables of this section.\">"
            "</canvas></div></figure>\n",
            id, title, about, id, title, about);
}

void page_section(const page *p, const char *id, const char *title, const char *intro) {
    fprintf(p->to, "<section id=\"%s\"><h2>%s</h2>\n<p class=\"intro\">%s</p>\n", id, title, intro);
}

void page_section_end(const page *p) { fputs("</section>\n", p->to); }

cedar_status page_choice(const page *p, const char *id, const char *label, const char *sql, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    fprintf(p->to, "<p class=\"choice\"><label for=\"%s\">%s</label> <select id=\"%s\">", id, label, id);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputs("<option value=\"", p->to);
        page_text(p->to, reports_column_text(q, 0));
        fputs("\">", p->to);
        page_text(p->to, reports_column_text(q, 1));
        fputs("</option>", p->to);
    }
    fputs("</select></p>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

cedar_status page_one_text(const page *p, const char *sql, char *out, size_t bytes, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    snprintf(out, bytes, "%s", !st && row ? reports_column_text(q, 0) : "");
    sqlite3_finalize(q);
    return st;
}
