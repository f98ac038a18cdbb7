/* What the server and its spawner say to each other: fixed packets over a SOCK_SEQPACKET pair, both ends of
 * one binary. A packet of another size, magic or number of descriptors is an error of the connection. */
#ifndef SG_SPAWNER_WIRE_H
#define SG_SPAWNER_WIRE_H

#include "backends/spawner/spawner.h"

#define SG_WIRE_MAGIC 0x73674731U
#define SG_WIRE_FDS_MAX 8U

enum sg_wire_op {
    SG_WIRE_BUILD = 1, /* server to spawner */
    SG_WIRE_DESTROY,
    SG_WIRE_LIMIT, /* slot, disk_bytes, memory_bytes, pids, cpu_milli */
    SG_WIRE_READY = 64, /* spawner to server: it has started (or, with a code, has not) */
    SG_WIRE_BUILT,
    SG_WIRE_DESTROYED,
    SG_WIRE_LIMITED, /* the means, and the descriptors of limits */
};

struct sg_wire_request {
    uint32_t magic, op;
    uint64_t id; /* comes back in the answer */
    uint32_t slot;
    int32_t rootfs; /* index into the configured ones, -1: the host's */
    uint32_t disk_dir, open_net;
    int64_t disk_bytes, memory_bytes, pids, cpu_milli, deadline_ms;
};

struct sg_wire_answer {
    uint32_t magic, op;
    uint64_t id;
    uint32_t code; /* enum sg_code; SG_OK with BUILT or LIMITED: fds says which descriptors travel along */
    int32_t sys;
    uint32_t fds; /* bits: 0 agent, 1 pidfd, 2 cgroup, 3 oom, 4-6 limits, 7 network helper; in this order */
    int32_t agent_pid;
    uint32_t agent_uid, command_uid;
    uint32_t isolation, tree_kill, memory, pids, cpu, disk; /* also the facts of READY */
    char message[400];
};

/* Sends one packet; 0, -EAGAIN, or another negative errno. */
int sg_wire_send(int sock, const void *packet, size_t size, const int *fds, unsigned n_fds);
/* Receives one packet of exactly size bytes with its descriptors (all or none: none arrive when this process has no
 * room for them). 1: got one, 0: end of file, -EAGAIN, -EBADMSG, or another negative errno. */
int sg_wire_receive(int sock, void *packet, size_t size, int fds[SG_WIRE_FDS_MAX], unsigned *n_fds);

#endif
