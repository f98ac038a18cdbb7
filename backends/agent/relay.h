/* A server that does not share a kernel with the agent: the program's mode `relay`, started inside of the container by its engine, speaks
 * mux.h on its standard input and output and is the agent's server. */
#ifndef SG_AGENT_RELAY_H
#define SG_AGENT_RELAY_H

/* sandgate-agent relay DIRECTORY: ends with the input, or with the agent. Exit codes as in protocol.h. */
int relay_main(int argc, char **argv);

#endif
