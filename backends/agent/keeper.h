/* clang-format off */
/* What the server and its keeper say to each other.
 *
 *     sandgate-agent keeper FD [UID GID GROUP,GROUP...]
 *
 * A keeper starts agents outside of any namespace (`sandgate-agent host`), as the user given, and sees to it that whatever is left of one is dead
 * before it says that the agent is gone. It runs with the rights of the server, so that commands cannot touch it where they have another
 * user. It is a subreaper: what an agent that was killed had not killed itself comes to it. At the end of file of FD, a connected
 * SOCK_SEQPACKET socket, it kills everything and exits. A descriptor FD + 1 that is open stays so until then: for a lock.
 *
 *   START  two descriptors: the agent's socket, and its root directory. The id is the server's choice.
 *   KILL   ends the agent of that id, if there is one, and all that descends from it.
 *   GONE   from the keeper, once for each START: nothing of it is left (or it could not be started: status is an errno).
 */
/* clang-format on */
#ifndef SG_AGENT_KEEPER_H
#define SG_AGENT_KEEPER_H

#include <stdint.h>

#define SG_KEEPER_MAGIC 0x73674b31U
#define SG_KEEPER_AGENTS_MAX 1024U
#define SG_KEEPER_GROUPS_MAX 64U

enum sg_keeper_op { SG_KEEPER_START = 1, SG_KEEPER_KILL, SG_KEEPER_GONE = 64 };

struct sg_keeper_msg {
    uint32_t magic, op;
    uint64_t id;
    int32_t status;
    uint32_t unused;
};

#endif
