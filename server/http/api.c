#include "http/api.h"

#include "base/hash.h"

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

void sg_api_endpoint_token(const struct sg_api *api, const char *lease_id, char out[SG_ENDPOINT_TOKEN_LEN])
{
    uint8_t mac[SG_SHA256_LEN];
    char text[16 + SG_ID_MAX];
    size_t key_len;
    const char *key = sg_secret_expose(sg_store_endpoint_key(sg_service_parts(api->service)->store), &key_len);

    snprintf(text, sizeof text, "lease-endpoint:%s", lease_id);
    sg_hmac_sha256(key, key_len, text, strlen(text), mac);
    memcpy(out, "ept_", 4);
    sg_hex(mac, sizeof mac, out + 4);
}

json_t *sg_api_endpoint(const struct sg_request *r, const struct sg_api *api, const char *lease_id, uint16_t port)
{
    char base[512], url[700], token[SG_ENDPOINT_TOKEN_LEN];

    sg_api_base_url(r, api, base, sizeof base);
    snprintf(url, sizeof url, "%s/leases/%s/proxy/%u/", base, lease_id, (unsigned)port);
    sg_api_endpoint_token(api, lease_id, token);
    return json_pack("{s:s, s:{s:s}}", "url", url, "headers", SG_ENDPOINT_TOKEN_HEADER, token);
}

/* ---- lists ---- */

json_t *sg_api_page(json_t *items, const char *cursor)
{
    return json_pack("{s:o, s:s?}", "items", items, "next_cursor", cursor);
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
