/* Blocking calls on a driver, for tests: each waits for its answer (at most CALL_MS, then the test process
 * aborts). */
#ifndef SG_TEST_CALLS_H
#define SG_TEST_CALLS_H

#include <pthread.h>

#include "backends/driver.h"

#define CALL_MS 30000

/* A flag that callbacks raise and tests wait for. */
struct flag {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned count;
};
#define FLAG_INIT                                                                                            \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER                                  \
    }
void flag_raise(struct flag *f);
/* False: not raised n times within ms. */
bool flag_wait(struct flag *f, unsigned n, int64_t ms);

/* ---- create, terminate ---- */

/* A create under way. */
struct creating {
    struct flag flag;
    struct sg_sandbox *sb;
    struct sg_error err;
    int64_t took_us;
    int64_t begun_us;
    unsigned *order; /* may be NULL: counter that gives each answer its place */
    unsigned place;
    /* May be NULL: told when the sandbox dies; set inside the create's callback, where nothing can race with it. */
    void (*lost)(void *arg, struct sg_sandbox *sb, const struct sg_error *why);
    void *lost_arg;
};
struct sg_sandbox_spec call_spec(const char *lease_id);
/* c zeroed by the call, but for order, lost and lost_arg; keep it until the answer came. */
void call_create_begin(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                       struct creating *c);
/* The sandbox or NULL with c->err. */
struct sg_sandbox *call_create_end(struct creating *c);
struct sg_sandbox *call_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err);

int call_terminate(struct sg_sandbox *sb, struct sg_error *err);
/* terminate and unref. */
void call_end(struct sg_sandbox *sb);

/* ---- exec ---- */

struct run {
    struct sg_exec *x;
    struct sg_pipe *in;
    bool done, failed;
    struct sg_exit exit;
    struct sg_error err;
    char *out, *errout; /* NUL-terminated */
    size_t out_len, errout_len;
    struct flag flag; /* progress */
    struct flag started;
};
/* Starts /bin/sh -c text. False with r->err: refused at once. r stays until call_exec_end. */
bool call_exec_begin(struct sg_sandbox *sb, const char *text, bool stdin_open, int64_t timeout_ms,
                     struct run *r);
bool call_exec_argv_begin(struct sg_sandbox *sb, const char *const *argv, const struct sg_env *env,
                          const char *cwd, bool stdin_open, int64_t timeout_ms, struct run *r);
/* Reads everything, waits for the end. */
void call_exec_end(struct run *r);
/* Releases and frees. */
void call_exec_finish(struct run *r);
/* Begin and end; stdin NULL: none. */
void call_exec(struct sg_sandbox *sb, const char *text, const char *stdin_text, struct run *r);
/* Output of a command that must succeed, or NULL; caller frees. */
char *call_output(struct sg_sandbox *sb, const char *text);

/* ---- files, dial ---- */

int call_get_fd(struct sg_sandbox *sb, const char *path, struct sg_hold **hold, struct sg_file_stat *st,
                struct sg_error *err);
/* Content, NUL-terminated; caller frees. NULL with err. */
char *call_get(struct sg_sandbox *sb, const char *path, size_t *len, struct sg_error *err);
struct sg_file_sink *call_put_open(struct sg_sandbox *sb, const char *path, bool append,
                                   struct sg_error *err);
int call_put_commit(struct sg_file_sink *sink, struct sg_file_stat *st, bool *created, struct sg_error *err);
int call_put(struct sg_sandbox *sb, const char *path, const char *data, size_t len, bool append,
             struct sg_error *err);
int call_stat(struct sg_sandbox *sb, const char *path, struct sg_file_stat *st, struct sg_error *err);
int call_mkdir(struct sg_sandbox *sb, const char *path, struct sg_error *err);
int call_list(struct sg_sandbox *sb, const char *path, bool recursive, size_t max, struct sg_file_list *list,
              struct sg_error *err);
int call_remove(struct sg_sandbox *sb, const char *path, bool recursive, struct sg_error *err);
int call_move(struct sg_sandbox *sb, const char *from, const char *to, struct sg_error *err);
int call_dial(struct sg_sandbox *sb, uint16_t port, struct sg_hold **hold, struct sg_error *err);

#endif
