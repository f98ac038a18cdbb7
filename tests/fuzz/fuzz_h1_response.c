/* Whatever a service sends: the parsers stay inside their buffers, and how the bytes are cut makes no
 * difference. */
#include <string.h>

#include "fuzz.h"
#include "http/h1_response.h"

#define MAX 70000U

struct outcome {
    ssize_t head_len; /* -1 refused, 0 incomplete */
    struct sg_h1_head head;
    ssize_t used; /* of the body */
    bool done;
    size_t payload_len;
    char payload[MAX];
};

/* Hands the bytes over in pieces of `step` and reads the head as soon as it is there. */
static size_t read_head(struct outcome *o, char *buf, size_t size, size_t step, bool head_request)
{
    struct sg_h1_progress p = {.upgrade = head_request};
    size_t have = 0;
    o->head_len = 0;
    while (o->head_len == 0 && have < size) {
        have = size - have < step ? size : have + step;
        o->head_len = sg_h1_head_parse(&o->head, &p, buf, have, head_request, NULL);
        if (have >= SG_H1_HEAD_MAX)
            fuzz_require(o->head_len != 0, "a head beyond the limit is refused");
    }
    return have;
}

static void read_body(struct outcome *o, char *buf, size_t size, size_t step)
{
    struct sg_h1_body b;
    size_t at = (size_t)o->head_len;
    sg_h1_body_init(&b, o->head.framing, o->head.length);
    b.trailers = malloc(SG_H1_TRAILER_MAX);
    fuzz_require(b.trailers != NULL, "memory");
    o->payload_len = 0;
    o->used = 0;
    while (at < size && !sg_h1_body_done(&b)) {
        size_t n = size - at < step ? size - at : step;
        size_t payload = 0;
        ssize_t used = sg_h1_body_decode(&b, buf + at, n, &payload, NULL);
        memcpy(o->payload + o->payload_len, buf + at, payload);
        o->payload_len += payload;
        if (used < 0) {
            o->used = -1;
            free(b.trailers);
            return;
        }
        fuzz_require((size_t)used == n || sg_h1_body_done(&b), "all bytes are used unless the body ended");
        at += (size_t)used;
    }
    o->used = (ssize_t)at;
    o->done = sg_h1_body_done(&b);
    fuzz_require(b.trailers_len <= SG_H1_TRAILER_MAX, "trailers fit");
    fuzz_require(!o->done || b.trailers_len == 0 || b.trailers[b.trailers_len - 1] == '\n', "trailers are whole lines");
    free(b.trailers);
}

static void check_head(const struct sg_h1_head *h)
{
    fuzz_require((h->status >= 200 && h->status <= 599) || h->status == 101, "status");
    fuzz_require(h->n_fields <= SG_H1_FIELDS_MAX, "field count");
    for (size_t i = 0; i < h->n_fields; i++) {
        fuzz_require(h->fields[i].name[0] != '\0', "no empty names");
        for (const char *c = h->fields[i].name; *c != '\0'; c++)
            fuzz_require(sg_h1_is_token((unsigned char)*c), "names are tokens");
        for (const char *c = h->fields[i].value; *c != '\0'; c++)
            fuzz_require(*c == '\t' || ((unsigned char)*c >= 0x20 && *c != 0x7f), "values are clean");
    }
}

static void run(struct outcome *o, const uint8_t *data, size_t size, size_t step, bool head_request)
{
    char *buf = malloc(size > 0 ? size : 1); /* exact, so that a sanitizer sees a step too far */
    fuzz_require(buf != NULL, "memory");
    memcpy(buf, data, size);
    memset(o, 0, sizeof *o);
    read_head(o, buf, size, step, head_request);
    if (o->head_len > 0) {
        check_head(&o->head);
        read_body(o, buf, size, step);
    }
    free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct outcome whole, cut;
    if (size < 2 || size > MAX)
        return 0;
    size_t step = (size_t)(data[0] & 0x3f) + 1;
    bool head_request = (data[0] & 0x80) != 0;
    run(&whole, data + 1, size - 1, size, head_request);
    run(&cut, data + 1, size - 1, step, head_request);
    fuzz_require(whole.head_len == cut.head_len, "the head does not depend on how it is cut");
    fuzz_require(whole.used == cut.used && whole.done == cut.done, "nor does the end of the body");
    if (whole.head_len > 0 && whole.used >= 0) {
        fuzz_require(whole.payload_len == cut.payload_len, "nor its length");
        fuzz_require(memcmp(whole.payload, cut.payload, whole.payload_len) == 0, "nor its bytes");
        fuzz_require(whole.head.status == cut.head.status && whole.head.framing == cut.head.framing &&
                         whole.head.keep_alive == cut.head.keep_alive &&
                         whole.head.n_fields == cut.head.n_fields,
                     "nor what the head says");
    }
    return 0;
}
