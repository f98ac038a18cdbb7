/* Sandboxes of E2B: its API for their lives, the daemon inside each for commands and files.
 *
 * Facts the driver rests on: a sandbox is labelled with this server and its lease when it is made, and found by that; the provider ends
 * it by itself a little after the lease would; commands run as the template's user `user` under a wrapper of ours (perl), which is what
 * makes exact exits and the end of whole process trees possible; files are handled as that user too.
 */
#ifndef SG_E2B_H
#define SG_E2B_H

#include "backends/driver.h"
#include "backends/net/http.h"
#include "base/reactor.h"

/* Borrowed for the call, strings included. */
struct sg_e2b_config {
    const char *api_url;     /* NULL: https://api.DOMAIN */
    const char *sandbox_url; /* NULL: https://sandbox.DOMAIN */
    const char *port_url;    /* where this server itself reaches the ports of sandboxes, http(s)://HOST[:PORT]; NULL: at https://PORT-ID.DOMAIN */
    const char *domain;      /* NULL: e2b.app */
    const char *template_name; /* of a lease that names no image; MAY be NULL */
    const char *ca_file;     /* PEM, in place of the system's; or NULL */
    const struct sg_secret *proxy; /* as sg_net_client_config has it, or NULL */
    unsigned max_concurrent; /* calls at a time to the API, and to the daemons */
    int64_t timeout_ms;      /* of a call to the API */
    int64_t sweep_ms;        /* between two looks at what the provider has */
    int64_t grace_ms;        /* how old what nobody has must be to be removed */
    const char *spool_dir;   /* where files without a name hold what is on its way from a sandbox */
    const char *server;      /* label of this server, of [A-Za-z0-9._-] */
};

/* All borrowed; they outlive the driver. */
struct sg_e2b_parts {
    struct sg_net *net;
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    bool (*live)(void *arg, const char *lease); /* as sg_fleet_config; or NULL */
    void *live_arg;
    /* MAY: the provider had a sandbox of this server's that no lease has ("": or no label of one); it is being removed. Any thread. */
    void (*orphan)(void *arg, const char *provider, const char *sandbox_id, const char *lease_id);
    void *orphan_arg;
};

/* SG_UNAVAILABLE: E2B_API_KEY is not held. */
int sg_e2b_new(const struct sg_e2b_config *c, const struct sg_e2b_parts *p, struct sg_driver **ret, struct sg_error *err);

#endif
