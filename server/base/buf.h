/* Growing byte buffer with a birth certificate: it never holds more than its cap. */
#ifndef SG_BUF_H
#define SG_BUF_H

#include "base/error.h"

struct sg_buf {
    char *data; /* NUL-terminated whenever len > 0; may be NULL when empty */
    size_t len;
    size_t size; /* allocated */
    size_t cap;  /* most bytes it may hold */
};

/* Embedded life cycle. init allocates nothing. */
void sg_buf_init(struct sg_buf *b, size_t cap);
void sg_buf_finish(struct sg_buf *b);

/* Makes room for len more bytes at once, for the sake of speed only; -1: as for an append of so many. */
int sg_buf_reserve(struct sg_buf *b, size_t len);

/* Append; -1 and nothing appended when the cap would be passed or memory is out. */
int sg_buf_add(struct sg_buf *b, const void *data, size_t len);
int sg_buf_addf(struct sg_buf *b, const char *fmt, ...) SG_PRINTF(2, 3);

/* A buffer over size > 0 bytes that are somebody else's and stay where they are: it holds at most size - 1, and is never finished
 * or stolen from. */
void sg_buf_init_over(struct sg_buf *b, void *memory, size_t size);

/* Makes room for len bytes more and counts them in: the caller writes them. NULL as sg_buf_add. */
char *sg_buf_extend(struct sg_buf *b, size_t len);

/* Appends as much as fits below the cap; returns how many bytes were taken. */
size_t sg_buf_add_some(struct sg_buf *b, const void *data, size_t len);

/* Drops the first n bytes. */
void sg_buf_consume(struct sg_buf *b, size_t n);

/* Hands the bytes (NUL-terminated, caller frees) over and empties b. */
char *sg_buf_steal(struct sg_buf *b, size_t *ret_len);

#endif
