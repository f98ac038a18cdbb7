#include "base/str.h"

#include <stdio.h>

/* How many bytes the character at p takes: > 0; 0: invalid; -1: valid so far, but cut off. */
static int utf8_char(const unsigned char *p, size_t len)
{
    unsigned char c = p[0];
    if (c < 0x80) {
        return 1;
    }
    int need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4) {
        return 0;
    }
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;  /* no overlong forms */
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf; /* no surrogates, nothing above U+10FFFF */
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= len) {
            return -1;
        }
        if (p[i] < low || p[i] > high) {
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return need;
}

bool sg_utf8_valid(const void *data, size_t len)
{
    const unsigned char *p = data;
    size_t i = 0;
    uint64_t eight;
    while (i < len) {
        /* Most text is plain. */
        while (len - i >= sizeof eight && (memcpy(&eight, p + i, sizeof eight), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            i += sizeof eight;
        }
        if (i == len) {
            break;
        }
        int n = utf8_char(p + i, len - i);
        if (n <= 0) {
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

size_t sg_utf8_whole(const void *data, size_t len)
{
    const unsigned char *p = data;
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = p[len - back];
        if (c < 0x80) {
            break;
        }
        if (c >= 0xc0) {
            return utf8_char(p + len - back, back) < 0 ? len - back : len;
        }
    }
    return len;
}

bool sg_parse_int(const char *s, int64_t min, int64_t max, int64_t *ret)
{
    bool negative = *s == '-';
    const char *p = negative ? s + 1 : s;
    int64_t v = 0;
    if (*p == '\0') {
        return false;
    }
    for (; *p != '\0'; p++) {
        if (*p < '0' || *p > '9') {
            return false;
        }
        int digit = *p - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, digit, &v)) {
            return false; /* counts downwards: INT64_MIN has no positive twin */
        }
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, v, &v)) {
        return false;
    }
    if (v < min || v > max) {
        return false;
    }
    *ret = v;
    return true;
}

/* "12", "1.5" at *s, in units of 10^-6; moves *s behind it. */
static bool parse_micro(const char **s, int64_t *ret)
{
    const char *p = *s;
    int64_t v = 0;
    int digits = 0;
    for (; *p >= '0' && *p <= '9'; p++, digits++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v)) {
            return false;
        }
    }
    int decimals = 0;
    if (digits > 0 && *p == '.') {
        for (p++; *p >= '0' && *p <= '9'; p++, decimals++) {
            if (decimals == 6 || __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v)) {
                return false;
            }
        }
        if (decimals == 0) {
            return false;
        }
    }
    for (; decimals < 6; decimals++) {
        if (__builtin_mul_overflow(v, 10, &v)) {
            return false;
        }
    }
    *s = p;
    *ret = v;
    return digits > 0;
}

struct unit {
    const char *name;
    int64_t factor;
};

/* A number with one of the units; what does not come out whole is refused, not rounded. */
static bool parse_united(const char *s, const struct unit *units, size_t n, int64_t *ret)
{
    int64_t micro;
    if (!parse_micro(&s, &micro)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (sg_streq(s, units[i].name)) {
            int64_t whole = micro / 1000000;
            int64_t part = micro % 1000000 * units[i].factor; /* < 10^6 * 2^40: no overflow */
            if (part % 1000000 != 0 || __builtin_mul_overflow(whole, units[i].factor, &whole)) {
                return false;
            }
            return !__builtin_add_overflow(whole, part / 1000000, ret);
        }
    }
    return false;
}

bool sg_parse_duration_ms(const char *s, int64_t *ret)
{
    static const struct unit units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    int64_t v;
    if (!parse_united(s, units, SG_COUNT_OF(units), &v)) {
        return false;
    }
    *ret = v;
    return true;
}

bool sg_parse_size(const char *s, int64_t *ret)
{
    static const struct unit units[] = {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    int64_t v;
    if (!parse_united(s, units, SG_COUNT_OF(units), &v)) {
        return false;
    }
    *ret = v;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool sg_percent_decode(const char *raw, size_t len, bool plus, char *out, size_t *ret_len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = raw[i];
        if (c == '%') {
            int high = i + 2 < len ? hex_digit(raw[i + 1]) : -1;
            int low = i + 2 < len ? hex_digit(raw[i + 2]) : -1;
            if (high < 0 || low < 0 || (high == 0 && low == 0)) {
                return false;
            }
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        out[n++] = c;
    }
    out[n] = '\0';
    *ret_len = n;
    return true;
}

void sg_format_double(double v, char out[SG_DOUBLE_LEN])
{
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(out, SG_DOUBLE_LEN - 2, "%.*g", digits, v);
        double back = strtod(out, NULL);
        if (back >= v && back <= v) {
            break;
        }
    }
    if (strpbrk(out, ".eEn") == NULL) {
        memcpy(out + strlen(out), ".0", 3); /* stays a real number for whoever reads it */
    }
}
