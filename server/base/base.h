/* Ownership helpers and small constants every module uses.
 *
 * Allocation policy: objects of a fixed, small size come from sg_xmalloc & co. and abort the process
 * when memory is out; anything whose size comes from outside (bodies, output, JSON, counts) goes
 * through a constructor with a cap and reports SG_NO_MEMORY.
 */
#ifndef SG_BASE_H
#define SG_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define SG_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define SG_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define SG_UNUSED __attribute__((unused))
/* The struct that embeds *p as its member. */
#define sg_container_of(p, type, member) ((type *)(void *)((char *)(p) - offsetof(type, member)))
#define sg_cleanup(fn) __attribute__((cleanup(fn)))

/* Frees *p; for `sg_cleanup(sg_free_p) char *s = NULL;`. */
static inline void sg_free_p(void *p)
{
    void *v;
    memcpy(&v, p, sizeof v);
    free(v);
}

/* Closes *fd unless it is negative; errno is kept. */
void sg_close_p(int *fd);

/* Closes fd unless it is negative, keeping errno; returns -1 for `fd = sg_close(fd)`. */
int sg_close(int fd);

/* Hands over a descriptor: returns *fd and sets it to -1. */
static inline int sg_steal_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

/* Hands over a pointer: `return sg_steal(&p);` for a variable of any pointer type. */
static inline void *sg_steal(void *pp)
{
    void *v;
    void *none = NULL;
    memcpy(&v, pp, sizeof v);
    memcpy(pp, &none, sizeof none);
    return v;
}

/* Allocation that aborts on failure; sizes must be small and fixed (see above). */
void *sg_xcalloc(size_t n, size_t size);
char *sg_xstrdup(const char *s);
char *sg_xstrndup(const char *s, size_t n);
char *sg_xasprintf(const char *fmt, ...) SG_PRINTF(1, 2);

static inline bool sg_streq(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

#endif
