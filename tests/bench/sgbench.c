#include <string.h>

#include "bench.h"

static const struct {
    const char *name, *usage;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"http",
     "PORT CONNECTIONS MILLISECONDS COUNT spin|sleep FILE...  requests over keep-alive, connection i sends "
     "file i mod n",
     bench_http},
    {"spawn", "THREADS MILLISECONDS COUNT ARG...  posix_spawn and waitpid, per thread", bench_spawn},
    {"pairs", "PORT CALLERS RATE MILLISECONDS COUNT SAMPLE  create and terminate leases", bench_pairs},
    {"fsync", "DIRECTORY BYTES COUNT  write and fdatasync", bench_fsync},
    {"bulk", "get PORT TARGET | put PORT TARGET BYTES | catget FILE | catput FILE BYTES  one large body",
     bench_bulk},
    {"stream", "exec PORT LEASE BYTES | pipe BYTES | tcp BYTES | wire BYTES | first PORT LEASE COUNT  what a command writes", bench_stream},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, argv[1]) == 0)
            return commands[i].run(argc - 2, argv + 2);
    bench_die("usage: sgbench http|spawn|pairs|fsync|bulk|stream ...");
}
