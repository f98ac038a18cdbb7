/* A request's head out of the bytes of a fuzzer: lines that end with LF; the first is the method, the second
 * the target, then "name:value". */
#ifndef FUZZ_HEAD_H
#define FUZZ_HEAD_H

#include <string.h>

#include "fuzz.h"
#include "http/preflight.h"

#define FUZZ_HEADERS_MAX (SG_HEADERS_MAX + 2)

struct fuzz_head {
    char *text; /* what the others point into; freed by the caller */
    const char *method, *target;
    struct sg_header headers[FUZZ_HEADERS_MAX];
    size_t n;
};

static inline char *fuzz_line(char **at)
{
    char *line = *at;
    char *end = strchr(line, '\n');
    *at = end != NULL ? end + 1 : line + strlen(line);
    if (end != NULL)
        *end = '\0';
    return line;
}

static inline void fuzz_head_read(struct fuzz_head *h, const uint8_t *data, size_t size)
{
    char *at = h->text = sg_xstrndup((const char *)data, size);
    h->method = fuzz_line(&at);
    h->target = fuzz_line(&at);
    h->n = 0;
    while (*at != '\0' && h->n < FUZZ_HEADERS_MAX) {
        char *name = fuzz_line(&at);
        char *value = strchr(name, ':');
        if (value != NULL)
            *value++ = '\0';
        h->headers[h->n++] = (struct sg_header){name, value != NULL ? value : name + strlen(name)};
    }
}

#endif
