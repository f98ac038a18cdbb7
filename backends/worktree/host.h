/* Processes on the host itself, outside of any sandbox, as one configured user: agents, and the keeper (backends/agent/keeper.h) that starts
 * them and sees to their end. There is no isolation here; what this is about is that nothing stays behind, whatever the processes do and
 * whoever of server, keeper and agents is killed.
 *
 * Any thread, nothing blocks unless said otherwise. A keeper that dies is replaced with the next start.
 */
#ifndef SG_HOST_H
#define SG_HOST_H

#include "base/error.h"
#include "base/reactor.h"

struct sg_host;

/* Who the processes run as. */
struct sg_host_user {
    char name[64]; /* "": it has none */
    uint32_t uid, gid;
};

struct sg_host_config {
    const char *agent_path; /* absolute: sandgate-agent */
    /* A file: whoever starts takes a lock on it and waits (10 s at most) until a former server's keeper has let go of it, which is when
     * nothing of that one runs any more. */
    const char *lock_path;
    /* A name or a number; NULL: our own. A root server must name one, and not root; another server can only be itself. */
    const char *user;
};

/* Checks the user, takes the lock, starts the keeper. Blocks. SG_INVALID_REQUEST with `field` worktree.user; SG_UNAVAILABLE. */
int sg_host_new(const struct sg_host_config *cfg, struct sg_reactor *r, struct sg_host **ret, struct sg_error *err);
/* Kills everything and waits until it is gone (12 s at most). Callbacks still owed are dropped. Not on the reactor thread, whose reactor
 * must still run. Blocks. NULL-safe, returns NULL. */
struct sg_host *sg_host_free(struct sg_host *h);

const struct sg_host_user *sg_host_user(const struct sg_host *h);
/* The user of that name or number (NULL: our own), if commands may run as it. */
int sg_host_find_user(const char *name, struct sg_host_user *ret, struct sg_error *err);

/* Starts an agent with SG_AGENT_HOST. root: the directory it calls "/", borrowed. *ret_sock: our end for sg_agent_new(), which hears whether
 * it really runs. gone: once, on the reactor thread, when nothing of it runs any more; err: that cannot be told, because the keeper died.
 * *ret_id is for sg_host_kill(). SG_OVERLOADED, SG_UNAVAILABLE: nothing was started, and gone does not come. */
int sg_host_start(struct sg_host *h, int root, void (*gone)(void *arg, const struct sg_error *err), void *arg, int *ret_sock,
                  uint64_t *ret_id, struct sg_error *err);
/* Ends the agent and everything that descends from it; gone comes. Of one that is gone already: nothing. */
void sg_host_kill(struct sg_host *h, uint64_t id);

#endif
