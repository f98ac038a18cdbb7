/* What the files of the composition root share. */
#ifndef SG_APP_PRIV_H
#define SG_APP_PRIV_H

#include "app.h"
#include "base/workq.h"
#include "backends/net/http.h"
#include "backends/spawner/spawner.h"
#include "backends/worktree/worktree.h"
#include "http/api.h"

/* Everything that main builds, in the order it is built. */
struct app {
    const struct sg_config *cfg;
    const struct sg_config_args *args;
    char *state_dir; /* absolute */
    int lock_fd;
    int listen_fd;
    struct sg_log *log;
    struct sg_roots *roots;
    struct sg_spawner *spawner;
    _Atomic bool spawner_dead;
    _Atomic bool recovered; /* the leases of the server before are in memory */
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_store *store;
    struct sg_net *net;
    struct sg_repos *repos;
    struct sg_backends *backends;
    struct sg_names held;
    struct sg_service_price *prices;
    struct sg_service *service;
    struct sg_auth *auth;
    struct sg_metrics *metrics;
    struct sg_upstreams *upstreams;
    struct sg_api api;
    struct sg_http *http;
    struct sg_http *metrics_http;
};

/* ---- app_backends.c ---- */

/* Before any thread exists: it is forked. Nothing to do where no backend needs it. */
int sg_app_start_spawner(struct app *a, struct sg_error *err);
/* All that are enabled. The store is open, threads run. */
int sg_app_build_backends(struct app *a, struct sg_error *err);

#endif
