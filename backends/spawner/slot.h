/* One slot inside the spawner: EMPTY, BUILDING, UP, ENDING, driven by the daemon's loop. */
#ifndef SG_SLOT_H
#define SG_SLOT_H

#include <sys/types.h>

#include "backends/spawner/daemon.h"
#include "backends/spawner/namespaces.h"
#include "backends/spawner/wire.h"

struct sg_daemon {
    struct sg_daemon_args *args;
    struct sg_view view;
    int seccomp[2]; /* [1]: clone3 is left to the agent */
    int epoll;
    int slots_dir; /* where disk directories are made; -1 until one is */
    struct sg_slot *slots[SG_SPAWNER_SLOTS_MAX];
};

/* What an event is about; with the slot's number it is the epoll data. */
enum sg_slot_event {
    SG_EV_CONTROL,
    SG_EV_SIGNAL,
    SG_EV_INFO,
    SG_EV_ERRORS,
    SG_EV_AGENT,
    SG_EV_PIDFD,
    SG_EV_EMPTY,
    SG_EV_NET
};

/* Watches fd for events on behalf of a slot (0 for the daemon's own). */
int sg_daemon_watch(struct sg_daemon *d, int fd, uint32_t events, enum sg_slot_event kind, uint32_t slot);
void sg_daemon_answer(struct sg_daemon *d, const struct sg_wire_answer *a, const int *fds, unsigned n_fds);
/* The directory below state_dir that holds disk directories; -1 with errno. */
int sg_daemon_slots_dir(struct sg_daemon *d);

void sg_slot_build(struct sg_daemon *d, const struct sg_wire_request *r);
void sg_slot_limit(struct sg_daemon *d, const struct sg_wire_request *r);
void sg_slot_destroy(struct sg_daemon *d, const struct sg_wire_request *r);
void sg_slot_on_event(struct sg_daemon *d, uint32_t n, enum sg_slot_event kind);
void sg_slot_on_exit(struct sg_daemon *d, pid_t pid);
/* Acts on what is overdue; returns when to come back (sg_now_ms() time), or INT64_MAX. */
int64_t sg_slot_on_time(struct sg_daemon *d, int64_t now_ms);

#endif
