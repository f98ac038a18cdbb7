#include "http/api.h"

#include "base/hash.h"
#include "base/str.h"
#include "http/proxy_origin.h"

#include <stdio.h>

void sg_api_fail(struct sg_request *r, struct sg_error *err)
{
    sg_respond_error(r, err);
    sg_error_clear(err);
}

/* ---- finding the lease of a request ---- */

struct lease_call {
    struct sg_request *r;
    struct sg_api *api;
    sg_lease_handler *go;
};

static void lease_found(void *arg, struct sg_entry *e, const struct sg_error *err)
{
    struct lease_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else
        c->go(c->r, c->api, e);
    sg_entry_unref(e);
    sg_req_unref(c->r);
    free(c);
}

void sg_api_with_lease(struct sg_request *r, struct sg_api *api, sg_lease_handler *go)
{
    struct lease_call *c = sg_xcalloc(1, sizeof *c);
    const char *id = sg_req_param(r, "id");

    *c = (struct lease_call){.r = sg_req_ref(r), .api = api, .go = go};
    sg_req_set_note(r, id);
    sg_service_find(api->service, sg_req_principal(r), id, &(struct sg_entry_done){lease_found, c});
}

/* ---- links ---- */

void sg_api_base_url(const struct sg_request *r, const struct sg_api *api, char *out, size_t size)
{
    const char *host = sg_req_header(r, "Host");

    if (api->public_url)
        snprintf(out, size, "%s", api->public_url);
    else
        snprintf(out, size, "http://%s", host ? host : "127.0.0.1");
}

/* ":8443" of "https://host:8443/path", or "". */
static const char *port_of_url(const char *url, char out[8])
{
    const char *at = strstr(url, "://");
    size_t n = at ? strcspn(at + 3, "/") : 0;
    const char *colon = at ? memrchr(at + 3, ':', n) : NULL;
    size_t len = colon ? (size_t)(at + 3 + n - colon) : 0;

    bool port = len > 1 && len < 8 && strspn(colon + 1, "0123456789") >= len - 1;
    snprintf(out, 8, "%.*s", port ? (int)len : 0, port ? colon : "");
    return out;
}

json_t *sg_api_endpoint(const struct sg_request *r, const struct sg_api *api, const char *lease_id, uint16_t port,
                        const char *token)
{
    char base[512], url[700], own[SG_ENDPOINT_TOKEN_MAX], label[SG_ORIGIN_LABEL_MAX], port_text[8];

    sg_api_base_url(r, api, base, sizeof base);
    sg_origin_label(port, lease_id, label);
    if (api->public_domain)
        snprintf(url, sizeof url, "%.*s://%s.%s%s/", (int)strcspn(base, ":"), base, label, api->public_domain,
                 port_of_url(base, port_text));
    else
        snprintf(url, sizeof url, "%s/leases/%s/proxy/%u/", base, lease_id, (unsigned)port);
    if (!token)
        sg_service_endpoint_token(api->service, lease_id, own);
    return json_pack("{s:s, s:{s:s}}", "url", url, "headers", SG_ENDPOINT_TOKEN_HEADER, token ? token : own);
}

int sg_api_port(const struct sg_request *r, const char *name, uint16_t *ret, struct sg_error *err)
{
    const char *text = sg_req_param(r, name);
    int64_t port;

    if (text[0] == '0' || strspn(text, "0123456789") != strlen(text) || !sg_parse_int(text, 1, 65535, &port))
        return sg_error_field(err, SG_INVALID_REQUEST, "port", "must be a plain port number from 1 to 65535");
    *ret = (uint16_t)port;
    return 0;
}

/* ---- lists ---- */

json_t *sg_api_page(json_t *items, const char *cursor)
{
    return json_pack("{s:o, s:s?}", "items", items, "next_cursor", cursor);
}

/* Where a list goes on after the item of that key; -1: there is none. */
static int place_after(const json_t *items, const char *key, const char *last, size_t *ret)
{
    const json_t *v;
    size_t i;

    json_array_foreach(items, i, v) {
        if (sg_streq(json_string_value(json_object_get(v, key)), last)) {
            *ret = i + 1;
            return 0;
        }
    }
    return -1;
}

static int page_of(struct sg_request *r, const json_t *items, const char *key, json_t **ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *last = NULL;
    size_t limit, first = 0;

    if (sg_api_limit(r, &limit, err) < 0 || sg_api_cursor_key(r, &last, err) < 0)
        return -1;
    if (last && place_after(items, key, last, &first) < 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "cursor", "is not a next_cursor of this list");
    json_t *page = json_array();
    size_t n = json_array_size(items), end = limit < n - first ? first + limit : n;
    for (size_t i = first; i < end; i++)
        json_array_append_new(page, sg_json_ref(json_array_get(items, i)));
    sg_cleanup(sg_free_p) char *cursor =
        end < n ? sg_api_cursor(json_string_value(json_object_get(json_array_get(items, end - 1), key))) : NULL;
    *ret = sg_api_page(page, cursor);
    return 0;
}

void sg_api_respond_page(struct sg_request *r, json_t *items, const char *key)
{
    struct sg_error err = {0};
    json_t *page = NULL;

    if (items && page_of(r, items, key, &page, &err) < 0)
        sg_api_fail(r, &err);
    else
        sg_respond_json(r, 200, page);
    sg_json_unref(items);
}

int sg_api_limit(struct sg_request *r, size_t *ret, struct sg_error *err)
{
    int64_t limit = 100;

    if (sg_req_query_int(r, "limit", 1, 1000, &limit, err) < 0)
        return -1;
    *ret = (size_t)limit;
    return 0;
}

char *sg_api_cursor(const char *key)
{
    size_t n = strlen(key);
    char *text = malloc(2 * n + 3);

    if (text) {
        memcpy(text, "c1", 2);
        sg_hex((const uint8_t *)key, n, text + 2);
    }
    return text;
}

int sg_api_cursor_key(struct sg_request *r, char **ret, struct sg_error *err)
{
    const char *text = sg_req_query(r, "cursor");

    if (!text)
        return 0;
    size_t n = strlen(text);
    sg_cleanup(sg_free_p) char *key = n < 8192 ? malloc(n / 2 + 1) : NULL;
    if (n < 4 || n % 2 != 0 || strncmp(text, "c1", 2) != 0 || !key || !sg_unhex(text + 2, (uint8_t *)key, (n - 2) / 2) ||
        memchr(key, '\0', (n - 2) / 2))
        return sg_error_field(err, SG_INVALID_REQUEST, "cursor", "is not a next_cursor of this list");
    key[(n - 2) / 2] = '\0';
    *ret = sg_steal(&key);
    return 1;
}
