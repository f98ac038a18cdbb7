#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>

void sg_buf_init(struct sg_buf *b, size_t cap)
{
    *b = (struct sg_buf){.cap = cap};
}

void sg_buf_init_over(struct sg_buf *b, void *memory, size_t size)
{
    *b = (struct sg_buf){.data = memory, .size = size, .cap = size - 1};
}

void sg_buf_finish(struct sg_buf *b)
{
    free(b->data);
    *b = (struct sg_buf){.cap = b->cap};
}

/* Room for len more bytes and the NUL. */
static int reserve(struct sg_buf *b, size_t len)
{
    if (len > b->cap - b->len || b->cap == SIZE_MAX) {
        return -1;
    }
    size_t need = b->len + len + 1;
    if (need <= b->size) {
        return 0;
    }
    size_t size = b->size < 64 ? 64 : b->size;
    while (size < need) {
        size = size > SIZE_MAX / 2 ? need : size * 2;
    }
    if (size > b->cap + 1) {
        size = b->cap + 1;
    }
    char *data = realloc(b->data, size);
    if (data == NULL) {
        return -1;
    }
    b->data = data;
    b->size = size;
    return 0;
}

int sg_buf_reserve(struct sg_buf *b, size_t len)
{
    return reserve(b, len);
}

char *sg_buf_extend(struct sg_buf *b, size_t len)
{
    if (reserve(b, len) < 0) {
        return NULL;
    }
    char *at = b->data + b->len;
    b->len += len;
    b->data[b->len] = '\0';
    return at;
}

int sg_buf_add(struct sg_buf *b, const void *data, size_t len)
{
    char *at = sg_buf_extend(b, len);
    if (at == NULL) {
        return -1;
    }
    if (len > 0) {
        memcpy(at, data, len);
    }
    return 0;
}

int sg_buf_addf(struct sg_buf *b, const char *fmt, ...)
{
    va_list ap;
    size_t room = b->size - b->len; /* nearly always enough; 0: there is no buffer yet */
    va_start(ap, fmt);
    int n = vsnprintf(room > 0 ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < room && (size_t)n <= b->cap - b->len) {
        b->len += (size_t)n;
        return 0;
    }
    if (n < 0 || reserve(b, (size_t)n) < 0) {
        if (room > 0) {
            b->data[b->len] = '\0';
        }
        return -1;
    }
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

size_t sg_buf_add_some(struct sg_buf *b, const void *data, size_t len)
{
    size_t room = b->cap - b->len;
    size_t n = len < room ? len : room;
    return n > 0 && sg_buf_add(b, data, n) == 0 ? n : 0;
}

void sg_buf_consume(struct sg_buf *b, size_t n)
{
    if (n == 0) {
        return;
    }
    if (n > b->len) {
        n = b->len;
    }
    b->len -= n;
    if (b->data != NULL) {
        memmove(b->data, b->data + n, b->len);
        b->data[b->len] = '\0';
    }
}

char *sg_buf_steal(struct sg_buf *b, size_t *ret_len)
{
    char *data = b->data;
    if (data == NULL) {
        data = sg_xcalloc(1, 1);
    }
    if (ret_len != NULL) {
        *ret_len = b->len;
    }
    *b = (struct sg_buf){.cap = b->cap};
    return data;
}
