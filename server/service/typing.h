/* Typing on the terminal of a running command: any number of writers, whose bytes come in between each other in pieces. */
#ifndef SG_TYPING_H
#define SG_TYPING_H

#include "lease/registry.h"
#include "base/pipe.h"

struct sg_service;
struct sg_typist;

/* SG_NOT_FOUND; SG_NO_TTY; SG_CONFLICT when it takes no input: it has ended, or its input was given when it started, or, with the reason
 * "starting", it does not yet. wake is called when it is worth to try again. */
int sg_service_type(struct sg_service *s, struct sg_entry *lease, const char *exec_id, const struct sg_waker *wake, struct sg_typist **ret,
                    struct sg_error *err);
/* >= 0 bytes were taken, in one piece; fewer than len: the waker is called when there is room. -EPIPE: no more are, ever. */
ssize_t sg_typist_write(struct sg_typist *t, const void *data, size_t len);
/* NULL-safe, returns NULL. The waker is not called any more, but for a call that is just being made. */
struct sg_typist *sg_typist_free(struct sg_typist *t);

#endif
