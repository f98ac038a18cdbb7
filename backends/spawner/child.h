/* What every child of the spawner does on its way to becoming another program: bubblewrap, or the helper of a network. */
#ifndef SG_SPAWNER_CHILD_H
#define SG_SPAWNER_CHILD_H

#include <stdint.h>
#include <sys/types.h>

/* Writes what and errno as one line to error_fd, and exits. */
_Noreturn void sg_child_die(int error_fd, const char *what);

/* What the spawner ignores, or the server did, is not for the program to inherit. */
void sg_child_reset_signals(void);
/* Dies with the spawner, whose pid parent is. The kernel forgets this when the uid changes, so it is said again then. */
void sg_child_tie(pid_t parent);
/* Is killed before others when memory is out. */
void sg_child_offer_to_oom_killer(void);
/* The uid for all of user and group. 0, or -1 with errno. */
int sg_child_become(uint32_t uid);
/* Leaves fd open for the program, and returns it. Says why not on error_fd, and exits. */
int sg_child_keep(int fd, int error_fd);

#endif
