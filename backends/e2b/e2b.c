#include "backends/e2b/e2b_priv.h"

#include <stdatomic.h>

#include "backends/facts.h"
#include "base/json.h"

#define STREAMS_MAX 4096U
#define WAITING_PER_TURN 16U /* more would only wait until they are too late */
#define RECEIVE_BUFFER (256 * 1024)

static struct json_t *metadata(struct sg_sandbox *base)
{
    (void)base;
    return json_pack("{s:s, s:s}", "isolation", "vm", "tree_kill", "subreaper");
}

static int health(struct sg_driver *base, struct sg_error *err)
{
    return sg_origin_health(((struct e2b *)base)->api, err);
}

static void report(struct sg_driver *base, struct sg_provider_report *ret)
{
    struct e2b *d = (struct e2b *)base;

    sg_origin_report(d->api, SG_PROVIDER_API, ret);
    sg_origin_report(d->data, SG_PROVIDER_SANDBOX, ret);
    sg_client_report(d->streams, SG_PROVIDER_STREAM, ret);
    sg_fleet_report(d->fleet, ret);
}

static int check(struct sg_driver *base, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    const struct e2b *d = (const struct e2b *)base;
    const struct sg_limits *l = &spec->limits;

    if (spec->local_pool && spec->local_pool[0])
        return sg_error_field(err, SG_NOT_SUPPORTED, "local_pool", "e2b comes from no local pool");
    if (spec->egress_given && spec->egress == SG_EGRESS_RESTRICTED)
        return sg_error_field(err, SG_NOT_SUPPORTED, "network_egress_class", "e2b has none, loopback and open");
    if (l->memory_bytes || l->pids || l->cpu_milli || l->disk_bytes)
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits", "e2b sets them in the template, not for a lease");
    if (spec->snapshot_ref && spec->image)
        return sg_error_field(err, SG_NOT_SUPPORTED, "image", "a sandbox of e2b is made of a snapshot or of an image, not of both");
    if (!spec->snapshot_ref && !spec->image && !d->template_name)
        return sg_error_field(err, SG_NOT_SUPPORTED, "image", "(or env_args.sandbox_image) names no template of e2b, and this server has no default one (e2b.template)");
    if (spec->image && strspn(spec->image, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/:-") != strlen(spec->image))
        return sg_error_field(err, SG_NOT_SUPPORTED, "image", "is no name of a template of e2b: those are letters, digits, '.', '_', '-', '/' and ':'");
    return 0;
}

void e2b_unref(struct e2b *d)
{
    if (atomic_fetch_sub(&d->refs, 1) > 1)
        return;
    sg_fleet_free(d->fleet);
    sg_alarms_free(d->alarms);
    free(d->domain);
    free(d->template_name);
    free(d->server);
    free(d->spool_dir);
    free(d);
}

/* Leases may keep their sandboxes longer. */
static void drop(struct sg_driver *base)
{
    struct e2b *d = (struct e2b *)base;

    atomic_store(&d->closing, true);
    if (d->alarms)
        sg_alarms_close(d->alarms);
    sg_net_client_free(d->streams);
    sg_net_client_free(d->ports);
    sg_origin_free(d->data);
    sg_origin_free(d->api);
    e2b_unref(d);
}

static int read_key(struct sg_secret **ret, struct sg_error *err)
{
    int held = sg_secret_from_env("E2B_API_KEY", ret, err);

    if (held != 0)
        return held < 0 ? -1 : 0;
    return sg_error_set(err, SG_UNAVAILABLE, "needs E2B_API_KEY (or E2B_API_KEY_FILE) in the environment");
}

static int reload(struct sg_driver *base, struct sg_error *err)
{
    struct sg_secret *key = NULL;

    if (read_key(&key, err) < 0)
        return -1;
    sg_origin_set_key(((struct e2b *)base)->api, key);
    return 0;
}

static const struct sg_driver_ops e2b_ops = {
    .create = e2b_create,
    .check = check,
    .adopt = e2b_adopt,
    .extend = e2b_extend,
    .terminate = e2b_terminate,
    .sandbox_free = e2b_sandbox_free,
    .exec_start = e2b_exec,
    .files = &e2b_file_ops,
    .snapshots = &e2b_snapshot_ops,
    .public_url = e2b_public_url,
    .ask_port = e2b_ask_port,
    .metadata = metadata,
    .health = health,
    .report = report,
    .reload = reload,
    .free = drop,
};

static struct sg_net_client_config client(const struct sg_e2b_config *c, const char *base)
{
    unsigned waiting = WAITING_PER_TURN * c->max_concurrent;

    return (struct sg_net_client_config){.base = base, .ca_file = c->ca_file, .proxy = c->proxy, .http2 = strncmp(base, "https:", 6) == 0,
                                         .max_concurrent = c->max_concurrent, .max_waiting = waiting < SG_NET_WAITING_MAX ? waiting : SG_NET_WAITING_MAX};
}

static int connect_to(struct e2b *d, const struct sg_e2b_config *c, const struct sg_e2b_parts *p, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *api = c->api_url ? sg_xstrdup(c->api_url) : sg_xasprintf("https://api.%s", d->domain);
    sg_cleanup(sg_free_p) char *data = c->sandbox_url ? sg_xstrdup(c->sandbox_url) : sg_xasprintf("https://sandbox.%s", d->domain);
    struct sg_secret *key = NULL;

    if (read_key(&key, err) < 0)
        return -1;
    struct sg_net_client_config ac = client(c, api), dc = client(c, data), sc = client(c, data);
    sc.http2 = false; /* the library would take 32 MiB ahead of each reader who does not read */
    sc.max_concurrent = STREAMS_MAX;
    sc.max_waiting = 0;
    sc.receive_buffer = RECEIVE_BUFFER;
    const struct sg_origin_config ao = {.provider = "e2b", .net = p->net, .alarms = d->alarms, .client = ac, .key_header = "X-API-Key", .key = key};
    const struct sg_origin_config od = {.provider = "e2b", .net = p->net, .alarms = d->alarms, .client = dc};
    if (sg_origin_new(&ao, &d->api, err) < 0 || sg_origin_new(&od, &d->data, err) < 0)
        return -1;
    if (e2b_ports_new(d, p->net, client(c, ""), c->port_url, err) < 0)
        return -1;
    return sg_net_client_new(p->net, &sc, &d->streams, err);
}

static void orphan(void *arg, const struct sg_fleet_item *item)
{
    const struct e2b *d = arg;

    if (d->orphan)
        d->orphan(d->orphan_arg, "e2b", item->id, item->lease);
}

int sg_e2b_new(const struct sg_e2b_config *c, const struct sg_e2b_parts *p, struct sg_driver **ret, struct sg_error *err)
{
    struct e2b *d = sg_xcalloc(1, sizeof *d);

    d->refs = 1;
    d->base.ops = &e2b_ops;
    (void)sg_facts_get("e2b", NULL, &d->base.facts);
    d->reactor = p->reactor;
    d->workq = p->workq;
    d->alarms = sg_alarms_new(p->reactor);
    d->domain = sg_xstrdup(c->domain ? c->domain : "e2b.app");
    d->template_name = c->template_name ? sg_xstrdup(c->template_name) : NULL;
    d->server = sg_xstrdup(c->server);
    d->spool_dir = sg_xstrdup(c->spool_dir);
    d->timeout_ms = c->timeout_ms;
    if (connect_to(d, c, p, err) < 0) {
        drop(&d->base);
        return -1;
    }
    const struct sg_fleet_config fc = {.alarms = d->alarms, .sweep_ms = c->sweep_ms, .grace_ms = c->grace_ms,
                                       .list = e2b_list, .remove = e2b_remove, .missing = e2b_missing, .arg = d,
                                       .live = p->live, .live_arg = p->live_arg, .orphan = orphan, .orphan_arg = d};
    d->orphan = p->orphan;
    d->orphan_arg = p->orphan_arg;
    d->fleet = sg_fleet_new(&fc);
    *ret = &d->base;
    return 0;
}
