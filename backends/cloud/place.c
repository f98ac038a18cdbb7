#include "backends/cloud/place.h"

#include "base/json.h"

#define HEADERS_MAX 16U
#define ANSWER_MAX ((size_t)64 * 1024)

struct asking {
    struct sg_done done;
    int status; /* 0: no answer has begun */
};

static void answer_begun(void *arg, const struct sg_net_response *r)
{
    ((struct asking *)arg)->status = sg_net_status(r);
}

/* An answer that is long, or ends early, is one all the same. */
static void answered(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct asking *a = arg;
    struct sg_error why = {0};

    if (r)
        a->status = sg_net_status(r);
    if (a->status == 0) {
        sg_error_copy(&why, err);
    } else if (a->status < 200 || a->status >= 400) {
        sg_error_set(&why, SG_ENDPOINT_FAILED, "the answer has status %d", a->status);
        sg_error_member(&why, "provider_status", json_integer(a->status));
    }
    a->done.fn(a->done.arg, why.code != SG_OK ? &why : NULL);
    sg_error_clear(&why);
    free(a);
}

static size_t headers_of(const json_t *place, struct sg_net_header out[HEADERS_MAX])
{
    const char *name;
    json_t *v;
    size_t n = 0;

    json_object_foreach(json_object_get(place, "headers"), name, v)
        if (n < HEADERS_MAX && json_is_string(v))
            out[n++] = (struct sg_net_header){.name = name, .value = json_string_value(v)};
    return n;
}

int sg_place_ask(struct sg_net_client *c, const json_t *place, const char *path, int64_t deadline_ms, const struct sg_done *done,
                 struct sg_error *err)
{
    struct sg_net_header headers[HEADERS_MAX];
    const char *url = json_string_value(json_object_get(place, "url"));
    const char *host = url ? strstr(url, "://") : NULL;

    if (!host)
        return sg_error_set(err, SG_INTERNAL, "the provider's place for a port is none");
    host += 3;
    const char *prefix = host + strcspn(host, "/");
    size_t len = strlen(prefix);
    sg_cleanup(sg_free_p) char *name = sg_xstrndup(host, (size_t)(prefix - host));
    sg_cleanup(sg_free_p) char *whole = sg_xasprintf("%.*s%s", (int)(len > 0 && prefix[len - 1] == '/' ? len - 1 : len), prefix, path);
    struct asking *a = sg_xcalloc(1, sizeof *a);
    a->done = *done;
    int rc = sg_net_call(c, &(struct sg_net_request){.method = "GET", .path = whole, .host = name, .headers = headers, .n_headers = headers_of(place, headers),
                                                     .deadline_ms = deadline_ms, .response_max = ANSWER_MAX, .head = answer_begun, .done = answered, .arg = a}, err);
    if (rc < 0)
        free(a);
    return rc;
}
