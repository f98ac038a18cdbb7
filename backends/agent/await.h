/* An agent that its servers come to. */
#ifndef SG_AGENT_AWAIT_H
#define SG_AGENT_AWAIT_H

#include "backends/agent/inside.h"

/* The number of the connection to the server, in every mode. */
#define AGENT_SOCK 3

/* Of an event: the next server is there. */
#define AGENT_NEXT UINT64_MAX

/* A listening socket with the name SG_AGENT_SOCKET_NAME in dir, or -errno; -EEXIST: an agent has listened there before. */
int await_listen(const char *dir);
/* The server is gone, or there was none yet: ends what it had begun and waits for one, at most a->grace_ms; then the program ends.
 * Answers for nobody are thrown away meanwhile. */
void await_server(struct agent *a, void (*reap)(struct agent *a));

#endif
