/* Where sandboxes come from: the one interface every backend fills in.
 *
 * A backend is a `const struct sg_driver_ops` singleton at the end of its file plus an instance whose
 * struct starts with `struct sg_driver`. A sandbox is a driver's own struct that starts with `struct
 * sg_sandbox`. Nobody calls a slot directly: the sg_driver_... wrappers in driver.c check capability and
 * state and give the uniform SG_NOT_SUPPORTED.
 *
 * Rules for every slot
 *  - It never blocks. What takes time answers later through its `done` callback, exactly once, on any
 *    thread (also before the slot returns), without locks held.
 *  - A slot that returns -1 has filled err and will not call done: nothing happened.
 *  - Arguments are borrowed for the call only, unless said otherwise. Errors given to done are borrowed
 *    for the callback.
 *  - A NULL slot means unsupported, and the facts say so too.
 */
#ifndef SG_DRIVER_H
#define SG_DRIVER_H

#include "base/cancel.h"
#include "base/error.h"
#include "base/hold.h"
#include "base/pipe.h"
#include "model/exec.h"
#include "model/file.h"
#include "model/kept.h"
#include "model/provider.h"
#include "model/sandbox.h"
#include "model/slot.h"

struct sg_driver;
struct sg_sandbox;
struct json_t;

/* Facts are data: the selector sees only these and the configuration, never a probe. */
struct sg_driver_facts {
    const char *name;
    unsigned caps; /* enum sg_cap bits this driver really has */
    bool free;
    bool tty; /* commands may have a terminal */
    bool checks_out;      /* create makes spec.repo in spec.root; for the others it is put there afterwards */
    bool outlives_server; /* a sandbox survives the server's death: creates are written as intents first */
    const char *const *credentials; /* NULL-terminated names, or NULL */
};

/* ---- completion callbacks ---- */

struct sg_done {
    void (*fn)(void *arg, const struct sg_error *err); /* err NULL: done */
    void *arg;
};
/* sb: one reference for the callee, NULL with err. */
struct sg_sandbox_done {
    void (*fn)(void *arg, struct sg_sandbox *sb, const struct sg_error *err);
    void *arg;
    /* MAY: what a create that takes long is busy with, as members for the lease's `metadata` until it is ready; borrowed for the callback, and
     * not changed by anybody. Now and then, before fn. */
    void (*progress)(void *arg, struct json_t *what);
};
/* fd: a connected, non-blocking, CLOEXEC stream socket the callee owns; -1 with err. hold (may be NULL): the callee's too,
 * dropped after fd is closed. */
struct sg_dial_done {
    void (*fn)(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err);
    void *arg;
};

/* ---- sandboxes ---- */

struct sg_sandbox {
    struct sg_driver *driver;
    _Atomic int refs;
    char id[64]; /* the provider's own id of it: slot name, container id, ... */
    unsigned lacks; /* capabilities of its driver that this one is without; constant */
    const struct sg_env *env; /* MAY be NULL: what its commands have on top of sg_env_base(); the driver's, constant */
    char owner[SG_ID_MAX]; /* the owner's own note, e.g. the lease id; set before sg_sandbox_on_lost() */
    /* Called once when the sandbox dies on its own (agent gone, container died). Set by the owner with
     * sg_sandbox_on_lost() before anything can race; why is a short stable word plus detail. */
    void (*lost)(void *arg, struct sg_sandbox *sb, const struct sg_error *why);
    void *lost_arg;
};

/* ---- exec ---- */

/* What a running command tells. All callbacks: any thread, no locks held, never blocking. */
struct sg_exec_sink {
    /* The process exists; exactly once, unless failed comes instead. */
    void (*started)(void *arg);
    /* Nothing was started (SG_CWD_NOT_FOUND, SG_LEASE_GONE, SG_SANDBOX_LOST...), or the outcome was lost later
     * (SG_SANDBOX_LOST, SG_OUTCOME_UNKNOWN). Last callback. */
    void (*failed)(void *arg, const struct sg_error *err);
    /* The command's own process has ended and everything it wrote is in out and err, which are closed. Last
     * callback. A missing program is an exit with 127 (126 not executable) and a message in err. */
    void (*exited)(void *arg, const struct sg_exit *exit);
    void *arg;
};

/* A started command. Local: in, out, err are pipes pumped by the reactor.
 *
 * On a terminal (spec.tty) out has what comes out of it and err nothing, and in is what is typed: its end types the end-of-file
 * character, once to end a line that was begun and once more. Without stdin_open the end is typed at the start. The end of the
 * command's own process, after the same grace for others that have it open, hangs the terminal up. */
struct sg_exec {
    struct sg_pipe *in;  /* caller writes; NULL when spec.stdin_open is false */
    struct sg_pipe *out; /* caller reads */
    struct sg_pipe *err;
    const struct sg_exec_ops *ops; /* the driver's */
};

struct sg_exec_ops {
    /* Kills the command and every descendant, wherever it moved; also of a command whose own process has ended.
     * Any thread, idempotent; the first reason counts. exited() follows for a running one. */
    void (*kill)(struct sg_exec *x, enum sg_killed_by why);
    /* Sends a signal to the command's own process. -1: SG_CONFLICT when it has ended. */
    int (*signal)(struct sg_exec *x, int signo, struct sg_error *err);
    /* MUST for facts.tty. Of a command on a terminal; 1 to 65535 each. -1: SG_CONFLICT when that has ended. */
    int (*resize)(struct sg_exec *x, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err);
    /* Drops the caller's interest; after it no callback comes. Does not kill: background children live on. */
    void (*release)(struct sg_exec *x);
};

/* ---- files ---- */

/* The content of a file that is far away: nothing of it is on its way before somebody says what he wants. */
struct sg_file_content;
struct sg_file_content_ops {
    /* Once: len bytes from first on, as they come. One reference, for the caller; it fails when they do not, also because the file has become
     * shorter. A reader that stops ends it. Any thread. */
    struct sg_pipe *(*send)(struct sg_file_content *c, uint64_t first, uint64_t len);
    void (*close)(struct sg_file_content *c); /* MUST be called, once, whatever was sent, which goes on. Any thread. */
};
struct sg_file_content {
    const struct sg_file_content_ops *ops;
};

/* An open regular file to read. fd is checked (S_ISREG, read-only, ordinary file system) and safe for pread
 * and sendfile; its size is a hint. Cloud drivers give a pipe instead (fd -1), and for
 * open() there may be content instead of both. Whoever receives it owns all four. */
struct sg_file_source {
    int fd;
    struct sg_hold *hold; /* dropped after fd is closed; may be NULL */
    struct sg_pipe *pipe;
    struct sg_file_content *content;
    struct sg_file_stat stat;
};
struct sg_file_source_done {
    void (*fn)(void *arg, struct sg_file_source *src, const struct sg_error *err);
    void *arg;
};

struct sg_file_put_args {
    const char *path;
    bool append;
    bool mode_given;
    uint32_t mode;    /* permission bits, else 0644 for a new file, kept for a replaced one */
    int64_t size_hint; /* -1 unknown */
    const struct sg_condition *only_if; /* NULL: always. SG_PRECONDITION_FAILED at once, and again at the commit, which is where it
                                         * counts; what commands do in the moment between check and rename is not seen */
    bool mtime_given;
    int64_t mtime_ns;
    bool no_links; /* follow no symbolic link; one that has the name is replaced itself */
};

/* A file being written: nothing is visible under its name until commit. write may block on the disk for a
 * short while: call it on a worker or for small pieces only. */
struct sg_file_sink;
struct sg_file_sink_ops {
    /* 0 or -1 (SG_SANDBOX_DISK_FULL, SG_SANDBOX_LOST...). data NULL: len zeros, as a hole where the file system has such. */
    int (*write)(struct sg_file_sink *s, const void *data, size_t len, struct sg_error *err);
    /* Whole or not at all. Consumes the sink, also on failure. created: the name was new. */
    void (*commit)(struct sg_file_sink *s,
                   void (*done)(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err),
                   void *arg);
    /* Consumes the sink; nothing is left of it. */
    void (*abort)(struct sg_file_sink *s);
};
struct sg_file_sink {
    const struct sg_file_sink_ops *ops;
};
struct sg_file_sink_done {
    void (*fn)(void *arg, struct sg_file_sink *sink, const struct sg_error *err);
    void *arg;
};
struct sg_file_stat_done {
    void (*fn)(void *arg, const struct sg_file_stat *st, const struct sg_error *err);
    void *arg;
};
struct sg_file_list_args {
    const char *path;
    bool recursive;    /* names are then paths below path; links are not followed */
    const char *after; /* names behind this one in byte order only; NULL: all */
    size_t max;        /* the first so many of them, and whether there are more */
};
/* list: moved to the callee, who finishes it. */
struct sg_file_list_done {
    void (*fn)(void *arg, struct sg_file_list *list, const struct sg_error *err);
    void *arg;
};

/* Paths are the sandbox's own; relative ones start at /workspace. Errors: SG_NOT_FOUND, SG_FORBIDDEN, SG_IS_A_DIRECTORY,
 * SG_NOT_A_DIRECTORY, SG_NOT_A_REGULAR_FILE, SG_DIRECTORY_NOT_EMPTY, SG_ALREADY_EXISTS, SG_SANDBOX_DISK_FULL,
 * SG_PATH_REFUSED (too long, a loop of links), SG_SANDBOX_LOST, SG_OVERLOADED. */
struct sg_file_ops {
    int (*get)(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
    /* MAY: as get, for who wants to read once and in one go at most. */
    int (*open)(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
    int (*put)(struct sg_sandbox *sb, const struct sg_file_put_args *a, const struct sg_file_sink_done *done,
               struct sg_error *err); /* missing parents are made */
    int (*stat)(struct sg_sandbox *sb, const char *path, const struct sg_file_stat_done *done,
                struct sg_error *err); /* of the link itself when path is one */
    int (*list)(struct sg_sandbox *sb, const struct sg_file_list_args *a, const struct sg_file_list_done *done,
                struct sg_error *err);
    int (*mkdir)(struct sg_sandbox *sb, const char *path, uint32_t mode,
                 const struct sg_file_stat_done *done, struct sg_error *err); /* with parents; existing directory is fine */
    int (*remove)(struct sg_sandbox *sb, const char *path, bool recursive, const struct sg_condition *only_if,
                  const struct sg_done *done, struct sg_error *err); /* of the link itself when path is one; only_if: NULL always */
    /* Parents of to are made; a file or an empty directory there is replaced, SG_DIRECTORY_NOT_EMPTY. */
    int (*move)(struct sg_sandbox *sb, const char *from, const char *to, const struct sg_done *done, struct sg_error *err);
    const struct sg_tree_ops *tree; /* MAY: archives */
};

/* text: borrowed for the callback. */
struct sg_text_done {
    void (*fn)(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err);
    void *arg;
};

/* What packing and unpacking a directory needs. No symbolic link is followed on the way to any path (SG_PATH_REFUSED) but in
 * resolve, scratch, stage and the target of merge: use the paths that resolve and stage give. mkdir, symlink, link,
 * attributes, put and the commit of what was put are carried out in the order in which they are called, also by a caller
 * that does not wait for the one before; what is called after them comes after them. */
struct sg_tree_ops {
    int (*resolve)(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done,
                   struct sg_error *err); /* the path without links, and what is there */
    int (*list)(struct sg_sandbox *sb, const char *path, size_t max, const struct sg_file_list_done *done, struct sg_error *err);
    int (*get)(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
    int (*readlink)(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done, struct sg_error *err); /* whole */
    /* A new file without a name on the disk of path, or on the server's where that is far away, open for reading and writing: the
     * caller's. What path does not permit is refused here, before there is anything to keep. */
    int (*scratch)(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
    /* A new directory with a name of its own in the directory path or the nearest one above it that exists. */
    int (*stage)(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done, struct sg_error *err);
    int (*mkdir)(struct sg_sandbox *sb, const char *path, uint32_t mode, const struct sg_file_stat_done *done, struct sg_error *err);
    /* Parents are made; what has the name and is no directory is replaced. */
    int (*symlink)(struct sg_sandbox *sb, const char *path, const char *text, int64_t mtime_ns, const struct sg_done *done,
                   struct sg_error *err);
    int (*link)(struct sg_sandbox *sb, const char *path, const char *existing, const struct sg_done *done, struct sg_error *err);
    int (*attributes)(struct sg_sandbox *sb, const char *path, uint32_t mode, int64_t mtime_ns, const struct sg_done *done,
                      struct sg_error *err);
    /* Moves all that is in the directory stage into the directory to, which may be missing, and removes stage. Directories that
     * both have are merged, other names replaced. SG_IS_A_DIRECTORY, SG_NOT_A_DIRECTORY: one would meet the other, and nothing
     * was moved. */
    int (*merge)(struct sg_sandbox *sb, const char *stage, const char *to, const struct sg_done *done, struct sg_error *err);

    /* ---- instead of all of the above but resolve and scratch, where an entry costs a trip: as records (model/tree_record.h) ---- */

    /* What is below path, or the file that it is. *ret: one reference for the caller; it fails when it is cut, also for the reasons that
     * list and get have. A reader that stops ends it. */
    int (*pack)(struct sg_sandbox *sb, const char *path, struct sg_pipe **ret, struct sg_error *err);
    /* All that comes out of records, in a stage, which is merged into the directory to as by merge; then modes of its directories, and
     * its own if it was missing. A reference is taken on records; that they fail ends it. */
    int (*unpack)(struct sg_sandbox *sb, const char *to, struct sg_pipe *records, const struct sg_done *done, struct sg_error *err);
};

/* ---- snapshots that the provider holds ---- */

/* Borrowed until done. */
struct sg_snapshot_args {
    const char *id;     /* its label at the provider, beside that of this server */
    const char *tenant; /* another label, where the provider has room for it */
    /* What is to be in it, for ops->tar: a file with the tar of the writable places, its size and digest. */
    int fd;
    uint64_t bytes;
    const char *sha256;
};
/* ref: the provider's name of it, shorter than SG_SNAPSHOT_REF_MAX; borrowed; NULL with err. */
struct sg_snapshot_done {
    void (*fn)(void *arg, const char *ref, const struct sg_error *err);
    void *arg;
};
struct sg_snapshot_item {
    char id[SG_ID_MAX]; /* as its label says */
};
/* items: borrowed; NULL with err. */
struct sg_snapshot_listed {
    void (*fn)(void *arg, const struct sg_snapshot_item *items, size_t n, const struct sg_error *err);
    void *arg;
};

/* They cost money or room at the provider, so whoever takes one has written its id down before, and asks for its removal until that is
 * confirmed. A sandbox is made of one by create with spec.snapshot_ref. */
struct sg_snapshot_ops {
    /* The provider keeps what it is given, the tar of args, instead of the sandbox as it is; and read gives it back. */
    bool tar;
    /* MAY: NULL when this driver is not to have new ones; the others are still made use of and removed. The sandbox may stand still for a
     * moment; its commands go on, or end as the driver says they did. err: nothing is known to be left, but something may be: drop it.
     * SG_SANDBOX_LOST, SG_CONFLICT, SG_LIMIT_EXCEEDED, SG_PROVIDER_..., SG_UNAVAILABLE. */
    int (*take)(struct sg_sandbox *sb, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err);
    /* MUST for tar: what was given to take, of a sandbox that has just been made of it. src->pipe, and its size where that is known. */
    int (*read)(struct sg_sandbox *sb, const struct sg_file_source_done *done, struct sg_error *err);
    /* MUST. done(NULL): there is none any more with that id, or there never was. ref: "" when it is not known. Idempotent; one attempt, with
     * a deadline of the driver's. SG_CONFLICT: sandboxes that were made of it still need it. */
    int (*drop)(struct sg_driver *d, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err);
    /* MUST. All that has the label of this server. */
    int (*list)(struct sg_driver *d, const struct sg_snapshot_listed *done, struct sg_error *err);
};

/* ---- pre-built slots, for operators ---- */

/* Any thread, never blocking. pool NULL or "": the default pool; SG_POOL_NOT_FOUND for an unknown one. slot: its name, SG_NOT_FOUND
 * for an unknown one; NULL: all of the pool. */
struct sg_slot_ops {
    /* A copy of what is known now; the caller finishes *ret. */
    void (*report)(struct sg_driver *d, struct sg_slot_report *ret);
    /* on: no new leases from the pool (waiters and creates get SG_UNAVAILABLE) or the slot until it is turned off again. Off for the
     * pool is off for each of its slots too. */
    int (*drain)(struct sg_driver *d, const char *pool, const char *slot, bool on, struct sg_error *err);
    /* Throws away and rebuilds every slot that has no lease, FAILED ones at once. SG_CONFLICT for a named one that has a lease.
     * hard: leased ones too; their leases are lost. */
    int (*recycle)(struct sg_driver *d, const char *pool, const char *slot, bool hard, struct sg_error *err);
    /* The last bytes, at most max, of what the services of the slot wrote; *ret is the caller's, with a NUL behind it. *ret_total: how
     * many there were since the start. SG_NOT_SUPPORTED for a pool whose slots run none. */
    int (*log)(struct sg_driver *d, const char *pool, const char *slot, size_t max, char **ret, size_t *ret_len, uint64_t *ret_total,
               struct sg_error *err);
};

/* ---- sandboxes that outlive the server ---- */

/* What a server before this one has written down of a lease. Borrowed for the call. */
struct sg_adopt {
    const char *lease_id;
    const char *sandbox_id; /* "": the server ended before it knew */
    const char *root;       /* as in the spec of the create */
    int64_t left_ms;        /* until the lease expires; <= 0: it has, or was never ready */
};

/* ---- the driver ---- */

struct sg_driver_ops {
    /* MUST. Gives a sandbox that is ready for exec, or an error after which nothing is left: SG_ACQUIRE_TIMEOUT (503),
     * SG_UNAVAILABLE, SG_POOL_NOT_FOUND, SG_POOL_MODE_MISMATCH, SG_NOT_SUPPORTED, SG_PROVIDER_... Firing cancel
     * ends the wait with SG_CANCELLED. */
    int (*create)(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                  const struct sg_sandbox_done *done, struct sg_error *err);
    /* MAY. Checks a spec without touching anything (mode mismatch, unknown pool, limits above the ceiling). */
    int (*check)(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err);
    /* MUST for facts.outlives_server. Finds the sandbox that a server before this one had for a lease; it may be had more than once.
     * SG_SANDBOX_LOST: there is none. It does not fail because the provider cannot be asked: it goes on asking, until it can or the
     * driver ends (SG_SHUTTING_DOWN). */
    int (*adopt)(struct sg_driver *d, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err);
    /* MAY: once, after adopt has been called for all leases of servers before this one. What else there is of this server's at the provider
     * is nobody's, and the driver removes it, now and whenever it may have appeared. */
    void (*settled)(struct sg_driver *d);
    /* MAY: where the provider ends sandboxes by itself. It does so at least left_ms from now, or later where it was to end later. */
    int (*extend)(struct sg_sandbox *sb, int64_t left_ms, const struct sg_done *done, struct sg_error *err);
    /* MUST. done(NULL) once nothing of the sandbox runs any more. Idempotent; a lost sandbox succeeds. SG_SHUTTING_DOWN (only
     * facts.outlives_server): the driver ended before the provider had confirmed it; the next server asks again. */
    void (*terminate)(struct sg_sandbox *sb, const struct sg_done *done);
    /* MUST. Last reference gone; the sandbox has been terminated or lost. */
    void (*sandbox_free)(struct sg_sandbox *sb);
    /* MUST. On success *ret is the caller's until release. Sink callbacks may come before this returns, but *ret, its
     * pipes and ops included, is set before the first of them. */
    int (*exec_start)(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                      struct sg_exec **ret, struct sg_error *err);
    /* MUST for SG_CAP_FILE_RW. */
    const struct sg_file_ops *files;
    /* MAY: connects to a port on the sandbox's own loopback, 127.0.0.1 then ::1. SG_ENDPOINT_NOT_LISTENING when nothing listens,
     * SG_ENDPOINT_TIMEOUT. */
    int (*dial)(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                struct sg_error *err);
    /* MAY, instead of dial: where a port of it is reached from anywhere, as the provider has it: {url, headers}, a new object the caller
     * owns. Nobody is asked, and nothing is checked. */
    struct json_t *(*public_url)(struct sg_sandbox *sb, uint16_t port);
    /* MUST with public_url. Asks what is there, once: done(NULL) when it answers GET path with 2xx or 3xx. Else SG_ENDPOINT_FAILED,
     * SG_ENDPOINT_NOT_LISTENING, or what calls to the provider fail with. */
    int (*ask_port)(struct sg_sandbox *sb, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done,
                    struct sg_error *err);
    /* MAY: local pools. */
    const struct sg_slot_ops *slots;
    /* MAY, for those without: what its proxies of restricted egress have done. False: it has none. Any thread. */
    bool (*proxies)(struct sg_driver *d, struct sg_egress_figures *ret);
    /* MAY, for those without: what it keeps ready before anybody asks. False: nothing. Any thread. */
    bool (*warm)(struct sg_driver *d, struct sg_warm_figures *ret);
    /* MAY: snapshots that lie at the provider. NULL: they are made of files.tree, by the service. */
    const struct sg_snapshot_ops *snapshots;
    /* MUST. Members of the lease's `metadata` that this sandbox adds (agent_isolation, tree_kill, limits_enforced, slot, ...);
     * a new object the caller owns. */
    struct json_t *(*metadata)(struct sg_sandbox *sb);
    /* MUST. Usable now, from background knowledge only (no probe): 0, or -1 with the reason. */
    int (*health)(struct sg_driver *d, struct sg_error *err);
    /* MAY: where a provider is asked. What is known now; ret is zeroed. */
    void (*report)(struct sg_driver *d, struct sg_provider_report *ret);
    /* MAY: reads its credentials again. -1: it keeps those that it has. */
    int (*reload)(struct sg_driver *d, struct sg_error *err);
    /* MUST. Everything of the driver ends; sandboxes that do not outlive the server are gone when it returns. May block (shutdown only). */
    void (*free)(struct sg_driver *d);
};

struct sg_driver {
    const struct sg_driver_ops *ops;
    struct sg_driver_facts facts;
};

/* ---- wrappers: the only way in ---- */

int sg_driver_check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err);
int sg_driver_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                     const struct sg_sandbox_done *done, struct sg_error *err);
int sg_driver_adopt(struct sg_driver *d, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err);
void sg_driver_settled(struct sg_driver *d);
int sg_driver_health(struct sg_driver *d, struct sg_error *err);
int sg_driver_reload(struct sg_driver *d, struct sg_error *err);
/* False: there is nothing to tell. */
bool sg_driver_report(struct sg_driver *d, struct sg_provider_report *ret);
struct sg_driver *sg_driver_free(struct sg_driver *d);

struct sg_sandbox *sg_sandbox_ref(struct sg_sandbox *sb);
struct sg_sandbox *sg_sandbox_unref(struct sg_sandbox *sb);
void sg_sandbox_on_lost(struct sg_sandbox *sb, void (*lost)(void *, struct sg_sandbox *, const struct sg_error *), void *arg);
void sg_sandbox_terminate(struct sg_sandbox *sb, const struct sg_done *done);
/* Where there is nothing to extend, done comes at once. */
int sg_sandbox_extend(struct sg_sandbox *sb, int64_t left_ms, const struct sg_done *done, struct sg_error *err);
int sg_sandbox_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                    struct sg_exec **ret, struct sg_error *err);
/* The files sub-interface, or NULL with SG_NOT_SUPPORTED. */
const struct sg_file_ops *sg_sandbox_files(struct sg_sandbox *sb, struct sg_error *err);
int sg_sandbox_dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                    struct sg_error *err);
/* NULL: its ports are reached through the server, if at all. */
struct json_t *sg_sandbox_public_url(struct sg_sandbox *sb, uint16_t port);
/* SG_NOT_SUPPORTED where there is no such place. */
int sg_sandbox_ask_port(struct sg_sandbox *sb, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done,
                        struct sg_error *err);
struct json_t *sg_sandbox_metadata(struct sg_sandbox *sb);

/* Are new snapshots of it the provider's to hold? NULL: no. */
const struct sg_snapshot_ops *sg_sandbox_snapshots(const struct sg_sandbox *sb);
int sg_sandbox_snapshot(struct sg_sandbox *sb, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err);
/* Does a sandbox made of what the provider holds still have to be filled, with what sg_sandbox_snapshot_read() gives? */
bool sg_sandbox_snapshot_reads(const struct sg_sandbox *sb);
int sg_sandbox_snapshot_read(struct sg_sandbox *sb, const struct sg_file_source_done *done, struct sg_error *err);
/* SG_NOT_SUPPORTED: the driver has nothing to do with such. */
int sg_driver_snapshot_drop(struct sg_driver *d, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err);
int sg_driver_snapshot_list(struct sg_driver *d, const struct sg_snapshot_listed *done, struct sg_error *err);

#endif
