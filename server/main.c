#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include "cli/commands.h"

/* Whoever starts us may have closed the standard descriptors: what is opened next would be taken for them. */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) { /* not close-on-exec, as they would be */
            abort();
        }
    }
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    (void)signal(SIGPIPE, SIG_IGN); /* a peer that left is an error of write(), not the end of the server */
    return sg_cli_main(sg_cli_commands, argc, argv);
}
