/* A provider key or token. It cannot be printed: the type is opaque, no function turns it into JSON or
 * a log member, and the bytes are wiped on free. sg_secret_expose() is the one way out and is meant to be
 * grepped for. */
#ifndef SG_SECRET_H
#define SG_SECRET_H

#include "base/error.h"

struct sg_secret;

struct sg_secret *sg_secret_new(const char *bytes, size_t len);
struct sg_secret *sg_secret_free(struct sg_secret *s); /* NULL-safe, returns NULL */
/* The bytes, NUL-terminated, borrowed. */
const char *sg_secret_expose(const struct sg_secret *s, size_t *ret_len);
/* Reads NAME from the environment, or the file named by NAME_FILE (one trailing newline is dropped, at most
 * 64 KiB). 1: *ret set; 0: neither is there; -1 with err. */
int sg_secret_from_env(const char *name, struct sg_secret **ret, struct sg_error *err);
/* Moves the environment to memory of our own and wipes the place where the kernel shows it: /proc/PID/environ is open to every process
 * of the same user, such as commands on the host. Once, before there is another thread or any pointer from getenv(). */
void sg_secret_hide_env(void);

#endif
