/* /leases/{id}/files/tar: a directory as one archive, both ways. */
#include "http/routes_files_priv.h"
#include "service/tar.h"

/* ---- out ---- */

static void archive_ready(void *arg, struct sg_pipe *pipe, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err) {
        sg_respond_error(r, err);
        sg_req_unref(r);
        return;
    }
    sg_cleanup(sg_free_p) char *disposition = sg_field_disposition(sg_req_query(r, "path"), ".tar");
    sg_respond_header(r, "Content-Disposition", disposition);
    sg_respond_header(r, "Cache-Control", "no-store");
    sg_respond_header(r, "X-Content-Type-Options", "nosniff");
    sg_respond_header(r, "Content-Security-Policy", "sandbox");
    if (sg_req_is_head(r)) {
        sg_pipe_stop(pipe);
        sg_respond_bytes(r, 200, "application/x-tar", "", 0);
    } else {
        sg_respond_pipe(r, 200, "application/x-tar", pipe, -1);
    }
    sg_pipe_unref(pipe);
    sg_req_unref(r);
}

static void get_tar(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    const char *path = sg_file_path(r, &err);
    struct sg_tar_source_done done = {.fn = archive_ready, .arg = sg_req_ref(r)};

    if (!path || sg_service_tar_get(e, path, sg_service_parts(api->service)->workq, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_tar_get(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_tar);
}

/* ---- in ---- */

static void unpacked(void *arg, const struct sg_tar_result *result, const struct sg_error *err)
{
    struct sg_request *r = arg;

    if (err)
        sg_respond_error(r, err);
    else
        sg_respond_json(r, result->created ? 201 : 200, sg_file_unpacked_json(sg_req_query(r, "path"), result->entries, result->bytes));
    sg_req_unref(r);
}

static int put_args(struct sg_request *r, struct sg_tar_put_args *args, struct sg_digests *digests, struct sg_error *err)
{
    struct sg_condition only_if;

    *args = (struct sg_tar_put_args){.path = sg_file_path(r, err)};
    if (!args->path || sg_req_query_bool(r, "outside_links", &args->outside_links, err) < 0 ||
        sg_file_write_condition(r, &only_if, err) < 0)
        return -1;
    if (only_if.kind != SG_IF_ALWAYS)
        return sg_error_field(err, SG_INVALID_REQUEST, only_if.kind == SG_IF_EXISTS || only_if.kind == SG_IF_MATCHES ? "If-Match" : "If-None-Match",
                              "is about one file, a directory has no version");
    return sg_file_body_headers(r, digests, err);
}

static void put_tar(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_tar_put_args args;
    struct sg_digests digests;

    /* Refused before the client is asked for its body. */
    if (put_args(r, &args, &digests, &err) < 0 || sg_entry_use_begin(e, NULL, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_entry_use_end(e, false);
    struct sg_tar_stored done = {.fn = unpacked, .arg = sg_req_ref(r)};
    args.cancel = sg_req_cancel(r);
    struct sg_upload_body body = sg_file_body(r);
    if (sg_service_tar_put(e, &args, &digests, &body, sg_service_parts(api->service)->workq, &done, &err) < 0) {
        sg_req_unref(r);
        sg_api_fail(r, &err);
    }
}

void sg_route_tar_put(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, put_tar);
}
