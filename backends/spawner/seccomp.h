/* The system call filter of every process in a slot, as BPF in a sealed memfd. */
#ifndef SG_SECCOMP_H
#define SG_SECCOMP_H

#include "base/error.h"

enum sg_seccomp_flags {
    /* Commands share the agent's uid: also refuse what could reach the sandbox's first process. */
    SG_SECCOMP_ONE_UID = 1,
    /* Leave clone3 to the agent, which refuses it for its commands: only where the user namespace itself
     * refuses new ones. Else clone3 is ENOSYS, since a filter cannot see its flags. */
    SG_SECCOMP_CLONE3 = 2,
};

/* *ret: read-only descriptor for bwrap's --seccomp, at offset 0, CLOEXEC. */
int sg_seccomp_filter(unsigned flags, int *ret, struct sg_error *err);

#endif
