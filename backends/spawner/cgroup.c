#include "backends/spawner/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

/* Groups kept for the next commands; four descriptors each. */
#define IDLE_MAX 16U

struct sg_cgroup {
    struct sg_cgroups *all;
    struct sg_cgroup *next, **at; /* in all->every */
    struct sg_cgroup *next_idle;
    char name[24];
    atomic_bool killed;    /* never used again: see cgroup.h */
    struct sg_watch watch; /* of events, while released and still populated */
    int dir, procs, kill, events;
};

struct sg_cgroups {
    struct sg_reactor *reactor;
    int dir;
    uint32_t agent_uid;
    pthread_mutex_t lock; /* guards the rest */
    struct sg_cgroup *every, *idle;
    unsigned n, n_idle;
    uint64_t made; /* names are never used twice */
};

int sg_cgroups_new(struct sg_cgroups **ret, struct sg_reactor *r, int dirfd, uint32_t agent_uid,
                   struct sg_error *err)
{
    if (dirfd < 0) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "no control groups for commands here");
    }
    struct sg_cgroups *gs = sg_xcalloc(1, sizeof *gs);
    gs->reactor = r;
    gs->dir = dirfd;
    gs->agent_uid = agent_uid;
    pthread_mutex_init(&gs->lock, NULL);
    *ret = gs;
    return 0;
}

static void group_free(struct sg_cgroup *g)
{
    sg_close(g->dir);
    sg_close(g->procs);
    sg_close(g->kill);
    sg_close(g->events);
    free(g);
}

struct sg_cgroups *sg_cgroups_free(struct sg_cgroups *gs)
{
    if (gs == NULL) {
        return NULL;
    }
    while (gs->every != NULL) {
        struct sg_cgroup *g = gs->every;
        gs->every = g->next;
        sg_watch_del(gs->reactor, &g->watch);
        (void)unlinkat(gs->dir, g->name, AT_REMOVEDIR); /* the spawner removes what is still busy */
        group_free(g);
    }
    sg_close(gs->dir);
    pthread_mutex_destroy(&gs->lock);
    free(gs);
    return NULL;
}

bool sg_cgroup_populated(const struct sg_cgroup *g)
{
    char text[256];
    ssize_t n = pread(g->events, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "populated 1") != NULL;
}

/* The group is empty and nobody holds it. */
static void put_back(struct sg_cgroup *g)
{
    struct sg_cgroups *gs = g->all;
    pthread_mutex_lock(&gs->lock);
    bool again = !atomic_load(&g->killed) && gs->n_idle < IDLE_MAX;
    if (again) {
        g->next_idle = gs->idle;
        gs->idle = g;
        gs->n_idle++;
    } else {
        *g->at = g->next;
        if (g->next != NULL) {
            g->next->at = g->at;
        }
        gs->n--;
    }
    pthread_mutex_unlock(&gs->lock);
    if (!again) {
        (void)unlinkat(gs->dir, g->name, AT_REMOVEDIR);
        group_free(g);
    }
}

/* Reactor thread: the group's population has changed since it was last read. */
static void changed(struct sg_watch *w, uint32_t events)
{
    struct sg_cgroup *g = (struct sg_cgroup *)((char *)w - offsetof(struct sg_cgroup, watch));
    (void)events;
    if (sg_cgroup_populated(g)) {
        return;
    }
    sg_watch_del(g->all->reactor, w);
    put_back(g);
}

static int open_failed(struct sg_error *err)
{
    bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    sg_error_sys(err, full ? SG_OVERLOADED : SG_INTERNAL, errno, "cannot open a control group");
    return full ? sg_error_retry_after(err, 1) : -1;
}

static int open_group(struct sg_cgroup *g, struct sg_error *err)
{
    struct sg_cgroups *gs = g->all;
    if (mkdirat(gs->dir, g->name, 0755) < 0 && errno != EEXIST) {
        return sg_error_sys(err, SG_OVERLOADED, errno, "cannot make a control group");
    }
    g->dir = openat(gs->dir, g->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (g->dir < 0) {
        return open_failed(err);
    }
    if (geteuid() == 0 && gs->agent_uid != 0 &&
        fchownat(g->dir, "cgroup.procs", gs->agent_uid, (gid_t)-1, 0) < 0) {
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot hand over a control group");
    }
    g->procs = openat(g->dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    g->kill = openat(g->dir, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    g->events = openat(g->dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (g->procs < 0 || g->kill < 0 || g->events < 0) {
        return open_failed(err);
    }
    g->watch = (struct sg_watch){.ready = changed, .fd = g->events};
    return 0;
}

/* An idle one, or leave to make the *number-th. Neither: too many. */
static struct sg_cgroup *take_idle(struct sg_cgroups *gs, uint64_t *number)
{
    pthread_mutex_lock(&gs->lock);
    struct sg_cgroup *g = gs->idle;
    if (g != NULL) {
        gs->idle = g->next_idle;
        gs->n_idle--;
    } else if (gs->n < SG_CGROUPS_MAX) {
        gs->n++;
        *number = ++gs->made;
    }
    pthread_mutex_unlock(&gs->lock);
    return g;
}

static int make_group(struct sg_cgroups *gs, uint64_t number, struct sg_cgroup **ret, struct sg_error *err)
{
    struct sg_cgroup *g = sg_xcalloc(1, sizeof *g);
    g->all = gs;
    g->dir = g->procs = g->kill = g->events = -1;
    snprintf(g->name, sizeof g->name, "x%" PRIu64, number);
    int r = open_group(g, err);
    pthread_mutex_lock(&gs->lock);
    if (r == 0) {
        g->next = gs->every;
        g->at = &gs->every;
        if (g->next != NULL) {
            g->next->at = &g->next;
        }
        gs->every = g;
    } else {
        gs->n--;
    }
    pthread_mutex_unlock(&gs->lock);
    if (r == 0) {
        *ret = g;
    } else {
        (void)unlinkat(gs->dir, g->name, AT_REMOVEDIR);
        group_free(g);
    }
    return r;
}

int sg_cgroups_acquire(struct sg_cgroups *gs, struct sg_cgroup **ret, struct sg_error *err)
{
    uint64_t number = 0;
    struct sg_cgroup *g = take_idle(gs, &number);
    if (g == NULL && number == 0) {
        return sg_error_set(err, SG_OVERLOADED, "%u commands or their children run in this sandbox already",
                            SG_CGROUPS_MAX);
    }
    if (g == NULL && make_group(gs, number, &g, err) < 0) {
        return -1;
    }
    *ret = g;
    return 0;
}

void sg_cgroup_release(struct sg_cgroup *g)
{
    if (!sg_cgroup_populated(g)) {
        put_back(g);
        return;
    }
    /* A change after the reading above makes the watch fire at once. */
    if (sg_watch_add(g->all->reactor, &g->watch, EPOLLPRI, NULL) < 0) {
        return; /* never used again */
    }
}

int sg_cgroup_dir(const struct sg_cgroup *g)
{
    return g->dir;
}

int sg_cgroup_procs(const struct sg_cgroup *g)
{
    return g->procs;
}

void sg_cgroup_kill(struct sg_cgroup *g)
{
    ssize_t n;
    atomic_store(&g->killed, true);
    do {
        n = write(g->kill, "1", 1);
    } while (n < 0 && errno == EINTR);
}

int64_t sg_oom_kills(int oom_fd)
{
    char text[512];
    ssize_t n = oom_fd < 0 ? -1 : pread(oom_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    const char *found = strstr(text, "oom_kill ");
    return found != NULL ? strtoll(found + strlen("oom_kill "), NULL, 10) : 0;
}
