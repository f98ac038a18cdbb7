/* Files that are read here: the server knows what a file is before it says what it wants of it, and that goes
 * out as it is read. */
#include "backends/agent/relay_priv.h"

#include <stdlib.h>
#include <string.h>

void relay_content_opened(struct ask *k, int fd)
{
    k->fd = fd;
}

static void send_it(struct relay *r, struct ask *k, struct sg_mux_channel *c)
{
    int fd = k->fd;
    k->fd = -1;
    if (sg_mux_attach(r->mux, c, fd) < 0) {
        sg_mux_abort(r->mux, c);
        return;
    }
    sg_mux_read_from(c, k->wanted.first);
    sg_mux_limit(r->mux, c, k->wanted.len);
}

void relay_content_moved(struct relay *r, struct ask *k, struct sg_mux_channel *c)
{
    size_t len;
    if (k->fd < 0)
        return; /* the server does not speak first */
    char *p = sg_mux_grab(r->mux, c, &len);
    if (len > sizeof k->wanted - k->have)
        relay_die(EXIT_PROTOCOL, "more came for a file than what is wanted of it");
    if (len > 0)
        memcpy((char *)&k->wanted + k->have, p, len);
    free(p);
    k->have += len;
    bool all = len > 0 && k->have == sizeof k->wanted;
    uint32_t number = k->names[0];
    sg_mux_took(r->mux, c, len, 0);
    c = sg_mux_find(r->mux, number);
    if (all && c != NULL && sg_mux_owner(c) == k)
        send_it(r, k, c);
}
