/* A real spawner with real slots, driven synchronously by a test; commands run through the real agent. */
#ifndef RIG_H
#define RIG_H

#include "backends/spawner/cgroup.h"
#include "backends/spawner/spawner.h"

#define RIG_WAIT_MS 30000

struct rig {
    uint32_t uid_base,
        user; /* who slots and an ordinary-user server are; of this test alone, as they are counted */
    char state[64];
    char agent[128];
    struct sg_spawner *sp;
    struct sg_reactor *reactor;
    bool died;
};

struct rig_slot {
    uint32_t n;
    struct sg_slot_built b;
    struct sg_cgroups *groups;
    uint64_t next_id;
};

enum rig_flags {
    RIG_USER_SERVER = 1, /* become an ordinary user first (or stay one) */
    RIG_NO_CGROUPS = 2,
};

/* Who an ordinary-user server becomes when the tests run as root: somebody else in every process. */
uint32_t rig_user(void);
/* Starts; cr_skip()s the test when it needs root and there is none. */
void rig_start(struct rig *r, unsigned flags);
void rig_config(const struct rig *r, struct sg_spawner_config *cfg, unsigned flags);
/* Makes the state directory (and the user), starts nothing. */
void rig_prepare(struct rig *r, unsigned flags);
void rig_attach(struct rig *r);
void rig_stop(struct rig *r);

struct sg_slot_spec rig_spec(uint32_t n);
/* 0, or -1 with err. */
int rig_build(struct rig *r, const struct sg_slot_spec *spec, struct rig_slot *s, struct sg_error *err);
/* Builds the default one, or fails the test. */
void rig_up(struct rig *r, uint32_t n, struct rig_slot *s);
int rig_destroy(struct rig *r, struct rig_slot *s, struct sg_error *err);

struct rig_result {
    int status, signal; /* of the command; -1: it was not started */
    int failed_stage, failed_error;
    char out[65536]; /* stdout and stderr, NUL-terminated */
};

/* Runs argv in the slot as commands run, and waits for its end. group: see sg_cgroups_acquire(), or NULL. */
void rig_run(struct rig_slot *s, struct sg_cgroup *group, const char *const *argv, struct rig_result *ret);
/* The same for /bin/sh -c, in a group of its own that is killed and given back afterwards. Returns the
 * status. */
int rig_sh(struct rig_slot *s, struct rig_result *ret, const char *script);
/* Starts and does not wait; the id to wait with. *out: the read end of its output. */
uint64_t rig_start_sh(struct rig_slot *s, struct sg_cgroup *group, const char *script, int *out);
void rig_wait(struct rig_slot *s, uint64_t id, struct rig_result *ret);

/* Waits until fd is readable; false when that takes too long. */
bool rig_readable(int fd, int timeout_ms);
/* How many processes (threads of init's children...) there are with a real uid in [from, to). */
unsigned rig_count_processes(unsigned from, unsigned to);
unsigned rig_count_fds(pid_t pid);

#endif
