/* What a relay sends, and what one gets: any bytes at all, in pieces. The first says to which side, and how large the pieces are. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/agent/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct half {
    uint32_t sum; /* first */
    struct sg_mux *mux;
    size_t grabbed;
};

static int packet(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < n; i++)
        sum += names[i];
    for (size_t i = 0; i < len; i++)
        sum += ((const uint8_t *)data)[i];
    *(uint32_t *)arg += sum;
    return sum % 17 == 16 ? -1 : 0;
}

static int open_channel(void *arg, uint32_t number)
{
    (void)arg;
    return number == 13 ? -1 : 0;
}

static int oom(void *arg, uint64_t id)
{
    *(uint32_t *)arg += (uint32_t)id;
    return 0;
}

static void received(void *arg, struct sg_mux_channel *c, int error)
{
    (void)c;
    *(uint32_t *)arg += (uint32_t)error;
}

static void heard(void *arg, struct sg_mux_channel *c)
{
    *(uint32_t *)arg += (uint32_t)sg_mux_waiting(c);
}

/* Half of what there is now, the rest the next time. */
static void moved(void *arg, struct sg_mux_channel *c)
{
    struct half *h = arg;
    size_t len;
    char *p = sg_mux_grab(h->mux, c, &len);
    for (size_t i = 0; i < len; i++)
        h->sum += (uint8_t)p[i];
    free(p);
    h->grabbed += len;
    if (h->grabbed > 0) {
        size_t n = (h->grabbed + 1) / 2;
        h->grabbed -= n;
        sg_mux_rouse(h->mux, c);
        sg_mux_took(h->mux, c, n, h->sum % 255 == 254 ? 5 : 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct sg_mux_ops relay = {packet, open_channel, NULL, received, heard, moved, heard};
    static const struct sg_mux_ops mirror = {packet, NULL, oom, received, heard, moved, heard};
    struct half h = {0};
    int ends[2], pipes[2];
    if (size < 1)
        return 0;
    signal(SIGPIPE, SIG_IGN);
    struct sg_mux *m = sg_mux_new(data[0] & 1 ? &relay : &mirror, &h);
    h.mux = m;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0 || pipe2(pipes, O_NONBLOCK) != 0 ||
        sg_mux_attach(m, sg_mux_add(m, 1, SG_MUX_BOTH, NULL), ends[0]) != 0 ||
        sg_mux_attach(m, sg_mux_add(m, 2, SG_MUX_IN, NULL), pipes[1]) != 0 ||
        sg_mux_add(m, 3, SG_MUX_IN, NULL) == NULL || sg_mux_attach(m, sg_mux_add(m, 5, SG_MUX_IN, NULL), memfd_create("fuzz", 0)) != 0 || sg_mux_add(m, 4, SG_MUX_OUT, NULL) == NULL)
        abort();
    sg_mux_manual(m, sg_mux_find(m, 3));
    (void)!write(ends[1], data, size < 1000 ? size : 1000);
    size_t piece = (size_t)(data[0] >> 1) + 1;
    for (size_t at = 1, n; at < size; at += n) {
        n = size - at < piece ? size - at : piece;
        if (sg_mux_feed(m, data + at, n) < 0)
            break;
        (void)sg_mux_turn(m);
    }
    sg_mux_free(m);
    close(ends[1]);
    close(pipes[0]);
    return 0;
}
