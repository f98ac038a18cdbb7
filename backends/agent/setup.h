/* What the agent does before it says HELLO: give up everything it will not need. */
#ifndef SG_AGENT_SETUP_H
#define SG_AGENT_SETUP_H

#include "backends/agent/inside.h"

/* Checks the arguments, closes what was inherited, drops rights and opens what is needed. Ends the program with a line on stderr when
 * something of it cannot be done. */
void setup(struct agent *a, int argc, char **argv);
/* Says HELLO to the server that is there now. */
void setup_hello(struct agent *a);

/* In a fresh worker: an empty queue, and no descriptors of other requests' answers. */
void setup_worker(struct agent *a);
/* Waits (10 s at most) until its answer has been taken. */
void setup_worker_flush(struct agent *a);

#endif
