/* The end of a slot, and of a build that failed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/spawner/slot_priv.h"
#include "base/clock.h"
#include "base/fd.h"

/* ---- answers ---- */

struct sg_wire_answer slot_answer_to(uint32_t op, uint64_t id, const struct sg_error *err)
{
    struct sg_wire_answer a = {.magic = SG_WIRE_MAGIC, .op = op, .id = id};
    if (err != NULL) {
        a.code = err->code;
        a.sys = err->sys;
        snprintf(a.message, sizeof a.message, "%.*s", (int)sizeof a.message - 1, err->message);
    }
    return a;
}

void slot_answer_destroy(struct sg_daemon *d, struct sg_slot *s, const struct sg_error *err)
{
    if (s->destroy_id == 0) {
        return;
    }
    struct sg_wire_answer a = slot_answer_to(SG_WIRE_DESTROYED, s->destroy_id, err);
    s->destroy_id = 0;
    sg_daemon_answer(d, &a, NULL, 0);
}

static void answer_failed_build(struct sg_daemon *d, struct sg_slot *s)
{
    if (!s->build_owed) {
        return;
    }
    s->build_owed = false;
    struct sg_wire_answer a = slot_answer_to(SG_WIRE_BUILT, s->build.id, &s->error);
    sg_daemon_answer(d, &a, NULL, 0);
    sg_error_clear(&s->error);
}

/* ---- the end of a slot ---- */

void slot_close_build_fds(struct sg_slot *s)
{
    s->server_end = sg_close(s->server_end);
    s->info = sg_close(s->info);
    s->errors = sg_close(s->errors);
    s->net_ready = sg_close(s->net_ready);
    s->net_fd = sg_close(s->net_fd);
}

bool slot_is_child_of(pid_t pid, pid_t parent)
{
    char path[64], *text = NULL;
    size_t len;
    int found = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (sg_read_file(path, 4096, &text, &len, NULL) == 0 && text != NULL) {
        const char *behind_name = strrchr(text, ')');
        if (behind_name == NULL || sscanf(behind_name, ") %*c %d", &found) != 1) {
            found = -1;
        }
    }
    free(text);
    return found == (int)parent;
}

/* A bwrap or a wiper, or the agent of a slot whose bwrap is gone. */
static bool is_known(const struct sg_daemon *d, pid_t pid)
{
    for (uint32_t n = 0; n < SG_SPAWNER_SLOTS_MAX; n++) {
        const struct sg_slot *s = d->slots[n];
        if (s != NULL && (s->monitor == pid || s->wiper == pid || s->net == pid || (s->pidfd >= 0 && s->agent == pid))) {
            return true;
        }
    }
    return false;
}

/* When bwrap dies before it has said what its child is, that child is ours now, and waits for bwrap for ever.
 * Kills such children; how many there still are. */
static unsigned kill_orphans(const struct sg_daemon *d)
{
    unsigned n = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e = proc != NULL ? readdir(proc) : NULL; e != NULL; e = readdir(proc)) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid > 1 && slot_is_child_of(pid, getpid()) && !is_known(d, pid)) {
            kill(pid, SIGKILL);
            n++;
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
    return n;
}

/* True when no process of the slot is left; else something is being watched that will tell. */
static bool is_dead(struct sg_daemon *d, struct sg_slot *s)
{
    char text[256];
    if (s->monitor != 0 || s->net != 0 || (s->pidfd >= 0 && !s->agent_dead)) {
        return false;
    }
    if (s->pidfd < 0 && kill_orphans(d) > 0) {
        return false;
    }
    if (s->groups.slot < 0) {
        return true;
    }
    if (s->empty < 0) {
        s->empty = openat(s->groups.slot, "cgroup.events", O_RDONLY | O_CLOEXEC);
        sg_daemon_watch(d, s->empty, EPOLLPRI, SG_EV_EMPTY, s->n);
    }
    ssize_t len = pread(s->empty, text, sizeof text - 1, 0);
    text[len > 0 ? len : 0] = '\0';
    return strstr(text, "populated 1") == NULL;
}

static void dir_name(const struct sg_slot *s, char name[32])
{
    snprintf(name, 32, "%u", s->n);
}

/* The tree is the sandbox's work and may be of any size, so a child removes it. */
static void start_wiper(struct sg_daemon *d, struct sg_slot *s)
{
    char name[32];
    dir_name(s, name);
    s->wiper = sg_groups_fork(&d->args->groups, -1);
    if (s->wiper == 0) {
        _exit(sg_remove_tree(d->slots_dir, name, NULL) < 0 ? 1 : 0);
    }
    if (s->wiper < 0) {
        s->wiper = 0; /* tried again when the deadline passes or by the next DESTROY */
    }
}

/* Goes on with ENDING as far as possible now. */
void slot_advance_end(struct sg_daemon *d, struct sg_slot *s)
{
    if (s->state != ENDING || s->wiper != 0 || !is_dead(d, s)) {
        return;
    }
    if (s->has_dir) {
        start_wiper(d, s);
        return;
    }
    s->empty = sg_close(s->empty);
    s->pidfd = sg_close(s->pidfd);
    s->net_errors = sg_close(s->net_errors);
    s->state = EMPTY;
    answer_failed_build(d, s);
    slot_answer_destroy(d, s, NULL);
}

void slot_begin_end(struct sg_daemon *d, struct sg_slot *s)
{
    slot_close_build_fds(s);
    s->state = ENDING;
    s->deadline_ms = sg_now_ms() + SG_SLOT_END_MS;
    if (s->net != 0) {
        kill(s->net, SIGKILL);
    }
    if (s->pidfd >= 0) {
        /* The kernel takes all of the namespace along; bwrap reaps its child and ends by itself. */
        (void)syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
        sg_daemon_watch(d, s->pidfd, EPOLLIN, SG_EV_PIDFD, s->n);
    } else if (s->monitor != 0) {
        kill(s->monitor, SIGKILL);
    }
    slot_advance_end(d, s);
}

void slot_read_errors(struct sg_slot *s, int fd)
{
    while (fd >= 0 && s->error_len < sizeof s->error_text - 1) {
        ssize_t n = read(fd, s->error_text + s->error_len, sizeof s->error_text - 1 - s->error_len);
        if (n <= 0) {
            break;
        }
        s->error_len += (size_t)n;
    }
    for (size_t i = 0; i < s->error_len; i++) {
        if (s->error_text[i] < ' ' || s->error_text[i] > '~') {
            s->error_text[i] = ' ';
        }
    }
    s->error_text[s->error_len] = '\0';
}

void slot_fail(struct sg_daemon *d, struct sg_slot *s, const char *why)
{
    slot_read_errors(s, s->errors);
    sg_error_clear(&s->error);
    sg_error_set(&s->error, SG_UNAVAILABLE, "slot %u: %s%s%s", s->n, why, s->error_len > 0 ? ": " : "",
                 s->error_text);
    slot_begin_end(d, s);
}

void slot_wiper_ended(struct sg_daemon *d, struct sg_slot *s)
{
    char name[32];
    dir_name(s, name);
    s->wiper = 0;
    s->has_dir = faccessat(d->slots_dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (!s->has_dir) {
        slot_advance_end(d, s);
    }
}

void slot_give_up(struct sg_daemon *d, struct sg_slot *s)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_INTERNAL, "slot %u: something of it does not go away", s->n);
    if (s->monitor != 0) {
        kill(s->monitor, SIGKILL);
    }
    s->deadline_ms = INT64_MAX; /* it may still end; until then the slot cannot be built */
    answer_failed_build(d, s);
    slot_answer_destroy(d, s, &err);
}
