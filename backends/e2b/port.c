/* Ports of a sandbox, which the provider has a public name for each. */
#include "backends/e2b/e2b_priv.h"

#include "backends/cloud/place.h"
#include "base/json.h"

struct json_t *e2b_public_url(struct sg_sandbox *base, uint16_t port)
{
    const struct e2b_sandbox *sb = (const struct e2b_sandbox *)base;
    json_t *headers = json_object();

    if (sb->traffic)
        json_object_set_new(headers, "e2b-traffic-access-token", json_string(sg_secret_expose(sb->traffic, NULL)));
    sg_cleanup(sg_free_p) char *url = sg_xasprintf("https://%u-%s.%s/", (unsigned)port, base->id, sb->d->domain);
    return json_pack("{s:s, s:o}", "url", url, "headers", headers);
}

struct asking {
    struct e2b_sandbox *sb;
    struct sg_done done;
};

/* 502 is the edge's: nothing listens, or there is no such sandbox any more. */
static void asked(void *arg, const struct sg_error *err)
{
    struct asking *a = arg;

    if (err && json_integer_value(json_object_get(err->members, "provider_status")) == 502)
        e2b_check(a->sb);
    a->done.fn(a->done.arg, err);
    sg_sandbox_unref(&a->sb->base);
    free(a);
}

int e2b_ask_port(struct sg_sandbox *base, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done, struct sg_error *err)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;
    sg_cleanup(sg_json_p) json_t *place = e2b_public_url(base, port);
    struct asking *a = sg_xcalloc(1, sizeof *a);

    a->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    a->done = *done;
    if (sg_place_ask(sb->d->ports, place, path, deadline_ms, &(struct sg_done){asked, a}, err) == 0)
        return 0;
    sg_sandbox_unref(base);
    free(a);
    return -1;
}

int e2b_ports_new(struct e2b *d, struct sg_net *net, struct sg_net_client_config c, const char *url, struct sg_error *err)
{
    bool tls = !url || strncmp(url, "https:", 6) == 0;
    const char *at = url ? strstr(url, "://") : NULL;
    sg_cleanup(sg_free_p) char *base = sg_xasprintf("%s://%s", tls ? "https" : "http", d->domain);
    sg_cleanup(sg_free_p) char *host = at ? sg_xstrndup(at + 3, strcspn(at + 3, "/")) : NULL;
    const char *colon = host ? strrchr(host, ':') : NULL;
    bool port = colon && !strchr(colon, ']');
    sg_cleanup(sg_free_p) char *to = host ? sg_xasprintf("%s%s", host, port ? "" : tls ? ":443" : ":80") : NULL;

    c.base = base;
    c.connect_to = to;
    c.http2 = false; /* every port has a connection of its own */
    return sg_net_client_new(net, &c, &d->ports, err);
}
