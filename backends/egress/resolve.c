#include "backends/egress/resolve.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <resolv.h>
#include <stdatomic.h>

#include "backends/egress/host.h"
#include "base/workq.h"

#define THREADS 8U
#define WAITING_MAX 256U
/* Of each attempt at each name server. */
#define SECONDS 2
#define ATTEMPTS 2

struct sg_resolver {
    struct sg_workq *workq;
    atomic_bool closing;
};

struct lookup {
    struct sg_work work;
    struct sg_resolver *resolver;
    char *name;
    void (*done)(void *arg, const struct sg_resolved *a);
    void *arg;
};

int sg_resolver_new(struct sg_resolver **ret, struct sg_error *err)
{
    struct sg_resolver *r = sg_xcalloc(1, sizeof *r);
    if (sg_workq_new(THREADS, WAITING_MAX, &r->workq, err) < 0) {
        free(r);
        return -1;
    }
    *ret = r;
    return 0;
}

struct sg_resolver *sg_resolver_free(struct sg_resolver *r)
{
    if (r != NULL) {
        atomic_store(&r->closing, true);
        sg_workq_free(r->workq);
        free(r);
    }
    return NULL;
}

static void mark_own(struct sg_resolved *a)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) < 0) { /* nobody knows: take no chance */
        a->n = 0;
        return;
    }
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        struct in6_addr one;
        if (i->ifa_addr == NULL || !sg_address_from(i->ifa_addr, &one)) {
            continue;
        }
        for (size_t k = 0; k < a->n; k++) {
            a->own[k] = a->own[k] || sg_address_equal(&one, &a->address[k]);
        }
    }
    freeifaddrs(all);
}

/* Not with a dot at its end: /etc/hosts would not know it. */
static void look_up(const char *name, struct sg_resolved *a)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    if (res_init() == 0) { /* this thread's: reads resolv.conf again, too */
        _res.retrans = SECONDS;
        _res.retry = ATTEMPTS;
        _res.options &= ~((unsigned long)RES_DNSRCH | (unsigned long)RES_DEFNAMES); /* the name, and no longer one */
    }
    if (getaddrinfo(name, NULL, &hints, &all) != 0) {
        return;
    }
    for (const struct addrinfo *i = all; i != NULL && a->n < SG_RESOLVE_MAX; i = i->ai_next) {
        a->n += sg_address_from(i->ai_addr, &a->address[a->n]) ? 1 : 0;
    }
    freeaddrinfo(all);
    mark_own(a);
}

static void run(struct sg_work *w)
{
    struct lookup *l = sg_container_of(w, struct lookup, work);
    struct sg_resolved a = {.n = 0};
    if (!atomic_load(&l->resolver->closing)) {
        look_up(l->name, &a);
    }
    l->done(l->arg, &a);
    free(l->name);
    free(l);
}

int sg_resolve(struct sg_resolver *r, const char *name, void (*done)(void *arg, const struct sg_resolved *a), void *arg,
               struct sg_error *err)
{
    struct lookup *l = sg_xcalloc(1, sizeof *l);
    *l = (struct lookup){.work.run = run, .resolver = r, .name = sg_xstrdup(name), .done = done, .arg = arg};
    if (sg_workq_submit(r->workq, &l->work, err) == 0) {
        return 0;
    }
    free(l->name);
    free(l);
    return -1;
}
