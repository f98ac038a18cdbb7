/* Packets of protocol.h with their descriptors, out and in; for both ends. Nothing here blocks. */
#ifndef SG_AGENT_PACKETS_H
#define SG_AGENT_PACKETS_H

#include "backends/agent/protocol.h"

/* One packet; fds (at most SG_AGENT_FDS_MAX) are borrowed. 0 or an errno. */
int sg_agent_transmit(int sock, const void *data, size_t len, const int *fds, unsigned n);
/* One packet into buf. > 0: its bytes, and *n descriptors (at most SG_AGENT_FDS_MAX) that are the caller's; 0: end of file; -errno, -EPROTO for what
 * does not fit. */
ssize_t sg_agent_receive(int sock, void *buf, size_t cap, int *fds, unsigned *n);

/* Packets that wait until a socket takes them, in order. Zero-initialized but for sock. */
struct sg_agent_post {
    int sock;
    struct sg_agent_posted *first, **last;
    size_t waiting;
};
/* Sends or keeps it; fds are taken over. 0 or an errno: nobody is there any more, or SG_AGENT_POSTED_MAX wait. */
#define SG_AGENT_POSTED_MAX 16384U
int sg_agent_post(struct sg_agent_post *p, const void *data, size_t len, const int *fds, unsigned n);
/* 0: all of them went out, EAGAIN: some are left; else an errno. */
int sg_agent_post_flush(struct sg_agent_post *p);
void sg_agent_post_finish(struct sg_agent_post *p);

#endif
