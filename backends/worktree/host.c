/* The server's end of the keeper. */
#include "backends/worktree/host.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utlist.h>

#include "backends/agent/keeper.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define LOCK_MS 10000
#define END_MS 12000
#define KEEPER_FD 3

/* An agent that has been started and is not gone. */
struct running {
    uint64_t id;
    void (*gone)(void *arg, const struct sg_error *err);
    void *arg;
    struct running *prev, *next;
};

struct sg_host {
    struct sg_host_user user;
    bool set_user; /* the server is root's */
    char *groups;  /* of the user, "1,2,3" */
    char *agent_path;
    int lock_fd;
    struct sg_reactor *reactor;

    pthread_mutex_t lock; /* guards the next six */
    pthread_cond_t changed;
    struct running *running;
    uint64_t last_id;
    pid_t pid; /* of the keeper, 0: there is none */
    int sock;
    bool closing, detached;

    int pidfd;
    struct sg_watch news, death; /* reactor only; both are watched while there is a keeper */
    struct sg_task attach, detach;
};

/* ---- the user ---- */

/* By name, by number, or (NULL) our own. *known: there is an account. 0, or an errno of the look-up. */
static int look_up(const char *name, struct sg_host_user *ret, bool *known)
{
    struct passwd entry, *found = NULL;
    char text[4096];
    int64_t id = geteuid();
    bool by_number = name == NULL || sg_parse_int(name, 0, INT32_MAX, &id);
    int e = by_number ? getpwuid_r((uid_t)id, &entry, text, sizeof text, &found) : getpwnam_r(name, &entry, text, sizeof text, &found);

    *known = found != NULL || by_number;
    *ret = (struct sg_host_user){.uid = (uint32_t)id, .gid = name == NULL ? getegid() : (uint32_t)id};
    if (found != NULL) {
        *ret = (struct sg_host_user){.uid = found->pw_uid, .gid = found->pw_gid};
        (void)snprintf(ret->name, sizeof ret->name, "%s", found->pw_name);
    }
    return found != NULL ? 0 : e;
}

int sg_host_find_user(const char *name, struct sg_host_user *ret, struct sg_error *err)
{
    uid_t self = geteuid();
    bool known;

    if (name == NULL && self == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "worktree.user",
                              "worktree.user is needed when the server runs as root: commands never do");
    int e = look_up(name, ret, &known);
    if (!known)
        return e != 0 ? sg_error_sys(err, SG_UNAVAILABLE, e, "worktree.user: cannot look up %s", name)
                      : sg_error_field(err, SG_INVALID_REQUEST, "worktree.user", "worktree.user: there is no user %s", name);
    if (ret->uid == 0 || ret->gid == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "worktree.user", "worktree.user: commands never run as root or in its group");
    if (self != 0 && ret->uid != self)
        return sg_error_field(err, SG_INVALID_REQUEST, "worktree.user",
                              "worktree.user: only a server that runs as root can run commands as another user (%s)", name);
    return 0;
}

static int find_groups(struct sg_host *h, struct sg_error *err)
{
    gid_t list[SG_KEEPER_GROUPS_MAX];
    int n = SG_KEEPER_GROUPS_MAX;
    struct sg_buf b;

    if (h->user.name[0] == '\0') {
        h->groups = sg_xasprintf("%u", h->user.gid);
        return 0;
    }
    if (getgrouplist(h->user.name, h->user.gid, list, &n) < 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "worktree.user", "worktree.user: %s is in more than %u groups", h->user.name,
                              SG_KEEPER_GROUPS_MAX);
    sg_buf_init(&b, 1024);
    for (int i = 0; i < n; i++) {
        if (list[i] == 0) {
            sg_buf_finish(&b);
            return sg_error_field(err, SG_INVALID_REQUEST, "worktree.user", "worktree.user: %s is in root's group", h->user.name);
        }
        (void)sg_buf_addf(&b, "%s%u", i > 0 ? "," : "", list[i]);
    }
    h->groups = sg_buf_steal(&b, NULL);
    return 0;
}

const struct sg_host_user *sg_host_user(const struct sg_host *h)
{
    return &h->user;
}

/* ---- the keeper ---- */

static int take_lock(const char *path, struct sg_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", path);
    int64_t deadline_ms = sg_now_ms() + LOCK_MS; /* flock() has no deadline of its own, and this is the start */
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || sg_now_ms() >= deadline_ms)) {
            int sys = errno;
            sg_close(fd);
            return sg_error_sys(err, SG_UNAVAILABLE, sys, "commands of a former server still run (lock %s)", path);
        }
        poll(NULL, 0, 20);
    }
    return fd;
}

/* What the keeper is born with: its socket and the lock side by side, nothing else of ours. */
static int spawn_with(struct sg_host *h, int sock, int lock, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char name[] = "sandgate-agent", mode[] = "keeper", fd[8], uid[16], gid[16], empty[] = "";
    char *argv[] = {name, mode, fd, h->set_user ? uid : NULL, gid, h->groups != NULL ? h->groups : empty, NULL}, *envp[] = {NULL};

    (void)snprintf(fd, sizeof fd, "%d", KEEPER_FD);
    (void)snprintf(uid, sizeof uid, "%u", h->user.uid);
    (void)snprintf(gid, sizeof gid, "%u", h->user.gid);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, sock, KEEPER_FD);
    posix_spawn_file_actions_adddup2(&files, lock, KEEPER_FD + 1);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int e = posix_spawn(pid, h->agent_path, &files, &attr, argv, envp);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return e;
}

/* Under the lock. The reactor hears of it from then on. */
static int start_keeper(struct sg_host *h, struct sg_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a socket pair");
    /* Out of the way of the numbers that they get in the keeper. */
    sg_cleanup(sg_close_p) int sock = fcntl(pair[1], F_DUPFD_CLOEXEC, KEEPER_FD + 2);
    sg_cleanup(sg_close_p) int lock = fcntl(h->lock_fd, F_DUPFD_CLOEXEC, KEEPER_FD + 2);
    sg_close(pair[1]);
    pid_t pid = 0;
    int e = sock < 0 || lock < 0 ? errno : spawn_with(h, sock, lock, &pid);
    int pidfd = e == 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (e == 0 && pidfd < 0) {
        e = errno;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    if (e != 0) {
        sg_close(pair[0]);
        return sg_error_sys(err, SG_UNAVAILABLE, e, "cannot start %s", h->agent_path);
    }
    h->pid = pid;
    h->pidfd = pidfd;
    h->sock = pair[0];
    sg_reactor_post(h->reactor, &h->attach);
    return 0;
}

/* Reactor. Takes what the keeper has said; without one, all is over. */
static void tell_gone(struct sg_host *h, uint64_t id, const struct sg_error *err)
{
    struct running *r = NULL;
    pthread_mutex_lock(&h->lock);
    DL_SEARCH_SCALAR(h->running, r, id, id);
    if (r != NULL)
        DL_DELETE(h->running, r);
    pthread_mutex_unlock(&h->lock);
    if (r != NULL)
        r->gone(r->arg, err);
    free(r);
}

static void hear(struct sg_watch *w, uint32_t events)
{
    struct sg_host *h = sg_container_of(w, struct sg_host, news);
    struct sg_keeper_msg m;
    struct sg_error err = {0};
    ssize_t n;

    (void)events;
    while ((n = recv(w->fd, &m, sizeof m, MSG_DONTWAIT)) == (ssize_t)sizeof m && m.magic == SG_KEEPER_MAGIC && m.op == SG_KEEPER_GONE) {
        if (m.status != 0)
            sg_error_sys(&err, SG_UNAVAILABLE, m.status, "the agent could not be started");
        tell_gone(h, m.id, m.status != 0 ? &err : NULL);
        sg_error_clear(&err);
    }
    if (n != -1 || (errno != EAGAIN && errno != EINTR))
        sg_watch_mod(h->reactor, w, 0); /* its process has ended or is about to; that is heard of, too */
}

/* Reactor: the keeper has died, though nobody asked it to. Its agents hear of the end of their connections from those who own them. */
static void keeper_died(struct sg_watch *w, uint32_t events)
{
    struct sg_host *h = sg_container_of(w, struct sg_host, death);
    struct sg_error err = {0};

    (void)events;
    sg_watch_del(h->reactor, &h->news);
    sg_watch_del(h->reactor, &h->death);
    pthread_mutex_lock(&h->lock);
    h->sock = sg_close(h->sock);
    (void)kill(h->pid, SIGKILL);
    (void)waitpid(h->pid, NULL, 0);
    h->pid = 0;
    h->pidfd = sg_close(h->pidfd);
    struct running *all = h->running, *r, *next;
    h->running = NULL;
    pthread_mutex_unlock(&h->lock);
    sg_error_set(&err, SG_SANDBOX_LOST, "the process that looks after commands on this host was killed");
    sg_error_reason(&err, "keeper_died");
    DL_FOREACH_SAFE(all, r, next)
    {
        DL_DELETE(all, r);
        r->gone(r->arg, &err);
        free(r);
    }
    sg_error_clear(&err);
}

static void attach(struct sg_task *t)
{
    struct sg_host *h = sg_container_of(t, struct sg_host, attach);
    struct sg_error err = {0};

    h->news = (struct sg_watch){.ready = hear, .fd = h->sock};
    h->death = (struct sg_watch){.ready = keeper_died, .fd = h->pidfd};
    if (sg_watch_add(h->reactor, &h->news, EPOLLIN, &err) < 0 || sg_watch_add(h->reactor, &h->death, EPOLLIN, &err) < 0)
        keeper_died(&h->death, 0); /* without ears there is no keeper; closing its socket ends it */
    sg_error_clear(&err);
}

/* ---- agents ---- */

static int send_start(struct sg_host *h, uint64_t id, int sock, int root)
{
    struct sg_keeper_msg m = {.magic = SG_KEEPER_MAGIC, .op = SG_KEEPER_START, .id = id};
    struct iovec iov = {.iov_base = &m, .iov_len = sizeof m};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const int fds[2] = {sock, root};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    return sendmsg(h->sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* Under the lock. */
static int start_locked(struct sg_host *h, struct running *r, int sock, int root, struct sg_error *err)
{
    size_t n = 0;
    struct running *at;

    if (h->closing)
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    DL_COUNT(h->running, at, n);
    if (n >= SG_KEEPER_AGENTS_MAX) {
        sg_error_set(err, SG_OVERLOADED, "%zu sandboxes of this kind run already", n);
        return sg_error_retry_after(err, 5);
    }
    if (h->pid == 0 && start_keeper(h, err) < 0)
        return -1;
    r->id = ++h->last_id;
    int e = send_start(h, r->id, sock, root);
    if (e != 0) {
        sg_error_sys(err, SG_UNAVAILABLE, e, "cannot start an agent");
        return sg_error_retry_after(err, 1);
    }
    DL_APPEND(h->running, r);
    return 0;
}

int sg_host_start(struct sg_host *h, int root, void (*gone)(void *arg, const struct sg_error *err), void *arg, int *ret_sock,
                  uint64_t *ret_id, struct sg_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a socket pair");
    struct running *r = sg_xcalloc(1, sizeof *r);
    r->gone = gone;
    r->arg = arg;
    pthread_mutex_lock(&h->lock);
    int rc = start_locked(h, r, pair[1], root, err);
    if (rc == 0)
        *ret_id = r->id;
    pthread_mutex_unlock(&h->lock);
    sg_close(pair[1]);
    if (rc < 0) {
        sg_close(pair[0]);
        free(r);
        return -1;
    }
    *ret_sock = pair[0];
    return 0;
}

void sg_host_kill(struct sg_host *h, uint64_t id)
{
    struct sg_keeper_msg m = {.magic = SG_KEEPER_MAGIC, .op = SG_KEEPER_KILL, .id = id};
    pthread_mutex_lock(&h->lock);
    if (h->sock >= 0) /* not sent: the keeper is dead or stuck; whoever waits has a deadline */
        (void)send(h->sock, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL);
    pthread_mutex_unlock(&h->lock);
}

/* ---- start and end ---- */

static void detach(struct sg_task *t)
{
    struct sg_host *h = sg_container_of(t, struct sg_host, detach);
    sg_watch_del(h->reactor, &h->news);
    sg_watch_del(h->reactor, &h->death);
    pthread_mutex_lock(&h->lock);
    h->detached = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void leave_reactor(struct sg_host *h)
{
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    h->detach.run = detach;
    sg_reactor_post(h->reactor, &h->detach);
    while (!h->detached)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static void end_keeper(struct sg_host *h)
{
    struct pollfd p = {.fd = h->pidfd, .events = POLLIN};
    h->sock = sg_close(h->sock);
    if (h->pid == 0)
        return;
    if (poll(&p, 1, END_MS) != 1)
        (void)kill(h->pid, SIGKILL);
    while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    h->pidfd = sg_close(h->pidfd);
}

struct sg_host *sg_host_free(struct sg_host *h)
{
    struct running *r, *next;
    if (h == NULL)
        return NULL;
    leave_reactor(h);
    end_keeper(h);
    DL_FOREACH_SAFE(h->running, r, next)
    {
        free(r);
    }
    sg_close(h->lock_fd);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    free(h->groups);
    free(h->agent_path);
    free(h);
    return NULL;
}

int sg_host_new(const struct sg_host_config *cfg, struct sg_reactor *reactor, struct sg_host **ret, struct sg_error *err)
{
    struct sg_host *h = sg_xcalloc(1, sizeof *h);
    h->reactor = reactor;
    h->sock = h->pidfd = h->lock_fd = -1;
    h->agent_path = sg_xstrdup(cfg->agent_path);
    h->set_user = geteuid() == 0;
    h->attach.run = attach;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    int rc = sg_host_find_user(cfg->user, &h->user, err);
    if (rc == 0 && h->set_user)
        rc = find_groups(h, err);
    if (rc == 0 && (h->lock_fd = take_lock(cfg->lock_path, err)) < 0)
        rc = -1;
    pthread_mutex_lock(&h->lock);
    if (rc == 0)
        rc = start_keeper(h, err);
    pthread_mutex_unlock(&h->lock);
    if (rc < 0) {
        sg_host_free(h);
        return -1;
    }
    *ret = h;
    return 0;
}
