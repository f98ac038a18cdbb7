/* What the files of the driver share. */
#ifndef SG_E2B_PRIV_H
#define SG_E2B_PRIV_H

#include "backends/cloud/fleet.h"
#include "backends/cloud/origin.h"
#include "backends/e2b/e2b.h"
#include "base/workq.h"

#define E2B_PORT "49983"
#define E2B_MARGIN_S 60 /* how much later than the lease the provider ends a sandbox */

struct e2b {
    struct sg_driver base;
    _Atomic int refs;     /* its own and one per sandbox */
    _Atomic bool closing; /* nothing new is begun */
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_alarms *alarms;
    struct sg_origin *api;   /* lives of sandboxes */
    struct sg_origin *data;  /* short calls to their daemons */
    struct sg_net_client *streams; /* commands and bytes of files */
    struct sg_net_client *ports;   /* what listens in sandboxes, from outside */
    struct sg_fleet *fleet;
    _Atomic int api_age; /* enum e2b_age */
    char *domain, *template_name, *server, *spool_dir;
    int64_t timeout_ms;
    void (*orphan)(void *arg, const char *provider, const char *sandbox_id, const char *lease_id);
    void *orphan_arg;
};

struct e2b_sandbox {
    struct sg_sandbox base;
    struct e2b *d;
    struct sg_fleet_member member;
    struct sg_secret *token;   /* of its daemon */
    struct sg_secret *traffic; /* that opens its ports, or NULL: nothing keeps them shut */
    struct sg_env env;       /* behind base.env */
    char *root;
    _Atomic bool gone, checking;
};

void e2b_unref(struct e2b *d);

/* ---- api.c: what older deployments have at another place ---- */

/* POST to "/v2" and path; where that is not known (404, 405), to path alone, which is found out once. path: "/sandboxes" or what is below it. A
 * call that makes something is not repeatable. */
void e2b_post(struct e2b *d, const char *path, const json_t *body, bool repeatable, bool insist,
              void (*done)(void *arg, const struct sg_origin_answer *a, const struct sg_error *err), void *arg);

/* ---- port.c ---- */

struct json_t *e2b_public_url(struct sg_sandbox *base, uint16_t port);
int e2b_ask_port(struct sg_sandbox *base, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done, struct sg_error *err);
/* Makes d->ports. c: what all its clients have, its base aside; url: e2b.port_url or NULL. */
int e2b_ports_new(struct e2b *d, struct sg_net *net, struct sg_net_client_config c, const char *url, struct sg_error *err);

/* ---- sandbox.c ---- */

/* Of a call to the API that is made now. */
int64_t e2b_deadline(const struct e2b *d);
/* Headers for its daemon. out: room for four. user: "user", "root" or NULL. */
size_t e2b_headers(const struct e2b_sandbox *sb, const char *user, struct sg_net_header out[4]);
/* Asks the provider whether it is still there, because something looked as if it was not; if not, it is lost. */
void e2b_check(struct e2b_sandbox *sb);
/* It is gone: told once. */
void e2b_lost(struct e2b_sandbox *sb);
/* A call to its daemon failed with err. fn hears the same, or SG_SANDBOX_LOST when that was because it is gone, which the provider is
 * asked first where it may be so. */
void e2b_blame(struct e2b_sandbox *sb, const struct sg_error *err, void (*fn)(void *arg, const struct sg_error *err), void *arg);

int e2b_create(struct sg_driver *base, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel, const struct sg_sandbox_done *done,
               struct sg_error *err);
int e2b_adopt(struct sg_driver *base, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err);
int e2b_extend(struct sg_sandbox *base, int64_t left_ms, const struct sg_done *done, struct sg_error *err);
void e2b_terminate(struct sg_sandbox *base, const struct sg_done *done);
void e2b_sandbox_free(struct sg_sandbox *base);
void e2b_list(void *arg, const char *lease, const struct sg_fleet_listed *done);
void e2b_remove(void *arg, const char *id, const struct sg_done *done);
void e2b_missing(void *arg, struct sg_sandbox *sb);

/* ---- stream.c: one command as its daemon streams it ---- */

struct e2b_stream;
struct e2b_stream_args {
    const char *user;
    const char *const *argv;
    const char *marker; /* a variable NAME=VALUE, or NULL */
    const char *cwd;    /* or NULL */
    const char *tag;
    bool stdin_open;
    int64_t backstop_ms; /* when the daemon is to kill it by itself, 0: never */
    /* One at a time, on any thread. */
    void (*started)(void *arg, uint32_t pid);
    /* How many of the bytes were taken; fewer than all: the rest comes again after e2b_stream_resume(). */
    size_t (*data)(void *arg, bool to_stderr, const char *data, size_t len);
    /* Last, exactly once. err NULL: it has ended with that code; -1: by a signal. */
    void (*over)(void *arg, int code, const struct sg_error *err);
    void *arg;
};
/* SG_CWD_NOT_FOUND and the like come through over. -1: nothing happened. */
int e2b_stream_start(struct e2b_sandbox *sb, const struct e2b_stream_args *a, struct e2b_stream **ret, struct sg_error *err);
void e2b_stream_resume(struct e2b_stream *s);
/* No longer listened to; over comes with SG_CANCELLED, unless it has. What runs goes on. */
void e2b_stream_leave(struct e2b_stream *s);
struct e2b_stream *e2b_stream_unref(struct e2b_stream *s);

/* ---- run.c: a short script of ours inside ---- */

struct e2b_ran {
    int code;
    const char *out; /* NUL behind it */
    size_t out_len;
    const char *err;
};
struct e2b_run_args {
    const char *user;
    const char *const *argv;
    size_t out_max;
    int64_t limit_ms;
    /* r NULL with err: not known what came of it, or nothing did. */
    void (*done)(void *arg, const struct e2b_ran *r, const struct sg_error *err);
    void *arg;
};
/* done always comes, maybe before this returns. */
void e2b_run(struct e2b_sandbox *sb, const struct e2b_run_args *a);

/* ---- exec.c, files.c, put.c, snapshot.c ---- */

int e2b_exec(struct sg_sandbox *base, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink, struct sg_exec **ret,
             struct sg_error *err);
extern const struct sg_file_ops e2b_file_ops;
extern const struct sg_snapshot_ops e2b_snapshot_ops;

#endif
