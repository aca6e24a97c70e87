/* Owns the way from text to numbers where it has to be exact: decimals of a unit of time, and dates. */
#include <math.h>
#include <stdlib.h>

#include "traces/traces_int.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Numbers with an exponent, as some programs print small ones. */
static bool parse_exponent(const char *text, int64_t unit_ns, int64_t max_ns, int64_t *ns) {
    char *end;
    double x = strtod(text, &end);
    if (*end || !(x >= 0) || !(x * (double)unit_ns <= (double)max_ns)) return false;
    double whole = floor(x);
    *ns = (int64_t)whole * unit_ns + llround((x - whole) * (double)unit_ns);
    return *ns <= max_ns;
}

bool traces_decimal_parse(const char *text, int64_t unit_ns, int64_t max_ns, int64_t *ns) {
    const char *p = text;
    int64_t whole = 0, part = 0, scale = unit_ns;
    if (!is_digit(*p)) return false;
    for (; is_digit(*p); p++) {
        whole = 10 * whole + (*p - '0');
        if (whole > max_ns / unit_ns) return false;
    }
    if (*p == '.') p++;
    for (; is_digit(*p); p++) {
        /* The first digit below a nanosecond rounds; the rest do not matter. */
        if (scale >= 10) part += (*p - '0') * (scale /= 10);
        else if (scale == 1) part += (*p >= '5'), scale = 0;
    }
    if (*p == 'e' || *p == 'E') return parse_exponent(text, unit_ns, max_ns, ns);
    *ns = whole * unit_ns + part;
    return !*p && *ns <= max_ns;
}

/* `count` digits as a number in [lo, hi]; moves *p. */
static bool digits(const char **p, int count, int lo, int hi, int *out) {
    int x = 0;
    for (; count; count--, ++*p) {
        if (!is_digit(**p)) return false;
        x = 10 * x + (**p - '0');
    }
    *out = x;
    return x >= lo && x <= hi;
}

static bool sign(const char **p, char c) {
    return **p == c && ++*p;
}

static bool is_leap(int year) {
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static int month_days(int year, int month) {
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    return days[month - 1] + (month == 2 && is_leap(year));
}

/* Days from 1970-01-01 to a date of the Gregorian calendar. */
static int64_t days_from_civil(int year, int month, int day) {
    int64_t y = year - 1, n = 365 * y + y / 4 - y / 100 + y / 400 + day - 1 - 719162;
    for (int m = 1; m < month; m++) n += month_days(year, m);
    return n;
}

bool traces_stamp_parse(const char *text, int64_t *ns) {
    const char *p = text;
    int year, month, day, hour, minute, second, zone_hour = 0, zone_minute = 0, zone = 1;
    int64_t part = 0, scale = NS_PER_S;
    /* 2096 is what START_S_MAX allows. */
    if (!digits(&p, 4, 1970, 2096, &year) || !sign(&p, '-') || !digits(&p, 2, 1, 12, &month) || !sign(&p, '-') ||
        !digits(&p, 2, 1, 31, &day) || !(sign(&p, 'T') || sign(&p, ' ')) || !digits(&p, 2, 0, 23, &hour) ||
        !sign(&p, ':') || !digits(&p, 2, 0, 59, &minute) || !sign(&p, ':') || !digits(&p, 2, 0, 60, &second) ||
        day > month_days(year, month))
        return false;
    if (*p == '.') {
        p++;
        if (!is_digit(*p)) return false;
        for (; is_digit(*p) && scale >= 10; p++) part += (*p - '0') * (scale /= 10);
        if (is_digit(*p)) return false;
    }
    if (*p == 'Z') {
        p++;
    } else if (*p == '+' || *p == '-') {
        zone = *p++ == '-' ? -1 : 1;
        if (!digits(&p, 2, 0, 23, &zone_hour) || !sign(&p, ':') || !digits(&p, 2, 0, 59, &zone_minute)) return false;
    }
    if (*p) return false;
    int64_t s = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second -
                zone * (zone_hour * 3600 + zone_minute * 60);
    *ns = s * NS_PER_S + part;
    return s >= 0 && s <= START_S_MAX;
}
