/* An agent that shares no kernel with the server: it is reached through a relay inside of its sandbox (relay.h), over a connection that carries only
 * bytes. What it does is what any agent does; sockets that listen inside stay there (sg_agent_accept()). */
#ifndef SG_AGENT_FAR_H
#define SG_AGENT_FAR_H

#include "backends/agent/client.h"
#include "base/pipe.h"

/* Why it is lost when the connection, or the relay, ended: the agent may be there all the same, and what was asked of it may have happened. */
#define SG_AGENT_RELAY_GONE "relay_gone"

struct sg_agent_far {
    struct sg_pipe *in;  /* what comes from the relay; a reference is taken. It is stopped at the end */
    struct sg_pipe *out; /* what goes to it, likewise. It is closed at the end */
    /* MAY be NULL: takes the relay's bytes out of what the connection wraps them in. > 0: so many bytes of data are used, and *ret_piece (*ret_len
     * bytes, may be 0) is what they hold; -1 and err. */
    ssize_t (*unwrap)(void *arg, const void *data, size_t len, const void **ret_piece, size_t *ret_len, struct sg_error *err);
    /* MAY be NULL: adds what else is known to err, why the connection ended. */
    void (*explain)(void *arg, struct sg_error *err);
    /* MAY be NULL: nothing of this is used any more. */
    void (*closed)(void *arg);
    void *arg; /* reactor thread */
    const char *spool; /* a directory for files on their way, which have no names there; copied */
};

/* As sg_agent_new(). Reactor thread. On failure closed() is not called. */
int sg_agent_new_far(const struct sg_agent_far *far, const struct sg_agent_options *o, struct sg_agent **ret, struct sg_error *err);

#endif
