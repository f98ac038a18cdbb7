/* Reading a file of a lease: conditions, one range, and a body that moves from descriptor to socket. */
#include "http/routes_files_priv.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

struct range {
    uint64_t first, len;
    bool partial;
};

/* One digit string; false when there is none or it is absurd. */
static bool number(const char **p, uint64_t *ret)
{
    uint64_t v = 0;
    const char *s = *p;

    while (*s >= '0' && *s <= '9') {
        if (v > UINT64_MAX / 10 - 10)
            return false;
        v = v * 10 + (uint64_t)(*s++ - '0');
    }
    bool any = s != *p;
    *p = s;
    *ret = v;
    return any;
}

/* RFC 9110 section 14: a single byte range; other forms are ignored, as a server may. -1: not satisfiable. */
static int parse_range(const char *text, uint64_t size, struct range *ret, struct sg_error *err)
{
    uint64_t first, last;

    *ret = (struct range){.len = size};
    if (!text || strncmp(text, "bytes=", 6) != 0)
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
    *ret = (struct range){.first = first, .len = end - first, .partial = true};
    return 0;
}

static void range_headers(struct sg_request *r, const struct range *g, uint64_t size)
{
    char text[96];

    snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)g->first,
             (unsigned long long)(g->first + g->len - 1), (unsigned long long)size);
    sg_respond_header(r, "Content-Range", text);
}

static int64_t seconds_of(const struct sg_file_stat *st)
{
    return st->mtime_ns / 1000000000 - (st->mtime_ns % 1000000000 < 0);
}

static void validator_headers(struct sg_request *r, const struct sg_file_stat *st)
{
    char etag[SG_ETAG_MAX], date[SG_HTTP_DATE_LEN];

    sg_file_etag(st, etag);
    sg_field_date(seconds_of(st), date);
    sg_respond_header(r, "ETag", etag);
    sg_respond_header(r, "Last-Modified", date);
}

static void file_headers(struct sg_request *r, const struct sg_file_stat *st)
{
    sg_cleanup(sg_free_p) char *disposition = sg_field_disposition(sg_req_query(r, "path"), "");

    validator_headers(r, st);
    sg_respond_header(r, "Cache-Control", "no-cache");
    sg_respond_header(r, "Accept-Ranges", "bytes");
    /* What sandbox code wrote must not run in a browser as if this server had said it. */
    sg_respond_header(r, "Content-Disposition", disposition);
    sg_respond_header(r, "X-Content-Type-Options", "nosniff");
    sg_respond_header(r, "Content-Security-Policy", "sandbox");
}

/* A file on its way out. Its sandbox's slot waits for the descriptor, so a client that takes its time is cut when the lease ends. */
struct download {
    _Atomic int refs; /* the descriptor's and the hook's */
    struct sg_request *r;
    struct sg_entry *e;
    struct sg_hold *hold; /* the sandbox's own */
    struct sg_cancel_hook lease_end;
};

static void download_unref(struct download *d)
{
    if (--d->refs > 0)
        return;
    sg_req_unref(d->r);
    sg_entry_unref(d->e);
    free(d);
}

static void download_cut(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct download *d = sg_container_of(h, struct download, lease_end);

    sg_respond_cut(d->r);
    download_unref(d);
}

static void download_closed(void *arg)
{
    struct download *d = arg;

    if (sg_cancel_unhook(sg_entry_cancel(d->e), &d->lease_end))
        download_unref(d);
    sg_hold_unref(d->hold);
    download_unref(d);
}

static void send_file(struct sg_request *r, struct sg_entry *e, int status, struct sg_file_source *src, const struct range *g)
{
    struct download *d = sg_xcalloc(1, sizeof *d);

    *d = (struct download){.refs = 2, .r = sg_req_ref(r), .e = sg_entry_ref(e), .hold = src->hold, .lease_end.fired = download_cut};
    struct sg_hold *hold = sg_hold_new(download_closed, d);
    sg_cancel_hook(sg_entry_cancel(e), &d->lease_end);
    sg_respond_fd(r, status, "application/octet-stream", src->fd, hold, g->first, g->len);
}

static void source_close(struct sg_file_source *src)
{
    sg_close(src->fd);
    sg_hold_unref(src->hold);
    sg_pipe_unref(src->pipe);
}

/* ---- conditions: RFC 9110 section 13.2.2 ---- */

enum verdict { SEND, NOT_MODIFIED, FAILED };

static bool passed(const char *header, int64_t mtime)
{
    int64_t t;

    return header && sg_field_date_parse(header, &t) && mtime <= t;
}

/* The fields were read before the file was opened, so they are well-formed. */
static enum verdict judge(struct sg_request *r, const struct sg_file_stat *st)
{
    struct sg_condition c;
    const char *match = sg_req_header(r, "If-Match"), *none = sg_req_header(r, "If-None-Match");
    const char *unmodified = sg_req_header(r, "If-Unmodified-Since");
    int64_t t;

    if (match && sg_field_if_match(match, &c, NULL) == 0 && !sg_condition_holds(&c, st))
        return FAILED;
    if (!match && unmodified && sg_field_date_parse(unmodified, &t) && seconds_of(st) > t)
        return FAILED;
    if (none && sg_field_if_none_match(none, &c, NULL) == 0 && !sg_condition_holds(&c, st))
        return NOT_MODIFIED;
    if (!none && passed(sg_req_header(r, "If-Modified-Since"), seconds_of(st)))
        return NOT_MODIFIED;
    return SEND;
}

static int check_conditions(struct sg_request *r, struct sg_error *err)
{
    struct sg_condition c;
    static const char *const names[] = {"If-Match", "If-None-Match"};
    size_t n;
    const struct sg_header *h = sg_req_headers(r, &n);

    for (size_t k = 0; k < SG_COUNT_OF(names); k++) {
        size_t found = 0;
        for (size_t i = 0; i < n; i++)
            found += strcasecmp(h[i].name, names[k]) == 0;
        if (found > 1)
            return sg_error_field(err, SG_INVALID_REQUEST, names[k], "was sent more than once");
    }
    const char *match = sg_req_header(r, "If-Match"), *none = sg_req_header(r, "If-None-Match");
    if (match && sg_field_if_match(match, &c, err) < 0)
        return -1;
    return none ? sg_field_if_none_match(none, &c, err) : 0;
}

/* True: answered without the content. */
static bool answer_condition(struct sg_request *r, const struct sg_file_stat *st)
{
    struct sg_error err = {0};
    enum verdict v = judge(r, st);

    if (v == SEND)
        return false;
    validator_headers(r, st);
    if (v == NOT_MODIFIED) {
        sg_respond_header(r, "Cache-Control", "no-cache");
        sg_respond_empty(r, 304);
    } else {
        sg_error_set(&err, SG_PRECONDITION_FAILED, "the file is not in the state that the request asks for");
        sg_api_fail(r, &err);
    }
    return true;
}

static const char *range_header(struct sg_request *r, const struct sg_file_stat *st)
{
    const char *if_range = sg_req_header(r, "If-Range");

    return if_range && !sg_field_if_range(if_range, st) ? NULL : sg_req_header(r, "Range");
}

static void send_source(struct sg_request *r, struct sg_entry *e, struct sg_file_source *src)
{
    struct range g;
    struct sg_error err = {0};
    int64_t max = -1;
    uint64_t size = src->stat.size;

    (void)sg_req_query_int(r, "max_bytes", 0, INT64_MAX, &max, NULL); /* checked before the file was opened */
    if (answer_condition(r, &src->stat)) {
        source_close(src);
        return;
    }
    if (parse_range(range_header(r, &src->stat), size, &g, &err) < 0) {
        char text[48];
        snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        sg_respond_header(r, "Content-Range", text);
        sg_api_fail(r, &err);
        source_close(src);
        return;
    }
    file_headers(r, &src->stat);
    if (g.partial)
        range_headers(r, &g, size);
    bool cut = max >= 0 && (uint64_t)max < g.len && !g.partial;
    if (max >= 0) {
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)size);
        sg_respond_header(r, "Sandgate-File-Size", text);
        sg_respond_header(r, "Sandgate-Truncated", cut ? "true" : "false");
    }
    if (cut)
        g.len = (uint64_t)max;
    int status = g.partial ? 206 : 200;
    if (src->fd >= 0) {
        send_file(r, e, status, src, &g);
    } else {
        sg_respond_pipe(r, status, "application/octet-stream", src->pipe, -1);
        sg_pipe_unref(src->pipe);
    }
}

struct get_call {
    struct sg_request *r;
    struct sg_entry *e;
};

static void got_source(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct get_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else
        send_source(c->r, c->e, src);
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

static void get_file(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    struct get_call *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};
    const char *path = sg_file_path(r, &err);
    int64_t max;

    *c = (struct get_call){.r = sg_req_ref(r), .e = sg_entry_ref(e)};
    if (path && sg_req_query_int(r, "max_bytes", 0, INT64_MAX, &max, &err) >= 0 && check_conditions(r, &err) == 0 &&
        sg_service_file_get(e, path, &(struct sg_file_source_done){got_source, c}, &err) == 0)
        return;
    sg_api_fail(r, &err);
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

void sg_route_file_get(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_file);
}
