/* What the agent does before it says HELLO: give up everything it will not need. */
#ifndef SG_AGENT_SETUP_H
#define SG_AGENT_SETUP_H

#include "backends/agent/inside.h"

/* Checks the arguments, closes what was inherited, drops rights, opens what is needed and says HELLO. Ends
 * the program with a line on stderr when something of it cannot be done. */
void setup(struct agent *a, int argc, char **argv);

/* In a fresh worker: an empty queue, and no descriptors of other requests' answers. */
void setup_worker(struct agent *a);
/* Waits (10 s at most) until its answer has been taken. */
void setup_worker_flush(struct agent *a);

#endif
