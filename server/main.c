#include <signal.h>

#include "cli/commands.h"

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* a peer that left is an error of write(), not the end of the server */
    return sg_cli_main(sg_cli_commands, argc, argv);
}
