/* What the reverse proxy writes for a service, and what of ours it keeps to itself: one request comes out of
 * one request, and neither our tokens nor our cookie are in it. */
#include "fuzz_head.h"

#include <strings.h>

#include "http/proxy_head.h"
#include "http/proxy_origin.h"

#define DOMAIN "sbx.example"

/* Every line of a head: "name: value" with a clean name, and no second Host or framing. */
static void check_out(const char *head, size_t len, const struct sg_proxy_request *q)
{
    fuzz_require(len >= 4 && memcmp(head + len - 4, "\r\n\r\n", 4) == 0 && strlen(head) == len, "it ends");
    size_t hosts = 0, framings = 0;
    const char *line = strstr(head, "\r\n") + 2;
    for (const char *end; line < head + len - 2; line = end + 2) {
        end = strstr(line, "\r\n");
        const char *colon = memchr(line, ':', (size_t)(end - line));
        fuzz_require(colon != NULL && sg_token_ok(line, (size_t)(colon - line)), "a line is a field");
        fuzz_require(memchr(line, '\n', (size_t)(end - line)) == NULL, "and only one");
        hosts += strncasecmp(line, "Host:", 5) == 0;
        framings +=
            strncasecmp(line, "Content-Length:", 15) == 0 || strncasecmp(line, "Transfer-Encoding:", 18) == 0;
        fuzz_require(strncasecmp(line, "Sandgate-", 9) != 0, "nothing of ours");
        fuzz_require(!q->drop_authorization || strncasecmp(line, "Authorization:", 14) != 0, "no credential");
        fuzz_require(!q->drop_api_key || strncasecmp(line, "X-API-Key:", 10) != 0, "no key");
        if (q->own_origin && strncasecmp(line, "Cookie:", 7) == 0) {
            char *cookies = sg_xstrndup(colon + 1, (size_t)(end - colon - 1));
            char *ours = sg_origin_cookie(&(struct sg_header){"Cookie", cookies}, 1);
            fuzz_require(ours == NULL, "not our cookie");
            free(ours);
            free(cookies);
        }
    }
    fuzz_require(hosts == 1 && framings <= 1, "one Host and one framing");
}

static void check_request(const struct fuzz_head *h, bool own_origin)
{
    struct sg_buf out;
    char *upgrade = sg_proxy_upgrade(h->headers, h->n);
    const struct sg_proxy_request q = {.method = h->method,
                                       .target = h->target,
                                       .headers = h->headers,
                                       .n_headers = h->n,
                                       .port = 8000,
                                       .content_length = own_origin ? -1 : 5,
                                       .request_id = "req_1",
                                       .peer = "10.0.0.9",
                                       .proto = "https",
                                       .prefix = own_origin ? "" : "/leases/l/proxy/8000",
                                       .own_origin = own_origin,
                                       .drop_authorization = true,
                                       .drop_api_key = true,
                                       .trailers = sg_proxy_takes_trailers(h->headers, h->n),
                                       .upgrade = upgrade};
    sg_buf_init(&out, SG_PROXY_HEAD_MAX);
    if (sg_proxy_request_head(&q, &out, NULL) == 0)
        check_out(out.data, out.len, &q);
    sg_buf_finish(&out);
    free(upgrade);
}

static void check_token(const char *target)
{
    char *token, *rest;
    if (!sg_origin_cut_token(target, &token, &rest))
        return;
    fuzz_require(strlen(rest) < strlen(target), "the rest is shorter");
    char *again = NULL, *none = NULL;
    fuzz_require(!sg_origin_cut_token(rest, &again, &none), "and has no token any more");
    free(token);
    free(rest);
}

static void check_cookies(const char *value)
{
    char *cut = sg_origin_cut_cookie(value);
    fuzz_require(strstr(cut, SG_ENDPOINT_COOKIE "=") == NULL ||
                     sg_origin_cookie(&(struct sg_header){"Cookie", cut}, 1) == NULL,
                 "our cookie is cut");
    char *twice = sg_origin_cut_cookie(cut);
    fuzz_require(strcmp(cut, twice) == 0, "once for all");
    free(twice);
    free(cut);
    char *set = sg_origin_set_cookie(value);
    if (set != NULL) {
        char *again = sg_origin_set_cookie(set);
        fuzz_require(again != NULL && strcmp(again, set) == 0, "nor can a service set it");
        free(again);
    }
    free(set);
}

static void check_host(const char *host)
{
    char lease[SG_ID_MAX], label[SG_ORIGIN_LABEL_MAX], again[SG_ID_MAX];
    uint16_t port, port_again;
    if (sg_origin_parse(host, DOMAIN, &port, lease, NULL) < 0)
        return;
    fuzz_require(port > 0 && sg_id_valid("lease", lease) && sg_origin_covers(host, DOMAIN), "a lease's host");
    sg_origin_label(port, lease, label);
    char *made = sg_xasprintf("%s." DOMAIN, label);
    fuzz_require(sg_origin_parse(made, DOMAIN, &port_again, again, NULL) == 0 && port_again == port &&
                     strcmp(lease, again) == 0,
                 "and the same again");
    fuzz_require(strncasecmp(made, host, strlen(made)) == 0, "by the same name");
    free(made);
}

static void check_location(const char *value)
{
    char *moved = sg_proxy_location(value, "/leases/l/proxy/8000", 8000);
    fuzz_require(moved == NULL || strncmp(moved, "/leases/l/proxy/8000/", 21) == 0, "below the public path");
    free(moved);
    moved = sg_proxy_own_location(value, "https://h", 8000);
    fuzz_require(moved == NULL || strncmp(moved, "https://h/", 10) == 0, "below its origin");
    free(moved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t odd;
    struct fuzz_head h;
    struct sg_framing f;
    size_t n;
    fuzz_head_read(&h, data, size);
    const struct sg_head head = {.method = h.method,
                                 .version = "HTTP/1.1",
                                 .target = h.target,
                                 .headers = h.headers,
                                 .n_headers = h.n};
    if (sg_preflight_head(&head, &f, NULL) == 0 && sg_preflight_target(h.method, h.target, &n, &odd, NULL) == 0) {
        check_request(&h, false);
        check_request(&h, true);
        check_token(h.target);
        if (sg_proxy_split(h.target, &n, NULL) == 0)
            fuzz_require(n <= strlen(h.target) &&
                             (h.target[n] == '\0' || h.target[n] == '/' || h.target[n] == '?'),
                         "at a segment");
    }
    for (size_t i = 0; i < h.n; i++) {
        check_cookies(h.headers[i].value);
        check_host(h.headers[i].value);
        check_location(h.headers[i].value);
        (void)sg_proxy_trailer_passes(h.headers[i].name);
    }
    free(h.text);
    return 0;
}
