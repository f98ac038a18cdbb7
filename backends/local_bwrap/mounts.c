/* Keeps a sandbox's mount namespace until the sandbox is dead.
 *
 * The last process of a mount namespace takes it apart before it counts as dead, and that waits for RCU grace
 * periods: most of the time that a kill took (measured: 1 to 4 ms, 0.4 ms without). Held open here, it is
 * taken apart by the close, on a worker. An ordinary user's server may not open it and goes without.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>

#include "backends/local_bwrap/pool_priv.h"

struct drop {
    struct sg_work work;
    int fd;
    struct sg_hold *hold; /* the slot is not used again before the close is over */
};

void mounts_keep(struct gen *g)
{
    char path[64];
    struct pollfd alive = {.fd = g->built.pidfd, .events = POLLIN};
    (void)snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)g->built.agent_pid);
    g->mounts = open(path, O_RDONLY | O_CLOEXEC);
    if (g->mounts >= 0 && poll(&alive, 1, 0) != 0) {
        g->mounts = sg_close(g->mounts); /* it died, and the number may be somebody else's */
    }
    if (g->mounts >= 0) {
        g->mounts_hold = sg_hold_ref(g->hold);
    }
}

static void drop_run(struct sg_work *w)
{
    struct drop *d = (struct drop *)w;
    sg_close(d->fd);
    sg_hold_unref(d->hold);
    free(d);
}

void mounts_drop(struct gen *g)
{
    if (g->mounts < 0) {
        return;
    }
    struct drop *d = sg_xcalloc(1, sizeof *d);
    d->work.run = drop_run;
    d->fd = sg_steal_fd(&g->mounts);
    d->hold = sg_steal(&g->mounts_hold);
    if (sg_workq_submit(g->l->parts.workq, &d->work, NULL) < 0) {
        drop_run(&d->work);
    }
}
