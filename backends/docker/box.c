/* A container's own things here: its record, the directory of its socket, the connection to its agent. */
#include "backends/docker/docker_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"

struct box *box_new(struct docker *d, const char *name)
{
    struct box *b = sg_xcalloc(1, sizeof *b);
    sg_agent_sandbox_init(&b->base, &d->base);
    b->base.sb.refs = 1;
    (void)snprintf(b->base.sb.id, sizeof b->base.sb.id, "%s", name);
    b->base.sb.env = &b->env;
    b->d = docker_ref(d);
    b->wd = b->oom_fd = -1;
    return b;
}

void box_become(struct box *b, enum box_state state)
{
    if (b->state == BOX_WARM) {
        (void)atomic_fetch_sub(&b->d->warm, 1);
    }
    if (state == BOX_WARM) {
        (void)atomic_fetch_add(&b->d->warm, 1);
    }
    b->state = state;
}

void box_look(struct box *b, reply_fn *fn)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/json", b->base.sb.id);
    engine_ask(b->d, &(struct ask){.method = "GET", .path = path, .ms = LOOK_MS, .idempotent = true, .fn = fn, .arg = box_ref(b)});
}

struct box *box_ref(struct box *b)
{
    (void)sg_sandbox_ref(&b->base.sb);
    return b;
}

void box_unref(struct box *b)
{
    (void)sg_sandbox_unref(&b->base.sb);
}

/* Any thread: it is in no list and nothing of it is under way. */
void docker_sandbox_free(struct sg_sandbox *sb)
{
    struct box *b = (struct box *)sb;
    struct docker *d = b->d;
    if (b->shell != NULL) {
        box_unref(b->shell);
    }
    sg_agent_sandbox_finish(&b->base);
    sg_env_finish(&b->env);
    sg_env_finish(&b->service_env);
    free(b->cwd);
    sg_error_clear(&b->why);
    sg_cancel_unref(b->cancel);
    (void)sg_close(b->oom_fd);
    free(b->image);
    free(b->snapshot);
    free(b);
    docker_unref(d);
}

void box_list(struct box *b)
{
    b->listed = true;
    (void)box_ref(b);
    DL_APPEND(b->d->boxes, b);
}

void box_unlist(struct box *b)
{
    if (b->listed) {
        b->listed = false;
        DL_DELETE(b->d->boxes, b);
        docker_unlisted(b->d);
        box_unref(b);
    }
}

/* ---- the directory ---- */

int box_make_dir(struct box *b, struct sg_error *err)
{
    if (mkdirat(b->d->run_fd, b->run, 0700) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the directory of a container's socket");
    }
    return 0;
}

int box_watch_dir(struct box *b, struct sg_error *err)
{
    char path[64 + SG_ID_MAX];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", b->d->run_fd, b->run);
    b->wd = inotify_add_watch(b->d->inotify, path, IN_MOVED_TO | IN_ONLYDIR);
    if (b->wd < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot watch the directory of a container's socket");
    }
    return 0;
}

static void remove_dir(struct docker *d, const char *name)
{
    int fd = openat(d->run_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) { /* nobody but the agent could put anything else there; then it stays */
        (void)unlinkat(fd, SG_AGENT_SOCKET_NAME, 0);
        (void)unlinkat(fd, ".new", 0);
        (void)sg_close(fd);
        (void)unlinkat(d->run_fd, name, AT_REMOVEDIR);
    }
}

void box_remove_dir(struct box *b)
{
    if (b->wd >= 0) {
        (void)inotify_rm_watch(b->d->inotify, b->wd);
        b->wd = -1;
    }
    if (b->run[0] != '\0' && !b->far) {
        remove_dir(b->d, b->run);
    }
}

bool docker_has_run(const struct docker *d, const char *run)
{
    struct box *b;
    DL_FOREACH(d->boxes, b)
    {
        if (sg_streq(b->run, run)) {
            return true;
        }
    }
    return false;
}

static bool any_unknown(struct docker *d)
{
    struct box *b;
    DL_FOREACH(d->boxes, b)
    {
        if (b->run[0] == '\0' && b->state == BOX_MAKING) {
            return true;
        }
    }
    return false;
}

/* Of containers that are no more. Not while one is being looked for whose directory is not known yet. */
int docker_sweep_dirs(struct docker *d)
{
    if (any_unknown(d)) {
        return 0;
    }
    int fd = openat(d->run_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        (void)sg_close(fd);
        return -errno;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] != '.' && !docker_has_run(d, e->d_name)) {
            remove_dir(d, e->d_name);
        }
    }
    (void)closedir(dir);
    return 0;
}

void docker_news(struct sg_watch *w, uint32_t events)
{
    struct docker *d = sg_container_of(w, struct docker, news);
    char buf[4096] __attribute__((aligned(8)));
    (void)events;
    ssize_t n = read(w->fd, buf, sizeof buf);
    for (ssize_t at = 0; at < n;) {
        struct inotify_event e;
        memcpy(&e, buf + at, sizeof e);
        at += (ssize_t)(sizeof e + e.len);
        struct box *b, *next;
        DL_FOREACH_SAFE(d->boxes, b, next)
        {
            if (b->wd == e.wd && (e.mask & IN_MOVED_TO) != 0) {
                make_named(b);
                break;
            }
        }
    }
}

/* ---- the connection ---- */

/* Who listens is known since listen(). It must be the container's first process, as the engine says; where its numbers are not ours
 * (this server is in a container, too), at least nobody that we can see, and not the user of commands. */
static int check_listener(const struct box *b, int fd, struct sg_error *err)
{
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;
    bool right = known && peer.uid != b->d->cfg.uid && (peer.pid == b->pid || peer.pid == 0);
    if (right) {
        return 0;
    }
    sg_error_set(err, SG_PROVIDER_FAILED, "process %d listens for the agent of container %s, which is %d as the engine says", (int)peer.pid,
                 b->base.sb.id, (int)b->pid);
    return sg_error_reason(err, "agent_impostor");
}

static int dial_agent(const struct box *b, struct sg_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int dir = openat(b->d->run_fd, b->run, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) {
        return sg_error_sys(err, SG_SANDBOX_LOST, errno, "the directory of the agent's socket is gone");
    }
    (void)snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/%s", dir, SG_AGENT_SOCKET_NAME);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)&at, sizeof at);
    int e = errno;
    (void)sg_close(dir);
    if (rc < 0) {
        (void)sg_close(fd);
        return sg_error_sys(err, SG_SANDBOX_LOST, e, "the agent of container %s cannot be reached", b->base.sb.id);
    }
    if (check_listener(b, fd, err) < 0) {
        (void)sg_close(fd);
        return -1;
    }
    return fd;
}

static void agent_ready(void *arg, const struct sg_agent_facts *facts)
{
    struct box *b = arg;
    (void)facts;
    if (b->again) {
        again_ready(b);
    } else {
        make_ready(b);
    }
}

/* Before it was ready: to whoever asked for it nothing has happened. */
static void never_ready(struct box *b, const struct sg_error *why)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_PROVIDER_FAILED, "the agent of a container could not be reached: %s", why->message);
    sg_error_reason(&err, why->reason);
    sg_error_member(&err, "provider", json_string("docker"));
    make_failed(b, &err);
    sg_error_clear(&err);
}

static void agent_lost(void *arg, const struct sg_error *why)
{
    struct box *b = arg;
    b = b->became != NULL ? b->became : b;
    if (b->again) {
        again_failed(b, NULL, why);
    } else if (b->far && b->state == BOX_MAKING) {
        never_ready(b, why);
    } else if (b->greeting != NULL || (b->state == BOX_MAKING && b->serving)) {
        make_failed(b, why);
    } else if (!again_begin(b, why)) {
        box_lost(b, why);
    }
}

struct sg_agent_options box_agent_options(struct box *b)
{
    return (struct sg_agent_options){.reactor = b->d->parts.reactor,
                                     .workq = b->d->parts.workq,
                                     .isolation = SG_AGENT_UID,
                                     .ready = agent_ready,
                                     .lost = agent_lost,
                                     .arg = b};
}

int box_connect(struct box *b, struct sg_error *err)
{
    int fd = dial_agent(b, err);
    if (fd < 0) {
        return -1;
    }
    const struct sg_agent_options o = box_agent_options(b);
    return sg_agent_new(fd, &o, &b->greeting, err);
}
