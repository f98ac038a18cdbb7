/* /leases/{id}/files: bytes in and out of a sandbox, and what is there. */
#include "http/api.h"
#include "service/files.h"

#include "base/clock.h"
#include "base/str.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* The query parameter `path`; NULL with err when it is missing. */
static const char *path_of(struct sg_request *r, struct sg_error *err)
{
    const char *path = sg_req_query(r, "path");

    if (!path || path[0] == '\0') {
        sg_error_field(err, SG_INVALID_REQUEST, "path", "is required: a path in the sandbox, relative to /workspace");
        return NULL;
    }
    if (strlen(path) >= 4096) {
        sg_error_field(err, SG_INVALID_REQUEST, "path", "is longer than 4095 bytes");
        return NULL;
    }
    return path;
}

/* `mode` as octal permission bits. 1, 0 absent, -1. */
static int mode_of(struct sg_request *r, uint32_t *ret, struct sg_error *err)
{
    const char *text = sg_req_query(r, "mode");
    uint32_t mode = 0;

    if (!text)
        return 0;
    size_t n = strlen(text);
    if (n == 0 || n > 5 || strspn(text, "01234567") != n)
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "must be octal permission bits, for example 0644");
    for (size_t i = 0; i < n; i++)
        mode = mode * 8 + (uint32_t)(text[i] - '0');
    if (mode > 0777)
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "must be octal permission bits up to 0777");
    *ret = mode;
    return 1;
}

static json_t *stat_json(const char *key, const char *name, const struct sg_file_stat *st)
{
    char mode[8], at[SG_TIME_LEN], etag[SG_ETAG_MAX];

    snprintf(mode, sizeof mode, "%04o", st->mode & 07777U);
    sg_time_format(st->mtime_ns / 1000, at);
    sg_file_etag(st, etag);
    json_t *v = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", key, name, "type", sg_file_type_name(st->type), "size",
                          (json_int_t)st->size, "mode", mode, "mtime", at, "etag", etag);
    if (v && st->type == SG_FILE_SYMLINK)
        json_object_set_new(v, "target", json_string(st->target));
    return v;
}

/* ---- read ---- */

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

static void file_headers(struct sg_request *r, const struct sg_file_stat *st)
{
    char etag[SG_ETAG_MAX];

    sg_file_etag(st, etag);
    sg_respond_header(r, "ETag", etag);
    sg_respond_header(r, "Accept-Ranges", "bytes");
    /* What sandbox code wrote must not run in a browser as if this server had said it. */
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

static void send_source(struct sg_request *r, struct sg_entry *e, struct sg_file_source *src)
{
    struct range g;
    struct sg_error err = {0};
    int64_t max = -1;
    uint64_t size = src->stat.size;

    (void)sg_req_query_int(r, "max_bytes", 0, INT64_MAX, &max, NULL); /* checked before the file was opened */
    if (parse_range(sg_req_header(r, "Range"), size, &g, &err) < 0) {
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
    const char *path = path_of(r, &err);
    int64_t max;

    *c = (struct get_call){.r = sg_req_ref(r), .e = sg_entry_ref(e)};
    if (path && sg_req_query_int(r, "max_bytes", 0, INT64_MAX, &max, &err) >= 0 &&
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

/* ---- write ---- */

static void stored(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    struct sg_request *r = arg;
    char etag[SG_ETAG_MAX];

    if (err) {
        sg_respond_error(r, err);
    } else {
        json_t *v = stat_json("path", sg_req_query(r, "path"), st);
        sg_file_etag(st, etag);
        sg_respond_header(r, "ETag", etag);
        sg_respond_json(r, created ? 201 : 200, v);
    }
    sg_req_unref(r);
}

static void put_file(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_file_put_args args = {.path = path_of(r, &err), .size_hint = sg_req_content_length(r)};
    int has_mode;

    if (!args.path || sg_req_query_bool(r, "append", &args.append, &err) < 0 || (has_mode = mode_of(r, &args.mode, &err)) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    args.mode_given = has_mode > 0;
    /* Refused before the client is asked for its body. */
    if (sg_entry_use_begin(e, NULL, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_entry_use_end(e, false);
    struct sg_file_stored done = {.fn = stored, .arg = sg_req_ref(r)};
    if (sg_service_file_put(e, &args, sg_req_body_pipe(r), sg_service_parts(api->service)->workq, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_put(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, put_file);
}

/* ---- the rest ---- */

static void removed(void *arg, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err)
        sg_respond_error(r, err);
    else
        sg_respond_empty(r, 204);
    sg_req_unref(r);
}

static void delete_file(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    struct sg_error err = {0};
    const char *path = path_of(r, &err);
    bool recursive = false;

    if (!path || sg_req_query_bool(r, "recursive", &recursive, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct sg_done done = {.fn = removed, .arg = sg_req_ref(r)};
    if (sg_service_file_remove(e, path, recursive, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_delete(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, delete_file);
}

static void got_stat(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err)
        sg_respond_error(r, err);
    else
        sg_respond_json(r, 200, stat_json("path", sg_req_query(r, "path"), st));
    sg_req_unref(r);
}

static void stat_file(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    struct sg_error err = {0};
    const char *path = path_of(r, &err);

    if (!path || sg_service_file_stat(e, path, &(struct sg_file_stat_done){got_stat, sg_req_ref(r)}, &err) < 0) {
        if (path)
            sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_stat(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, stat_file);
}

static void made_directory(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err)
        sg_respond_error(r, err);
    else
        sg_respond_json(r, 201, stat_json("path", sg_req_query(r, "path"), st));
    sg_req_unref(r);
}

static void make_directory(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    struct sg_error err = {0};
    const char *path = path_of(r, &err);
    uint32_t mode = 0755;

    if (!path || mode_of(r, &mode, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    if (sg_service_file_mkdir(e, path, mode, &(struct sg_file_stat_done){made_directory, sg_req_ref(r)}, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_mkdir(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, make_directory);
}

/* ---- list ---- */

struct list_call {
    struct sg_request *r;
    size_t limit;
    char *after;
};

static void list_free(struct list_call *c)
{
    sg_req_unref(c->r);
    free(c->after);
    free(c);
}

static void respond_list(struct list_call *c, const struct sg_file_list *list)
{
    json_t *items = json_array();
    const char *last = NULL;
    bool more = false;

    for (size_t i = 0; i < list->n; i++) {
        const struct sg_file_entry *f = &list->entries[i];
        if (c->after && strcmp(f->name, c->after) <= 0)
            continue;
        if (json_array_size(items) == c->limit) {
            more = true;
            break;
        }
        json_array_append_new(items, stat_json("name", f->name, &f->stat));
        last = f->name;
    }
    sg_cleanup(sg_free_p) char *cursor = more ? sg_api_cursor(last) : NULL;
    json_t *page = sg_api_page(items, cursor);
    json_object_set_new(page, "truncated", json_boolean(list->truncated));
    sg_respond_json(c->r, 200, page);
}

static void got_list(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct list_call *c = arg;

    if (err) {
        sg_respond_error(c->r, err);
    } else {
        respond_list(c, list);
        sg_file_list_finish(list);
    }
    list_free(c);
}

static void list_files(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct list_call *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};
    const char *path = sg_req_query(r, "path");
    bool recursive = false;

    c->r = sg_req_ref(r);
    if (path)
        path = path_of(r, &err);
    else
        path = ".";
    if (!path || sg_req_query_bool(r, "recursive", &recursive, &err) < 0 || sg_api_limit(r, &c->limit, &err) < 0 ||
        sg_api_cursor_key(r, &c->after, &err) < 0 ||
        sg_service_file_list(e, path, recursive, sg_service_config(api->service)->file_list_max,
                             &(struct sg_file_list_done){got_list, c}, &err) < 0) {
        sg_api_fail(r, &err);
        list_free(c);
    }
}

void sg_route_file_list(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, list_files);
}

/* ---- move ---- */

static int parse_move(struct sg_request *r, json_t **ret, const char **from, const char **to, struct sg_error *err)
{
    struct sg_json_reader rd;
    size_t len;
    const char *text = sg_req_body(r, &len);

    *from = *to = NULL;
    if (sg_json_parse_object(text, len, ret, err) < 0 || sg_json_begin(&rd, *ret, "", err) < 0 ||
        sg_json_str(&rd, "from", from, err) < 0 || sg_json_str(&rd, "to", to, err) < 0 || sg_json_end(&rd, err) < 0)
        return -1;
    if (!*from || !**from || strlen(*from) >= 4096)
        return sg_error_field(err, SG_INVALID_REQUEST, "from", "must be a path of 1 to 4095 bytes");
    if (!*to || !**to || strlen(*to) >= 4096)
        return sg_error_field(err, SG_INVALID_REQUEST, "to", "must be a path of 1 to 4095 bytes");
    return 0;
}

static void move_file(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_error err = {0};
    const char *from, *to;

    if (parse_move(r, &body, &from, &to, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct sg_done done = {.fn = removed, .arg = sg_req_ref(r)};
    if (sg_service_file_move(e, from, to, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_move(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, move_file);
}
