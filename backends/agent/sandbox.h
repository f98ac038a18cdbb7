/* A sandbox whose files, ports and commands are an agent's: what every driver of such sandboxes would write alike. */
#ifndef SG_AGENT_SANDBOX_H
#define SG_AGENT_SANDBOX_H

#include "backends/agent/client.h"

#include <pthread.h>

/* First in the driver's own struct. Any thread. */
struct sg_agent_sandbox {
    struct sg_sandbox sb;
    pthread_mutex_t lock;   /* guards the rest */
    struct sg_agent *agent; /* one reference; NULL: ended or lost */
    bool lost;              /* with an agent: for its files only, until its owner terminates it */
    struct sg_error why; /* of lost */
};

void sg_agent_sandbox_init(struct sg_agent_sandbox *s, struct sg_driver *d);
void sg_agent_sandbox_finish(struct sg_agent_sandbox *s);
/* Gives it an agent, also one that was lost with the one before, whose reference is taken over. */
void sg_agent_sandbox_set(struct sg_agent_sandbox *s, struct sg_agent *a);
/* Takes the agent away, to be closed and dropped by the caller; NULL when there is none. why (borrowed) NULL: the sandbox has been
 * terminated; else it is lost, once and for good. */
struct sg_agent *sg_agent_sandbox_take(struct sg_agent_sandbox *s, const struct sg_error *why);
/* One reference on the agent; NULL with SG_LEASE_GONE, or with why it was lost. */
struct sg_agent *sg_agent_sandbox_agent(struct sg_sandbox *sb, struct sg_error *err);

/* The slots of struct sg_driver_ops. */
extern const struct sg_file_ops sg_agent_sandbox_files;
int sg_agent_sandbox_dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                          struct sg_error *err);

#endif
