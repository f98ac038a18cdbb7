/* The one bounded pipe that joins a producer and a consumer in different threads.
 *
 * Neither side ever blocks: a full pipe takes 0 bytes, an empty one answers -EAGAIN, and the side that
 * was turned away is woken once through its waker when that changes. Wakers run without the pipe's
 * lock held, on the thread of the other side; they must not block. The pipe keeps a reference on a
 * waker's object (ref/unref) while it may call it, so replacing a waker is safe at any time.
 */
#ifndef SG_PIPE_H
#define SG_PIPE_H

#include "base/error.h"

struct sg_pipe;

struct sg_waker {
    void (*wake)(void *arg);
    void (*ref)(void *arg);   /* may be NULL when arg outlives the pipe */
    void (*unref)(void *arg); /* likewise */
    void *arg;
};

/* A pipe that holds at most cap bytes; one reference, for the caller. */
struct sg_pipe *sg_pipe_new(size_t cap);
struct sg_pipe *sg_pipe_ref(struct sg_pipe *p);
/* NULL-safe; returns NULL. */
struct sg_pipe *sg_pipe_unref(struct sg_pipe *p);

/* Sets (w == NULL: removes) the waker of the reading or the writing side. Setting one when the pipe
 * is already readable (writable) calls it at once. */
void sg_pipe_set_reader(struct sg_pipe *p, const struct sg_waker *w);
void sg_pipe_set_writer(struct sg_pipe *p, const struct sg_waker *w);

/* Writer: takes what fits. >= 0 bytes taken (0: full, writer is woken on space); -EPIPE once the
 * reader stopped. */
ssize_t sg_pipe_write(struct sg_pipe *p, const void *data, size_t len);
/* Writer: does nobody read any more, or was it closed? */
bool sg_pipe_is_over(struct sg_pipe *p);
/* Writer: one read(2) from fd straight into the pipe, at most max bytes. > 0 bytes; 0: end of file
 * of fd (the pipe is not closed by this); -EAGAIN: fd has nothing; -ENOBUFS: pipe full, writer is
 * woken on space; -EPIPE: reader stopped; other -errno from read. */
ssize_t sg_pipe_write_from(struct sg_pipe *p, int fd, size_t max);
/* Writer: has everything that was written been read? 0: yes; -EAGAIN: not yet, the writer is woken as it goes; -EPIPE: no, and it
 * never will be, the reader stopped. */
int sg_pipe_flush(struct sg_pipe *p);
/* Bytes that were written and never read, because the reader stopped. */
size_t sg_pipe_dropped(struct sg_pipe *p);
/* Writer: no more bytes; the reader sees 0 after the last one. */
void sg_pipe_close(struct sg_pipe *p);
/* Writer: ends abnormally; the reader sees -EIO after the last byte and the error in
 * sg_pipe_error(). */
void sg_pipe_fail(struct sg_pipe *p, const struct sg_error *err);

/* Reader: > 0 bytes; 0: end; -EAGAIN: empty, reader is woken on data or end; -EIO: failed. */
ssize_t sg_pipe_read(struct sg_pipe *p, void *data, size_t len);
/* Reader: as sg_pipe_read, but *ret is where the next bytes are, until sg_pipe_consume() takes n of them. */
ssize_t sg_pipe_peek(struct sg_pipe *p, const void **ret);
void sg_pipe_consume(struct sg_pipe *p, size_t n);
/* Reader: one write(2) to fd straight from the pipe. As sg_pipe_read, and -ENOBUFS when fd takes
 * nothing now (EAGAIN), other -errno from write. */
ssize_t sg_pipe_read_to(struct sg_pipe *p, int fd);
/* Reader: bytes waiting now. */
size_t sg_pipe_pending(struct sg_pipe *p);
/* Reader: gone; what is inside is dropped and the writer sees -EPIPE (and is woken). */
void sg_pipe_stop(struct sg_pipe *p);
/* Copy of the error given to sg_pipe_fail. */
void sg_pipe_error(struct sg_pipe *p, struct sg_error *err);

#endif
