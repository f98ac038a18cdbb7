/* Values of header fields: whatever a client writes, what is taken is sound and means the same when it is
 * read again. */
#include "fuzz.h"

#include <string.h>

#include "base/digest.h"
#include "base/str.h"
#include "http/accept.h"
#include "http/fields.h"

static void check_tags(const char *text)
{
    static int (*const parsers[])(const char *, struct sg_condition *,
                                  struct sg_error *) = {sg_field_if_match, sg_field_if_none_match};
    for (size_t i = 0; i < SG_COUNT_OF(parsers); i++) {
        struct sg_error err = {0};
        struct sg_condition c;
        if (parsers[i](text, &c, &err) < 0) {
            fuzz_require(err.code == SG_INVALID_REQUEST && err.field[0] != '\0', "a refusal names the field");
            continue;
        }
        fuzz_require(c.n <= SG_CONDITION_TAGS_MAX, "so many tags");
        for (unsigned k = 0; k < c.n; k++) {
            const struct sg_file_stat st = {.dev = c.tags[k].dev,
                                            .ino = c.tags[k].ino,
                                            .mtime_ns = c.tags[k].mtime_ns,
                                            .ctime_ns = c.tags[k].ctime_ns,
                                            .size = c.tags[k].size};
            char etag[SG_ETAG_MAX];
            sg_file_etag(&st, etag);
            fuzz_require(strstr(text, etag) != NULL, "a tag is the text it was read from");
            fuzz_require(sg_condition_holds(&c, &st) == (c.kind == SG_IF_MATCHES), "and fits its own file");
        }
    }
}

static void check_date(const char *text)
{
    char again[SG_HTTP_DATE_LEN];
    int64_t seconds;
    if (!sg_field_date_parse(text, &seconds))
        return;
    sg_field_date(seconds, again);
    fuzz_require(strcmp(again, text) == 0, "a date is the text it was read from");
}

static void check_digest(const char *text)
{
    struct sg_error err = {0};
    struct sg_digests d = {0};
    if (sg_field_digest("Repr-Digest", text, &d, &err) < 0) {
        fuzz_require(err.code == SG_INVALID_REQUEST, "a refusal says so");
        return;
    }
    fuzz_require(sg_field_digest("Repr-Digest", text, &d, NULL) == 0, "a digest does not contradict itself");
    struct sg_digester *g = sg_digester_new(&d);
    fuzz_require((g != NULL) == (d.sha256_given || d.sha512_given), "something to compute");
    sg_digester_add(g, "x", 1);
    (void)sg_digester_check(g, NULL);
    (void)sg_digester_free(g);
}

static void check_range(const char *text)
{
    static const uint64_t sizes[] = {0, 1, 1000, UINT64_MAX};
    for (size_t i = 0; i < SG_COUNT_OF(sizes); i++) {
        struct sg_byte_range g;
        if (sg_field_range(text, sizes[i], &g, NULL) < 0)
            continue;
        fuzz_require(g.first <= sizes[i] && g.len <= sizes[i] - g.first, "inside of the file");
        fuzz_require(g.partial ? g.len > 0 : g.first == 0 && g.len == sizes[i],
                     "a part has bytes, else it is the whole");
    }
}

static void check_disposition(const char *text)
{
    char *value = sg_field_disposition(text, ".tar");
    size_t quotes = 0;
    for (const char *c = value; *c != '\0'; c++) {
        fuzz_require(*c >= 0x20 && *c < 0x7f && *c != '\\', "visible ASCII without escapes");
        quotes += *c == '"';
    }
    fuzz_require(quotes == 2 && strncmp(value, "attachment; ", 12) == 0, "one quoted name");
    free(value);
    size_t len = strlen(text), decoded_len = 0;
    char *encoded = sg_percent_encode(text, len);
    char *decoded = sg_xcalloc(strlen(encoded) + 1, 1);
    fuzz_require(sg_percent_decode(encoded, strlen(encoded), false, decoded, &decoded_len) &&
                     decoded_len == len && memcmp(decoded, text, len) == 0,
                 "names survive their escapes");
    free(decoded);
    free(encoded);
}

static void check_accept(const char *text)
{
    static const char *const types[] = {"application/json", "application/x-ndjson", "text/event-stream",
                                        NULL};
    const struct sg_header h = {"Accept", text};
    size_t best = sg_accept_best(&h, 1, types);
    bool any = false;
    fuzz_require(best < 3, "one of the types");
    for (size_t i = 0; i < 3; i++)
        any |= sg_accepts(&h, 1, types[i]);
    fuzz_require(!any || sg_accepts(&h, 1, types[best]), "the best is one that is taken");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = sg_xstrndup((const char *)data, size);
    struct sg_file_stat st = {.ino = 1};
    int64_t n;
    check_tags(text);
    check_date(text);
    check_digest(text);
    check_range(text);
    check_disposition(text);
    check_accept(text);
    (void)sg_field_if_range(text, &st);
    if (sg_parse_int(text, 0, INT64_MAX, &n))
        fuzz_require(n >= 0, "an event's number");
    if (sg_parse_duration_ms(text, &n) || sg_parse_size(text, &n))
        fuzz_require(n >= 0, "no negative durations and sizes");
    free(text);
    return 0;
}
