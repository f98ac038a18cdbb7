#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int sg_close(int fd)
{
    if (fd >= 0) {
        int keep = errno;
        (void)close(fd); /* EINTR closes too on Linux: repeating could close somebody else's */
        errno = keep;
    }
    return -1;
}

void sg_close_p(int *fd)
{
    *fd = sg_close(*fd);
}

static void *must(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

void *sg_xcalloc(size_t n, size_t size)
{
    return must(calloc(n == 0 ? 1 : n, size == 0 ? 1 : size));
}

char *sg_xstrdup(const char *s)
{
    return must(strdup(s));
}

char *sg_xstrndup(const char *s, size_t n)
{
    return must(strndup(s, n));
}

char *sg_xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0) {
        abort();
    }
    return s;
}
