/* The child of the spawner that becomes bubblewrap. */
#ifndef SG_BUILD_H
#define SG_BUILD_H

#include "backends/spawner/namespaces.h"
#include "backends/spawner/view.h"

struct sg_build {
    const char *bwrap;
    const struct sg_view *view;
    const struct sg_view_root *root;
    const struct sg_namespaces *ns;
    bool root_server;
    uint32_t agent_uid, command_uid; /* as the spawner sees them: 0 for both under an ordinary-user server */
    int64_t disk_bytes;
    bool open_net;              /* its resolv.conf names the helper's name server */
    const char *disk_dir;       /* absolute path of a directory to make, or NULL: a tmpfs of disk_bytes */
    int64_t pids, memory_bytes; /* by rlimit, under a root server; 0: no */
    pid_t parent;
    int agent_fd, info_fd, error_fd, seccomp_fd; /* CLOEXEC; seccomp_fd is shared and never moved */
};

/* Starts it, in the v2 group `group` (-1: none): its pid, or -errno. It execs bwrap, or writes one line to error_fd and exits. */
pid_t sg_build_start(const struct sg_build *b, const struct sg_groups *g, int group);

/* Limits a process and what it starts by rlimit; 0: not. pid 0: the caller. 0 or -errno. */
int sg_build_limit(pid_t pid, int64_t pids, int64_t memory_bytes);

#endif
