/* Sandboxes that are containers of a Docker engine (or one with its API), each with an agent as its first process: commands, files and
 * ports go through the agent as in other local sandboxes, whatever the network; the engine is only asked to make, find and remove. */
#ifndef SG_DOCKER_H
#define SG_DOCKER_H

#include "backends/docker/config.h"
#include "backends/driver.h"
#include "backends/net/http.h"
#include "base/reactor.h"
#include "base/workq.h"

/* All borrowed; they outlive the driver. */
struct sg_docker_parts {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_net *net;
    /* MAY be NULL: what proxies refuse. Reactor thread; must not block or call the driver. */
    void (*egress)(void *arg, const struct sg_egress_event *e);
    /* MAY be NULL: how pulls go. Likewise. */
    void (*pull)(void *arg, const struct sg_docker_pull *e);
    void *event_arg;
};

/* Does not wait for the engine: a driver whose engine is away is unhealthy until it comes. Reads and writes c->dir. */
int sg_docker_new(const struct sg_docker_config *c, const struct sg_docker_parts *parts, struct sg_driver **ret, struct sg_error *err);

#endif
