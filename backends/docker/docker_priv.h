/* What the parts of the docker driver share; nobody else includes it.
 *
 * All state is the reactor thread's, but for what is said to be under the lock. Slots that are called on other threads post a task;
 * answers of the engine arrive as tasks.
 */
#ifndef SG_DOCKER_PRIV_H
#define SG_DOCKER_PRIV_H

#include "backends/agent/far.h"
#include "backends/agent/sandbox.h"
#include "backends/docker/docker.h"
#include "backends/egress/lease.h"
#include "backends/egress/proxy.h"
#include "base/buf.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define DOCKER_API_MIN 41U /* minor of version 1 */
#define DOCKER_API_MAX 44U

#define LABEL_INSTANCE "sandgate.instance"
#define LABEL_LEASE "sandgate.lease"
#define LABEL_RUN "sandgate.run"
#define LABEL_IMAGE "sandgate.image"
#define LABEL_EGRESS "sandgate.egress"
#define LABEL_AGENT "sandgate.agent" /* share or engine: how its agent is reached */

#define NAME_LEN 96
#define LOOK_MS 10000 /* for a question that changes nothing */
#define PROFILE_NAME "seccomp.json"
#define NANO_PER_MILLI 1000000 /* of CPUs, as the engine counts them and as we do */

struct docker {
    struct sg_driver base;
    struct sg_driver_ops ops; /* what base has */
    struct sg_docker_config cfg; /* with its own strings */
    struct sg_docker_parts parts;
    char instance[SG_ID_MAX]; /* this server, on an engine that others use, too */
    struct sg_secret *login;  /* of the registry login_host, ready for a header; or NULL */
    char *login_host;
    char *profile;            /* for SecurityOpt; NULL: the engine's own. Also in the file PROFILE_NAME of the directory */
    int run_fd;               /* O_PATH of the directory of the sockets */
    struct sg_net_client *engine;
    struct sg_egress_rules *rules;
    struct sg_egress_hub *hub; /* NULL: no container has a proxy */
    struct sg_egress_counters egress;
    struct sg_net_client *streams; /* connections to relays, which last */
    bool far;                      /* agents of new containers are reached through the engine */
    struct sg_buf bring;           /* then: a tar of what they need in there */
    atomic_int refs; /* the registry's, and one per box */

    pthread_mutex_t lock; /* guards the next block */
    pthread_cond_t changed;
    bool closed;  /* nothing is posted any more */
    bool stepped; /* close_task has run */
    unsigned api; /* minor of the version spoken; 0: not known yet */
    atomic_bool podman; /* known with it */
    bool well;
    struct sg_error why_not; /* when it is not well */

    /* reactor thread */
    struct box *boxes;
    bool closing, settled;
    bool sweeping, sweep_again;
    bool retiring; /* removes what nobody has, before it closes */
    struct sg_timer retire_timer;
    int inotify;
    struct sg_watch news; /* of inotify */
    struct sg_task close_task, settle_task;
    struct sg_timer sweep_timer;
    struct watch_engine *watching; /* events.c */
    struct commit *commits;        /* commit.c: snapshots that are being made */
    struct pull *pulls;            /* pull.c */
    unsigned warming;
    struct sg_timer warm_timer;
    atomic_uint warm; /* boxes that are BOX_WARM; for any thread to read */
};

/* ---- boxes: containers, from the wish for one to their removal ---- */

enum box_state {
    BOX_MAKING, /* or being found */
    BOX_WARM,   /* ready, and nobody's */
    BOX_TAKEN,  /* was warm, and is becoming another's */
    BOX_READY,
    BOX_LOST,   /* its owner has been told, or will be in a moment */
    BOX_ENDING,
    BOX_GONE
};

struct box {
    struct sg_agent_sandbox base; /* first: it is a struct sg_sandbox. base.sb.id is the container's name */
    struct docker *d;
    enum box_state state;
    char run[SG_ID_MAX]; /* its directory below run_fd */
    char lease[SG_ID_MAX];
    bool far; /* its agent is reached through the engine */
    bool again; /* ready, but that way broke and is being made again, */
    int64_t until_ms; /* ... until then */
    char *image;
    char *snapshot;          /* the image of one, made on `image`, that the container is made of; or NULL */
    struct sg_limits limits; /* as they were asked for, and as the engine says that it has set them: one may be unable to */
    struct sg_limits set;
    enum sg_egress egress;
    struct sg_env env;       /* of the image, and what says where the proxy is */
    struct sg_egress_proxy *proxy; /* or NULL */
    int oom_fd;

    /* making and finding */
    struct sg_sandbox_done done;
    struct sg_cancel *cancel;
    struct sg_cancel_hook hook;
    struct sg_task begin_task, cancel_task;
    bool cancelled, pulled, created, adopted, warm;
    struct pull *pull; /* what it waits for, or NULL; among all that do */
    struct box *pull_prev, *pull_next;
    pid_t pid;              /* of its first process, as the engine says; 0: not known yet */
    int wd;                 /* inotify's */
    bool named;             /* its socket is there */
    struct sg_agent *greeting; /* connected, not ready yet */
    struct sg_timer timer;
    struct sg_error why; /* of a failure, until what there was of it is removed */

    /* of a blackbox whose image brings its service */
    bool blackbox;
    char *cwd;                  /* of that; NULL: /workspace */
    struct sg_env service_env;  /* of the lease */
    struct sg_exec *service;    /* what starts it, while it does */
    struct sg_task service_task;
    bool serving, service_ok;
    char service_why[160];

    /* ending */
    struct ending *endings; /* who waits */
    struct box *became; /* of a warm one: whose container it is now; that has a reference in `shell` */
    struct box *shell;
    unsigned tries;
    bool removing;

    bool listed;
    struct box *prev, *next;
};

/* ---- docker.c ---- */

struct docker *docker_ref(struct docker *d);
void docker_unref(struct docker *d);
/* Any thread. False: the driver has ended. */
bool docker_post(struct docker *d, struct sg_task *t);
struct box *docker_find(const struct docker *d, const char *name);
/* A box is gone. */
void docker_unlisted(struct docker *d);
void docker_set_well(struct docker *d, bool well, const struct sg_error *why);

/* ---- engine.c: calls ---- */

/* An answer of the engine; borrowed. */
struct reply {
    int status;     /* 0: there was none, err says why */
    json_t *json;   /* or NULL */
    const char *message; /* of an error, or "" */
    const struct sg_error *err;
};
typedef void reply_fn(void *arg, const struct reply *r);

struct ask {
    const char *method;
    const char *path; /* after the version */
    const char *body; /* JSON, or NULL */
    size_t tar_len;   /* > 0: body is so many bytes of a tar, which stay where they are as long as the driver */
    int64_t ms;       /* until the answer */
    bool idempotent;
    size_t max;       /* of the answer; 0: 1 MiB */
    struct sg_cancel *cancel; /* MAY */
    const struct sg_secret *login; /* MAY: for the registry */
    struct sg_pipe *stream; /* MAY: what is answered with a 2xx goes there as it comes; the caller keeps it until fn */
    int64_t stall_ms;
    reply_fn *fn; /* reactor thread, exactly once; not when the driver ends first (docker_closing calls them all) */
    void *arg;
};
void engine_ask(struct docker *d, const struct ask *a);
/* Has it said what it is? Any thread. */
bool engine_known(struct docker *d);
/* The minor of the version for a path of one's own: the one spoken, or the oldest that will do. Any thread. */
unsigned engine_api(struct docker *d);
/* Is its disk full? */
bool docker_says_full(const char *message);
/* The error of a reply whose status was not what was hoped for. what: "make the container". */
int engine_error(const struct reply *r, const char *what, struct sg_error *err);

/* ---- login.c ---- */

int login_load(struct docker *d, struct sg_error *err);
void login_drop(struct docker *d);
/* What a pull of the image is to bring along; NULL: nothing. Borrowed. */
const struct sg_secret *login_for(const struct docker *d, const char *image);

/* ---- spec.c ---- */

int docker_check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err);
/* The body of the create of b, whose image, limits and names are set. Caller frees. NULL: out of memory. */
char *docker_body(const struct docker *d, const struct box *b);
/* Fills in image, limits and network of b; the spec has been checked. */
void docker_apply(const struct docker *d, struct box *b, const struct sg_sandbox_spec *spec);
void docker_set_egress(struct box *b, enum sg_egress e);

/* ---- profile.c ---- */

/* The seccomp profile of containers, in the engine's JSON: an allow list, for the native architecture alone (the engine's own is compiled for
 * three at every start, which takes it 20 ms). The caller's; NULL on machines other than x86-64 and arm64, whose calls have other names and
 * arguments. */
char *docker_profile(void);

/* ---- box.c ---- */

struct box *box_new(struct docker *d, const char *name);
/* The one way into BOX_WARM and out of it. */
void box_become(struct box *b, enum box_state state);
/* Asks what the engine says of its container. fn has b, with a reference, as its argument. */
void box_look(struct box *b, reply_fn *fn);
struct box *box_ref(struct box *b);
void box_unref(struct box *b);
void box_list(struct box *b);   /* into d->boxes, with a reference */
void box_unlist(struct box *b); /* out of it */
/* Its directory: made, watched, removed. */
int box_make_dir(struct box *b, struct sg_error *err);
int box_watch_dir(struct box *b, struct sg_error *err);
void box_remove_dir(struct box *b);
/* Connects to the agent whose socket is there: 0 and box_greeted() or box_failed() comes. */
int box_connect(struct box *b, struct sg_error *err);
/* Of the agent of b, however it is reached. */
struct sg_agent_options box_agent_options(struct box *b);
void docker_news(struct sg_watch *w, uint32_t events);
int docker_sweep_dirs(struct docker *d);
/* Is it that of one of our boxes? */
bool docker_has_run(const struct docker *d, const char *run);

/* ---- make.c ---- */

int docker_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel, const struct sg_sandbox_done *done,
                  struct sg_error *err);
/* Lists b and begins; make_cold(): without a look for a warm one. */
void make_begin(struct box *b);
void make_cold(struct box *b);
/* The image is there; or err says why not. */
void make_pulled(struct box *b, const struct sg_error *err);
/* The agent's socket has its name. */
void make_named(struct box *b);
/* The agent is ready; or it, or something before it, failed. */
void make_ready(struct box *b);
/* ... and has the way out that it needs. */
void make_serve(struct box *b);
void make_failed(struct box *b, const struct sg_error *why);
/* What inspect says, into b: pid, limits and the image's environment. False: it does not run. */
bool make_take_inspect(struct box *b, const json_t *json);
/* Gives b what it needs once its pid is known: waits for the socket, then connects. */
void make_await(struct box *b);
/* Ends a make or a find that nobody wants any more. */
void make_cancel(struct box *b);
/* There is nothing left to do for b. */
void make_done(struct box *b);
/* Answers who asked. */
void make_answer(struct box *b, const struct sg_error *err);

/* ---- egress.c ---- */

/* The driver's slot. */
bool docker_proxies(struct sg_driver *d, struct sg_egress_figures *ret);
/* The rules, and what all proxies share. */
int docker_egress_start(struct docker *d, const char *const *allow, struct sg_error *err);
/* b's agent is there: a proxy for it, and then make_serve() or make_failed(). */
int box_listen(struct box *b, struct sg_error *err);
/* ... again, over another way. */
void box_listen_again(struct box *b);

/* ---- blackbox.c ---- */

/* The agent of b is there: ends in make_done() or make_failed(). */
void blackbox_start(struct box *b);

/* ---- reach.c: agents that are reached through the engine ---- */

/* Reads the agent, once. */
int reach_load(struct docker *d, struct sg_error *err);
/* Puts it into the container of b, which does not run yet. fn gets a reference on b. */
void reach_bring(struct box *b, reply_fn *fn);
/* Starts a relay in the container of b, which runs: make_ready() or make_failed() comes, or again_ready() or again_failed(). */
void reach_begin(struct box *b);

/* ---- again.c ---- */

/* The agent of b is gone. True: it is looked for. */
bool again_begin(struct box *b, const struct sg_error *why);
/* It could not be reached; r (MAY be NULL): the engine's answer. */
void again_failed(struct box *b, const struct reply *r, const struct sg_error *why);
void again_ready(struct box *b);

/* ---- warm.c ---- */

/* The driver's slot. */
bool docker_warm(struct sg_driver *d, struct sg_warm_figures *ret);
void warm_fill(struct docker *d);
/* ... after a while: one could not be made, or did not last. */
void warm_later(struct docker *d);
/* A warm container that fits the spec becomes that of the lease; false: there is none. */
bool warm_take(struct docker *d, struct box *wanted);

/* ---- commit.c ---- */

extern const struct sg_snapshot_ops docker_commit_ops;
extern const struct sg_snapshot_ops docker_commit_old_ops; /* new snapshots are not the engine's */
/* Of spec.snapshot_ref: the image that it was made on, borrowed, or NULL; and its own, which the caller frees. */
const char *docker_snapshot_base(const char *ref);
char *docker_snapshot_image(const char *ref);
/* Is it the container of a snapshot that is being made? Reactor thread. */
bool docker_commits(const struct docker *d, const char *name);

/* ---- end.c ---- */

void docker_terminate(struct sg_sandbox *sb, const struct sg_done *done);
void docker_sandbox_free(struct sg_sandbox *sb);
/* Removes the container and then calls done (MAY be empty) with NULL; SG_SHUTTING_DOWN when the driver ends before. */
void box_end(struct box *b, const struct sg_done *done);
/* The agent is gone. */
void box_lost(struct box *b, const struct sg_error *why);
/* Its way out is gone. */
void box_cut_off(struct box *b, const struct sg_error *why);
/* The driver ends: whoever waits hears of it. */
void box_shut(struct box *b);

/* ---- find.c ---- */

int docker_adopt(struct sg_driver *d, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err);
void docker_settled(struct sg_driver *d);
void docker_sweep(struct docker *d);
/* Is a container of this server nobody's? run: what its label says, MAY be NULL. It may have another name now than the engine said. */
bool docker_is_stranger(const struct docker *d, const char *name, const char *run);
void sweep_due(struct sg_timer *t);

/* ---- events.c ---- */

void watch_start(struct docker *d);
void watch_stop(struct docker *d);

/* ---- sandbox.c ---- */

int docker_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink, struct sg_exec **ret,
                struct sg_error *err);
json_t *docker_metadata(struct sg_sandbox *sb);
/* Where the kernel counts what it kills in the container of pid; -1: nobody can tell. */
int docker_oom_fd(pid_t pid);

#endif
