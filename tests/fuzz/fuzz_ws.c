/* Whatever a WebSocket's client sends: what is made of it does not depend on how the bytes are cut, and little waits for a client that reads
 * nothing. The first byte says how they are cut and how much the client takes. */
#include <string.h>

#include "fuzz.h"
#include "ws_peer.h"

static void run(struct ws_peer *p, const uint8_t *data, size_t size, size_t step, bool eof)
{
    *p = (struct ws_peer){.in = data, .in_len = size, .step = step, .eof = eof};
    ws_peer_start(p);
    fuzz_require(p->ws != NULL, "memory");
    int rc = ws_peer_run(p);
    fuzz_require(rc == 0 || eof, "only the end of the transport is one");
    fuzz_require(!sg_ws_is_sending(p->ws) || rc < 0, "everything is sent");
    fuzz_require(p->binary.len <= size && p->texts.len <= size + p->n_texts, "no more than came");
    fuzz_require(sg_ws_is_deaf(p->ws) == (ws_peer_close_code(p) >= 0) || rc < 0, "who is refused, or has closed, is told so");
}

static int same(const struct sg_buf *a, const struct sg_buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void read_nothing(const uint8_t *data, size_t size)
{
    struct ws_peer p = {.in = data, .in_len = size};
    ws_peer_start(&p);
    fuzz_require(p.ws != NULL, "memory");
    p.room = 0;
    size_t at = SIZE_MAX;
    while (at != p.in_at && sg_ws_read(p.ws) == 0) {
        at = p.in_at;
        (void)sg_ws_write(p.ws);
    }
    fuzz_require(p.out.len == 0, "nothing was sent");
    ws_peer_finish(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_peer whole, cut;
    if (size < 1)
        return 0;
    size_t step = (size_t)(data[0] & 0x1f) + 1;
    bool eof = (data[0] & 0x80) != 0;
    uint8_t *copy = malloc(size); /* exact, so that a sanitizer sees a step too far */
    fuzz_require(copy != NULL, "memory");
    memcpy(copy, data + 1, size - 1);
    run(&whole, copy, size - 1, 0, eof);
    run(&cut, copy, size - 1, step, eof);
    fuzz_require(same(&whole.binary, &cut.binary), "bytes do not depend on how they are cut");
    fuzz_require(same(&whole.texts, &cut.texts) && whole.n_texts == cut.n_texts, "nor do texts");
    /* Which code a malformed close is answered with does, a little: wslay looks at its reason piece by piece. */
    fuzz_require((ws_peer_close_code(&whole) >= 0) == (ws_peer_close_code(&cut) >= 0), "nor does whether it closes");
    ws_peer_finish(&whole);
    ws_peer_finish(&cut);
    read_nothing(copy, size - 1);
    free(copy);
    return 0;
}
