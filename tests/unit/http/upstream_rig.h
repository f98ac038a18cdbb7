/* A scripted server on the loopback and a caller for upstream exchanges. */
#ifndef UPSTREAM_RIG_H
#define UPSTREAM_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "http/upstream.h"

/* ---- server: every connection is served by `serve` on its own thread; nth counts from 0 ---- */

struct rig_server {
    int listen_fd;
    uint16_t port;
    void (*serve)(struct rig_server *s, int fd, int nth);
    pthread_t thread;
    pthread_t conns[4096];
    _Atomic int n_conns;
    _Atomic int requests;
};

void rig_server_start(struct rig_server *s, void (*serve)(struct rig_server *s, int fd, int nth));
/* Closes the listener and waits for all connections to end. */
void rig_server_stop(struct rig_server *s);

/* Reads a request head ("" at the end of the connection). Returns its length. */
size_t rig_read_head(int fd, char *head, size_t size);
void rig_send(int fd, const char *text);
/* Waits for the end of the connection, at most 10 s: true when it came. */
bool rig_wait_closed(int fd);

/* ---- caller ---- */

struct rig_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answered, failed, ended;
    int status;
    int64_t length;
    bool whole;
    bool streamed;
    char whole_body[8192];
    size_t whole_len;
    struct sg_pipe *pipe;
    struct sg_error err;
};

struct rig {
    struct sg_reactor *reactor;
    struct sg_upstreams *hub;
    struct sg_upstream_target target;
    struct sg_cancel *lease_end;
    _Atomic int dials;
    _Atomic int holds_gone;
    uint16_t port;
    enum sg_code dial_error;
    bool dial_never; /* keeps the callback for rig_finish_dial */
    bool upgrade;    /* the requests ask for another protocol */
    bool trailers;   /* the caller takes trailers */
    struct sg_dial_done kept;
};

void rig_start(struct rig *r, const struct sg_upstream_config *config, uint16_t port);
void rig_stop(struct rig *r);

/* Starts a request; body NULL: none. -1 as sg_upstream_start. */
int rig_call(struct rig *r, struct rig_call *c, const char *method, struct sg_pipe *body, int64_t length,
             struct sg_cancel *cancel, struct sg_error *err);
/* Waits for the head or the failure. */
void rig_wait(struct rig_call *c);
/* Reads at most size bytes from pipe, waiting up to 10 s for each; the end or -EIO as sg_pipe_read, -ETIME.
 */
ssize_t rig_pipe_read(struct sg_pipe *p, void *data, size_t size);
/* Writes all of it, waiting for space; -EPIPE once the reader stopped. */
int rig_pipe_write(struct sg_pipe *p, const void *data, size_t len);
/* Stops reading and waits for the end. */
void rig_call_finish(struct rig_call *c);

#endif
