/* /leases/{id}/files: bytes in and out of a sandbox, and what is there. */
#include "http/routes_files_priv.h"

#include "base/clock.h"
#include "base/str.h"

#include <stdio.h>
#include <strings.h>

const char *sg_file_path(struct sg_request *r, struct sg_error *err)
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

    if (!text)
        return 0;
    if (!sg_file_mode_parse(text, ret))
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "must be octal permission bits up to 0777, for example 0644");
    return 1;
}

/* Sets key to bytes; when they are not text, to their percent-encoding, and says so in KEY_encoding. */
static void set_name(json_t *v, const char *key, const char *bytes, size_t len)
{
    char encoding[32];

    if (sg_utf8_valid(bytes, len)) {
        json_object_set_new(v, key, json_stringn(bytes, len));
        return;
    }
    sg_cleanup(sg_free_p) char *text = sg_percent_encode(bytes, len);
    snprintf(encoding, sizeof encoding, "%s_encoding", key);
    json_object_set_new(v, key, json_string(text));
    json_object_set_new(v, encoding, json_string("percent"));
}

static json_t *stat_json(const char *key, const char *name, const struct sg_file_stat *st)
{
    char mode[8], at[SG_TIME_LEN], etag[SG_ETAG_MAX];

    snprintf(mode, sizeof mode, "%04o", st->mode & 07777U);
    sg_time_format(st->mtime_ns / 1000, at);
    sg_file_etag(st, etag);
    json_t *v = json_pack("{s:s, s:I, s:s, s:s, s:s}", "type", sg_file_type_name(st->type), "size", (json_int_t)st->size, "mode",
                          mode, "mtime", at, "etag", etag);
    if (!v)
        return NULL;
    set_name(v, key, name, strlen(name));
    size_t len = strlen(st->target);
    if (len == sizeof st->target - 1)
        len = sg_utf8_whole(st->target, len); /* it may have been cut inside a character */
    if (st->type == SG_FILE_SYMLINK)
        set_name(v, "target", st->target, len);
    return v;
}

json_t *sg_file_unpacked_json(const char *path, uint64_t entries, uint64_t bytes)
{
    json_t *v = json_pack("{s:I, s:I}", "entries", (json_int_t)entries, "bytes", (json_int_t)bytes);

    if (v)
        set_name(v, "path", path, strlen(path));
    return v;
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

char *sg_file_list_header(struct sg_request *r, const char *name)
{
    size_t n;
    const struct sg_header *h = sg_req_headers(r, &n);
    char *all = NULL;

    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(h[i].name, name) != 0)
            continue;
        char *more = all ? sg_xasprintf("%s, %s", all, h[i].value) : sg_xstrdup(h[i].value);
        free(all);
        all = more;
    }
    return all;
}

/* The one value of a header that must not be overlooked. 1, 0 absent, -1. */
static int single_header(struct sg_request *r, const char *name, const char **ret, struct sg_error *err)
{
    size_t n, found = 0;
    const struct sg_header *h = sg_req_headers(r, &n);

    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(h[i].name, name) != 0)
            continue;
        *ret = h[i].value;
        found++;
    }
    return found > 1 ? sg_error_field(err, SG_INVALID_REQUEST, name, "was sent more than once") : (int)found;
}

int sg_file_write_condition(struct sg_request *r, struct sg_condition *ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *match = sg_file_list_header(r, "If-Match");
    sg_cleanup(sg_free_p) char *none = sg_file_list_header(r, "If-None-Match");
    const char *since = NULL;
    int has_since = single_header(r, "If-Unmodified-Since", &since, err);

    *ret = (struct sg_condition){0};
    if (has_since < 0)
        return -1;
    if (match && none)
        return sg_error_field(err, SG_INVALID_REQUEST, "If-None-Match", "cannot be combined with If-Match here");
    if (has_since && !match)
        return sg_error_field(err, SG_INVALID_REQUEST, "If-Unmodified-Since", "is too coarse for a write: use If-Match");
    if (match)
        return sg_field_if_match(match, ret, err);
    return none ? sg_field_if_none_match(none, ret, err) : 0;
}

static int digest_header(struct sg_request *r, const char *name, struct sg_digests *ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *text = sg_file_list_header(r, name);

    return text ? sg_field_digest(name, text, ret, err) : 0;
}

int sg_file_body_headers(struct sg_request *r, struct sg_digests *ret, struct sg_error *err)
{
    const char *range = NULL;

    *ret = (struct sg_digests){0};
    if (single_header(r, "Content-Range", &range, err) < 0)
        return -1;
    if (range)
        return sg_error_field(err, SG_INVALID_REQUEST, "Content-Range", "a part of a file cannot be written");
    return digest_header(r, "Repr-Digest", ret, err) < 0 || digest_header(r, "Content-Digest", ret, err) < 0 ? -1 : 0;
}

static struct sg_pipe *open_body(void *r)
{
    return sg_req_body_pipe(r);
}

struct sg_upload_body sg_file_body(struct sg_request *r)
{
    return (struct sg_upload_body){.open = open_body, .arg = r};
}

static int put_args(struct sg_request *r, struct sg_file_put_args *args, struct sg_condition *only_if, struct sg_digests *digests,
                    struct sg_error *err)
{
    int has_mode;

    *args = (struct sg_file_put_args){.path = sg_file_path(r, err), .size_hint = sg_req_content_length(r), .only_if = only_if};
    if (!args->path || sg_req_query_bool(r, "append", &args->append, err) < 0 || (has_mode = mode_of(r, &args->mode, err)) < 0)
        return -1;
    args->mode_given = has_mode > 0;
    return sg_file_write_condition(r, only_if, err) < 0 ? -1 : sg_file_body_headers(r, digests, err);
}

static void put_file(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_file_put_args args;
    struct sg_condition only_if;
    struct sg_digests digests;

    /* Refused before the client is asked for its body. */
    if (put_args(r, &args, &only_if, &digests, &err) < 0 || sg_entry_use_begin(e, NULL, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_entry_use_end(e, false);
    struct sg_file_stored done = {.fn = stored, .arg = sg_req_ref(r)};
    struct sg_upload_body body = sg_file_body(r);
    if (sg_service_file_put(e, &args, &digests, &body, sg_service_parts(api->service)->workq, &done, &err) < 0) {
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
    const char *path = sg_file_path(r, &err);
    bool recursive = false;
    struct sg_condition only_if;

    if (!path || sg_req_query_bool(r, "recursive", &recursive, &err) < 0 || sg_file_write_condition(r, &only_if, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct sg_done done = {.fn = removed, .arg = sg_req_ref(r)};
    if (sg_service_file_remove(e, path, recursive, &only_if, &done, &err) < 0) {
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
    const char *path = sg_file_path(r, &err);

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
    const char *path = sg_file_path(r, &err);
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

static void respond_list(struct sg_request *r, const struct sg_file_list *list)
{
    json_t *items = json_array();

    for (size_t i = 0; i < list->n; i++)
        json_array_append_new(items, stat_json("name", list->entries[i].name, &list->entries[i].stat));
    sg_cleanup(sg_free_p) char *cursor = list->more && list->n > 0 ? sg_api_cursor(list->entries[list->n - 1].name) : NULL;
    json_t *page = sg_api_page(items, cursor);
    json_object_set_new(page, "truncated", json_boolean(list->truncated));
    sg_respond_json(r, 200, page);
}

static void got_list(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err) {
        sg_respond_error(r, err);
    } else {
        respond_list(r, list);
        sg_file_list_finish(list);
    }
    sg_req_unref(r);
}

static void list_files(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    sg_cleanup(sg_free_p) char *after = NULL;
    struct sg_error err = {0};
    struct sg_file_list_args args = {.path = sg_req_query(r, "path") ? sg_file_path(r, &err) : "."};

    if (!args.path || sg_req_query_bool(r, "recursive", &args.recursive, &err) < 0 || sg_api_limit(r, &args.max, &err) < 0 ||
        sg_api_cursor_key(r, &after, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    args.after = after;
    if (sg_service_file_list(e, &args, &(struct sg_file_list_done){got_list, sg_req_ref(r)}, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_list(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, list_files);
}

/* ---- move ---- */

struct move_wish {
    char *from, *to; /* a name that is not text comes percent-encoded, as lists give it */
};

static void move_wish_finish(struct move_wish *w)
{
    free(w->from);
    free(w->to);
}

/* A path that the body gives under key, how under encoding_key. */
static int move_path(struct sg_json_reader *rd, const char *key, const char *encoding_key, char **ret, struct sg_error *err)
{
    const char *text = NULL, *encoding = NULL;

    if (sg_json_str(rd, key, &text, err) < 0 || sg_json_str(rd, encoding_key, &encoding, err) < 0)
        return -1;
    if (encoding && !sg_streq(encoding, "percent"))
        return sg_error_field(err, SG_INVALID_REQUEST, encoding_key, "must be \"percent\" or left out");
    size_t len = text ? strlen(text) : 0;
    char *path = *ret = sg_xcalloc(len + 1, 1);
    if (!encoding)
        memcpy(path, text ? text : "", len);
    else if (!sg_percent_decode(text ? text : "", len, false, path, &len))
        return sg_error_field(err, SG_INVALID_REQUEST, key, "is not percent-encoded as %s says", encoding_key);
    if (path[0] == '\0' || strlen(path) >= 4096)
        return sg_error_field(err, SG_INVALID_REQUEST, key, "must be a path, at most 4095 bytes long");
    return 0;
}

static int parse_move(struct sg_request *r, struct move_wish *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_json_reader rd;
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (sg_json_parse_object(text, len, &body, err) < 0 || sg_json_begin(&rd, body, "", err) < 0 ||
        move_path(&rd, "from", "from_encoding", &ret->from, err) < 0 || move_path(&rd, "to", "to_encoding", &ret->to, err) < 0)
        return -1;
    return sg_json_end(&rd, err);
}

static void move_file(struct sg_request *r, struct sg_api *api SG_UNUSED, struct sg_entry *e)
{
    sg_cleanup(move_wish_finish) struct move_wish w = {0};
    struct sg_error err = {0};

    if (parse_move(r, &w, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct sg_done done = {.fn = removed, .arg = sg_req_ref(r)};
    if (sg_service_file_move(e, w.from, w.to, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_file_move(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, move_file);
}
