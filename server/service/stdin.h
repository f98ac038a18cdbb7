/* Bytes for the standard input of a running command. */
#ifndef SG_STDIN_H
#define SG_STDIN_H

#include "lease/registry.h"

struct sg_service;

struct sg_stdin_args {
    struct sg_entry *lease;
    const char *exec_id;
    struct sg_pipe *(*body)(void *arg); /* asked for once, when the bytes can be taken; borrowed */
    int64_t length;                     /* of the body in bytes; -1: nobody knows */
    bool eof;                           /* close it after them */
    struct sg_cancel *cancel;           /* the caller's */
    /* Exactly once when sg_service_stdin() returned 0, maybe before it returns. err NULL: the command's end of the pipe has all `taken`
     * bytes. With err: SG_CONFLICT, the command closed it or ended, it was handed only the first `taken` bytes; or why the body failed. */
    void (*done)(void *arg, uint64_t taken, const struct sg_error *err);
    void *arg;
};
/* At the command's pace. -1: nothing was taken: SG_NOT_FOUND; SG_CONFLICT when the command has ended, never had a standard input that stays
 * open, has it closed, or another call is just writing to it; SG_LEASE_GONE and so on. */
int sg_service_stdin(struct sg_service *s, const struct sg_stdin_args *args, struct sg_error *err);

#endif
