/* Whatever an engine sends as the output of a command: pieces stay inside what came, and how it is cut makes no difference. */
#include <string.h>

#include "backends/docker/stream.h"
#include "fuzz.h"

#define MAX 65536U

struct outcome {
    bool failed, whole;
    size_t n[2];
    unsigned char bytes[2][MAX];
};

static bool take(struct outcome *o, struct sg_docker_stream *s, const unsigned char *p, size_t len)
{
    while (len > 0) {
        enum sg_docker_output which = SG_DOCKER_STDOUT;
        const void *piece = NULL;
        size_t n = 0;
        ssize_t used = sg_docker_stream_next(s, p, len, &which, &piece, &n, NULL);
        if (used < 0)
            return false;
        fuzz_require(used > 0 && (size_t)used <= len, "it goes on, and no further than what there is");
        fuzz_require(n == 0 || ((const unsigned char *)piece >= p && (const unsigned char *)piece + n == p + used), "a piece is of what came");
        size_t i = which == SG_DOCKER_STDERR;
        if (n > 0)
            memcpy(o->bytes[i] + o->n[i], piece, n);
        o->n[i] += n;
        p += used;
        len -= (size_t)used;
    }
    return true;
}

static void run(struct outcome *o, const uint8_t *data, size_t size, size_t step)
{
    struct sg_docker_stream s = {.have = 0};
    o->n[0] = o->n[1] = 0;
    o->failed = false;
    for (size_t at = 0; at < size && !o->failed; at += step) {
        size_t n = size - at < step ? size - at : step;
        unsigned char *copy = malloc(n); /* exact, so that a sanitizer sees a step too far */
        fuzz_require(copy != NULL, "memory");
        memcpy(copy, data + at, n);
        o->failed = !take(o, &s, copy, n);
        free(copy);
    }
    o->whole = sg_docker_stream_whole(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct outcome whole, cut;
    if (size < 2 || size > MAX)
        return 0;
    run(&whole, data + 1, size - 1, size);
    run(&cut, data + 1, size - 1, (size_t)(data[0] & 0x3f) + 1);
    fuzz_require(whole.failed == cut.failed, "it is the same failure");
    fuzz_require(whole.failed || whole.whole == cut.whole, "and the same end");
    for (int i = 0; i < 2; i++)
        fuzz_require(whole.n[i] == cut.n[i] && memcmp(whole.bytes[i], cut.bytes[i], whole.n[i]) == 0, "and the same bytes");
    return 0;
}
