/* Reading a file of a lease: conditions, one range, and a body that moves from descriptor to socket. */
#include "http/routes_files_priv.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

static void range_headers(struct sg_request *r, const struct sg_byte_range *g, uint64_t size)
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

static void send_file(struct sg_request *r, struct sg_entry *e, int status, struct sg_file_source *src, const struct sg_byte_range *g)
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
    if (src->content)
        src->content->ops->close(src->content);
}

/* ---- conditions: RFC 9110 section 13.2.2 ---- */

enum verdict { SEND, NOT_MODIFIED, FAILED };

static bool passed(const char *header, int64_t mtime)
{
    int64_t t;

    return header && sg_field_date_parse(header, &t) && mtime <= t;
}

/* What is asked of a file, read before it is opened. */
struct get_call {
    struct sg_request *r;
    struct sg_api *api;
    struct sg_entry *e;
    bool has_match, has_none;
    struct sg_condition match, none;
    int64_t max; /* max_bytes, -1: all */
    struct sg_digests want;
    struct sg_file_source src; /* once it is open */
};

static void call_free(struct get_call *c)
{
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

static int read_request(struct get_call *c, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *match = sg_file_list_header(c->r, "If-Match");
    sg_cleanup(sg_free_p) char *none = sg_file_list_header(c->r, "If-None-Match");
    sg_cleanup(sg_free_p) char *want = sg_file_list_header(c->r, "Want-Repr-Digest");

    c->max = -1;
    c->has_match = match != NULL;
    c->has_none = none != NULL;
    if (want)
        sg_field_want_digest(want, &c->want);
    if (sg_req_query_int(c->r, "max_bytes", 0, INT64_MAX, &c->max, err) < 0)
        return -1;
    if (match && sg_field_if_match(match, &c->match, err) < 0)
        return -1;
    return none ? sg_field_if_none_match(none, &c->none, err) : 0;
}

static enum verdict judge(const struct get_call *c)
{
    const struct sg_file_stat *st = &c->src.stat;
    const char *unmodified = sg_req_header(c->r, "If-Unmodified-Since");
    int64_t t;

    if (c->has_match && !sg_condition_holds(&c->match, st))
        return FAILED;
    if (!c->has_match && unmodified && sg_field_date_parse(unmodified, &t) && seconds_of(st) > t)
        return FAILED;
    if (c->has_none && !sg_condition_holds(&c->none, st))
        return NOT_MODIFIED;
    if (!c->has_none && passed(sg_req_header(c->r, "If-Modified-Since"), seconds_of(st)))
        return NOT_MODIFIED;
    return SEND;
}

/* True: answered without the content. */
static bool answer_condition(struct get_call *c)
{
    struct sg_error err = {0};
    enum verdict v = judge(c);

    if (v == SEND)
        return false;
    validator_headers(c->r, &c->src.stat);
    if (v == NOT_MODIFIED) {
        sg_respond_header(c->r, "Cache-Control", "no-cache");
        sg_respond_length(c->r, 304, c->max >= 0 && (uint64_t)c->max < c->src.stat.size ? (uint64_t)c->max : c->src.stat.size);
    } else {
        sg_error_set(&err, SG_PRECONDITION_FAILED, "the file is not in the state that the request asks for");
        sg_api_fail(c->r, &err);
    }
    return true;
}

/* A range is something of GET alone, and only of the version that the client has. */
static const char *range_header(const struct get_call *c)
{
    const char *if_range = sg_req_header(c->r, "If-Range");

    if (sg_req_is_head(c->r) || (if_range && !sg_field_if_range(if_range, &c->src.stat)))
        return NULL;
    return sg_req_header(c->r, "Range");
}

static void size_headers(const struct get_call *c, bool cut)
{
    char text[32];

    snprintf(text, sizeof text, "%llu", (unsigned long long)c->src.stat.size);
    sg_respond_header(c->r, "Sandgate-File-Size", text);
    sg_respond_header(c->r, "Sandgate-Truncated", cut ? "true" : "false");
}

/* The end of the lease ends its pipe. */
static void send_content(struct sg_request *r, int status, struct sg_file_content *content, const struct sg_byte_range *g)
{
    struct sg_pipe *pipe = content->ops->send(content, g->first, sg_req_is_head(r) ? 0 : g->len);

    sg_respond_pipe(r, status, "application/octet-stream", pipe, (int64_t)g->len);
    sg_pipe_unref(pipe);
    content->ops->close(content);
}

/* The answer, once everything is known. Consumes the file. */
static void send_source(struct get_call *c)
{
    struct sg_byte_range g;
    struct sg_error err = {0};
    uint64_t size = c->src.stat.size;

    if (sg_field_range(range_header(c), size, &g, &err) < 0) {
        char text[48];
        snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        sg_respond_header(c->r, "Content-Range", text);
        sg_api_fail(c->r, &err);
        source_close(&c->src);
        return;
    }
    bool cut = c->max >= 0 && (uint64_t)c->max < g.len;
    if (cut && c->max == 0)
        g.partial = false; /* a range of no bytes cannot be said */
    if (cut)
        g.len = (uint64_t)c->max;
    file_headers(c->r, &c->src.stat);
    if (g.partial)
        range_headers(c->r, &g, size);
    if (c->max >= 0)
        size_headers(c, cut);
    int status = g.partial ? 206 : 200;
    if (c->src.fd >= 0) {
        send_file(c->r, c->e, status, &c->src, &g);
    } else if (c->src.content) {
        send_content(c->r, status, c->src.content, &g);
    } else {
        sg_respond_pipe(c->r, status, "application/octet-stream", c->src.pipe, -1);
        sg_pipe_unref(c->src.pipe);
    }
}

static void hashed(void *arg, const struct sg_digests *digests, const struct sg_error *err)
{
    struct get_call *c = arg;

    if (err) {
        source_close(&c->src);
        sg_respond_error(c->r, err);
    } else {
        sg_cleanup(sg_free_p) char *text = digests ? sg_field_digest_text(digests) : NULL;
        if (text)
            sg_respond_header(c->r, "Repr-Digest", text);
        send_source(c);
    }
    call_free(c);
}

static void got_source(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct get_call *c = arg;
    struct sg_error refused = {0};

    if (err) {
        sg_respond_error(c->r, err);
        call_free(c);
        return;
    }
    c->src = *src;
    if (answer_condition(c)) {
        source_close(src);
    } else if (src->fd < 0 || (!c->want.sha256_given && !c->want.sha512_given)) {
        send_source(c);
    } else if (sg_service_file_digest(c->e, src->fd, &c->want, sg_req_cancel(c->r), sg_service_parts(c->api->service)->workq,
                                      &(struct sg_file_digest_done){hashed, c}, &refused) == 0) {
        return;
    } else {
        source_close(src);
        sg_api_fail(c->r, &refused);
    }
    call_free(c);
}

static void get_file(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct get_call *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};
    const char *path = sg_file_path(r, &err);

    *c = (struct get_call){.r = sg_req_ref(r), .api = api, .e = sg_entry_ref(e)};
    if (path && read_request(c, &err) == 0 &&
        sg_service_file_get(e, path, !c->want.sha256_given && !c->want.sha512_given, &(struct sg_file_source_done){got_source, c}, &err) == 0)
        return;
    sg_api_fail(r, &err);
    call_free(c);
}

void sg_route_file_get(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_file);
}
