#include "http/fields.h"

#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "base/digest.h"
#include "base/base64.h"
#include "base/str.h"

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* ---- entity tags ---- */

/* One `"..."` or `W/"..."`; *p moves behind it. False: it is none. */
static bool take_tag(const char **p, bool *weak, const char **inside, size_t *len)
{
    const char *s = *p;

    *weak = s[0] == 'W' && s[1] == '/';
    s += *weak ? 2 : 0;
    if (*s++ != '"')
        return false;
    *inside = s;
    while (*s && *s != '"' && (unsigned char)*s > 0x20 && *s != 0x7f)
        s++;
    if (*s != '"')
        return false;
    *len = (size_t)(s - *inside);
    *p = s + 1;
    return true;
}

static int parse_tags(const char *name, const char *text, bool weak_counts, struct sg_condition *ret, struct sg_error *err)
{
    const char *p = skip_blanks(text);
    bool any = false;

    while (*p) {
        bool weak;
        const char *inside;
        size_t len;
        if (*p == ',') { /* empty members of a list are allowed */
            p = skip_blanks(p + 1);
            continue;
        }
        if (!take_tag(&p, &weak, &inside, &len))
            return sg_error_field(err, SG_INVALID_REQUEST, name, "must be * or a list of entity tags in double quotes");
        any = true;
        if ((!weak || weak_counts) && ret->n < SG_CONDITION_TAGS_MAX && sg_file_tag_parse(inside, len, &ret->tags[ret->n]))
            ret->n++;
        else if (ret->n == SG_CONDITION_TAGS_MAX)
            return sg_error_field(err, SG_INVALID_REQUEST, name, "has more than %d entity tags", SG_CONDITION_TAGS_MAX);
        p = skip_blanks(p);
        if (*p && *p != ',')
            return sg_error_field(err, SG_INVALID_REQUEST, name, "must have commas between entity tags");
    }
    return any ? 0 : sg_error_field(err, SG_INVALID_REQUEST, name, "is empty");
}

int sg_field_if_match(const char *text, struct sg_condition *ret, struct sg_error *err)
{
    *ret = (struct sg_condition){.kind = SG_IF_MATCHES};
    if (sg_streq(text, "*")) {
        ret->kind = SG_IF_EXISTS;
        return 0;
    }
    return parse_tags("If-Match", text, false, ret, err);
}

int sg_field_if_none_match(const char *text, struct sg_condition *ret, struct sg_error *err)
{
    *ret = (struct sg_condition){.kind = SG_IF_DIFFERS};
    if (sg_streq(text, "*")) {
        ret->kind = SG_IF_ABSENT;
        return 0;
    }
    return parse_tags("If-None-Match", text, true, ret, err);
}

bool sg_field_if_range(const char *text, const struct sg_file_stat *st)
{
    char etag[SG_ETAG_MAX];

    sg_file_etag(st, etag);
    return sg_streq(text, etag);
}

/* ---- ranges ---- */

/* One digit string, which may say more than fits; false when there is none. */
static bool number(const char **p, uint64_t *ret)
{
    uint64_t v = 0;
    const char *s = *p;

    for (; *s >= '0' && *s <= '9'; s++)
        v = v > UINT64_MAX / 10 - 10 ? UINT64_MAX : v * 10 + (uint64_t)(*s - '0');
    bool any = s != *p;
    *p = s;
    *ret = v;
    return any;
}

int sg_field_range(const char *text, uint64_t size, struct sg_byte_range *ret, struct sg_error *err)
{
    uint64_t first, last;

    *ret = (struct sg_byte_range){.len = size};
    if (!text || strncasecmp(text, "bytes=", 6) != 0)
        return 0;
    const char *p = text + 6;
    bool has_first = number(&p, &first);
    if (*p++ != '-')
        return 0;
    bool has_last = number(&p, &last);
    if (*p != '\0' || (!has_first && !has_last) || (has_first && has_last && last < first))
        return 0;
    if (!has_first) {
        first = last < size ? size - last : 0;
        if (last == 0)
            first = size;
    }
    if (first >= size)
        return sg_error_set(err, SG_RANGE_NOT_SATISFIABLE, "the file has %llu bytes", (unsigned long long)size);
    uint64_t end = has_first && has_last && last < size - 1 ? last + 1 : size;
    *ret = (struct sg_byte_range){.first = first, .len = end - first, .partial = true};
    return 0;
}

/* ---- dates ---- */

static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

void sg_field_date(int64_t seconds, char out[SG_HTTP_DATE_LEN])
{
    struct tm tm = {0};
    time_t t = (time_t)seconds;

    if (!gmtime_r(&t, &tm) || tm.tm_year < -1900 || tm.tm_year > 8099) {
        t = 0; /* sandbox code chose a time that cannot be written */
        (void)gmtime_r(&t, &tm);
    }
    (void)snprintf(out, SG_HTTP_DATE_LEN, "%s, %02u %s %04u %02u:%02u:%02u GMT", days[(unsigned)tm.tm_wday % 7],
                   (unsigned)tm.tm_mday % 100, months[(unsigned)tm.tm_mon % 12], (unsigned)(tm.tm_year + 1900) % 10000,
                   (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
}

bool sg_field_date_parse(const char *text, int64_t *ret_seconds)
{
    char day[4], month[4], again[SG_HTTP_DATE_LEN];
    struct tm tm = {0};

    if (strlen(text) != 29 || sscanf(text, "%3s, %2d %3s %4d %2d:%2d:%2d GMT", day, &tm.tm_mday, month, &tm.tm_year,
                                     &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 7)
        return false;
    tm.tm_year -= 1900;
    while (tm.tm_mon < 12 && !sg_streq(months[tm.tm_mon], month))
        tm.tm_mon++;
    if (tm.tm_mon == 12)
        return false;
    *ret_seconds = timegm(&tm);
    sg_field_date(*ret_seconds, again); /* only what is written exactly so is a date */
    return sg_streq(again, text);
}

/* ---- digests ---- */

/* The bytes between two colons that start at *p. */
static int take_bytes(const char **p, uint8_t *out, size_t out_len)
{
    const char *s = *p;
    const char *end = *s == ':' ? strchr(s + 1, ':') : NULL;
    sg_cleanup(sg_free_p) uint8_t *bytes = NULL;
    size_t len = 0;

    if (!end || sg_base64_decode(s + 1, (size_t)(end - s - 1), 1024, &bytes, &len, NULL) < 0)
        return -1;
    *p = end + 1;
    if (out_len > 0 && len != out_len)
        return -1;
    if (out_len > 0)
        memcpy(out, bytes, len);
    return 0;
}

static int merge_digest(bool *given, uint8_t *have, const uint8_t *now, size_t len)
{
    if (*given && memcmp(have, now, len) != 0)
        return -1;
    *given = true;
    memcpy(have, now, len);
    return 0;
}

/* `key=:base64:` and parameters, which mean nothing here. */
static int take_digest(const char **p, struct sg_digests *ret)
{
    uint8_t bytes[SG_SHA512_LEN];
    const char *key = *p;
    size_t len = strcspn(key, "=,; \t");
    bool is256 = len == 7 && strncmp(key, "sha-256", len) == 0;
    bool is512 = len == 7 && strncmp(key, "sha-512", len) == 0;

    if (len == 0 || key[len] != '=')
        return -1;
    *p = key + len + 1;
    if (take_bytes(p, bytes, is256 ? SG_SHA256_LEN : is512 ? SG_SHA512_LEN : 0) < 0)
        return -1;
    if (**p == ';')
        *p += strcspn(*p, ",");
    if (is256)
        return merge_digest(&ret->sha256_given, ret->sha256, bytes, SG_SHA256_LEN);
    return is512 ? merge_digest(&ret->sha512_given, ret->sha512, bytes, SG_SHA512_LEN) : 0;
}

int sg_field_digest(const char *name, const char *text, struct sg_digests *ret, struct sg_error *err)
{
    const char *p = skip_blanks(text);

    for (;;) {
        if (take_digest(&p, ret) < 0)
            return sg_error_field(err, SG_INVALID_REQUEST, name,
                                  "must be a list like sha-256=:BASE64:, sha-512=:BASE64: that does not contradict itself");
        p = skip_blanks(p);
        if (*p == '\0')
            return 0;
        if (*p++ != ',')
            return sg_error_field(err, SG_INVALID_REQUEST, name, "must have commas between its members");
        p = skip_blanks(p);
    }
}

/* One `key=0..10` of the list; *weight is 0 for what is not ours. False: malformed. */
static bool take_wish(const char **p, bool *is512, unsigned *weight)
{
    const char *key = *p;
    size_t len = strcspn(key, "=,; \t");
    unsigned n = 0;

    if (len == 0 || key[len] != '=' || key[len + 1] < '0' || key[len + 1] > '9')
        return false;
    for (*p = key + len + 1; **p >= '0' && **p <= '9' && n <= 10; ++*p)
        n = 10 * n + (unsigned)(**p - '0');
    bool ours = len == 7 && (strncmp(key, "sha-256", len) == 0 || strncmp(key, "sha-512", len) == 0);
    *is512 = ours && key[4] == '5';
    *weight = ours ? n : 0;
    *p = skip_blanks(*p + (**p == ';' ? strcspn(*p, ",") : 0));
    return n <= 10;
}

void sg_field_want_digest(const char *text, struct sg_digests *ret)
{
    unsigned best = 0, weight;
    bool is512, best512 = false;

    *ret = (struct sg_digests){0};
    for (const char *p = skip_blanks(text);; p = skip_blanks(p + 1)) {
        if (!take_wish(&p, &is512, &weight) || (*p != '\0' && *p != ','))
            return;
        if (weight > best) {
            best = weight;
            best512 = is512;
        }
        if (*p == '\0')
            break;
    }
    ret->sha256_given = best > 0 && !best512;
    ret->sha512_given = best > 0 && best512;
}

char *sg_field_digest_text(const struct sg_digests *d)
{
    sg_cleanup(sg_free_p) char *text =
        d->sha512_given ? sg_base64_encode(d->sha512, sizeof d->sha512, NULL) : sg_base64_encode(d->sha256, sizeof d->sha256, NULL);

    return sg_xasprintf("sha-%s=:%s:", d->sha512_given ? "512" : "256", text);
}

/* ---- names ---- */

static bool unreserved(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("-._~", c));
}

char *sg_percent_encode(const char *bytes, size_t len)
{
    static const char hex[] = "0123456789ABCDEF";
    char *out = sg_xcalloc(3 * len + 1, 1), *o = out;

    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (unreserved(c) || c == '/') {
            *o++ = (char)c;
        } else {
            *o++ = '%';
            *o++ = hex[c >> 4];
            *o++ = hex[c & 15];
        }
    }
    return out;
}

/* The last component that names something. */
static char *base_name(const char *path, const char *suffix)
{
    size_t end = strlen(path);

    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t at = end;
    while (at > 0 && path[at - 1] != '/')
        at--;
    sg_cleanup(sg_free_p) char *name = sg_xstrndup(path + at, end - at);
    bool none = name[0] == '\0' || sg_streq(name, ".") || sg_streq(name, "..");
    return sg_xasprintf("%s%s", none ? "workspace" : name, suffix);
}

char *sg_field_disposition(const char *path, const char *suffix)
{
    sg_cleanup(sg_free_p) char *name = base_name(path, suffix);
    sg_cleanup(sg_free_p) char *plain = sg_xstrdup(name);
    bool utf8 = sg_utf8_valid(name, strlen(name)), odd = false;

    for (char *p = plain; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c >= 0x20 && c < 0x7f && !strchr("\"\\%", c))
            continue;
        odd = true;
        *p = '_';
    }
    if (!odd || !utf8)
        return sg_xasprintf("attachment; filename=\"%s\"", plain);
    sg_cleanup(sg_free_p) char *encoded = sg_percent_encode(name, strlen(name));
    return sg_xasprintf("attachment; filename=\"%s\"; filename*=UTF-8''%s", plain, encoded);
}
