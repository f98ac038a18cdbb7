#include "box.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

#define AGENT_UID 265000U /* any host uids that nobody has */
#define COMMAND_UID 265001U
#define GROUPS "/sys/fs/cgroup/unified"

/* ---- waiting ---- */

void box_set(struct box *b, bool *flag)
{
    pthread_mutex_lock(&b->lock);
    *flag = true;
    pthread_cond_broadcast(&b->news);
    pthread_mutex_unlock(&b->lock);
}

static void deadline(struct timespec *t, int seconds)
{
    clock_gettime(CLOCK_REALTIME, t);
    t->tv_sec += seconds;
}

void box_wait(struct box *b, const bool *flag)
{
    struct timespec t;
    deadline(&t, 20);
    pthread_mutex_lock(&b->lock);
    int e = 0;
    while (!*flag && e == 0)
        e = pthread_cond_timedwait(&b->news, &b->lock, &t);
    bool ok = *flag;
    pthread_mutex_unlock(&b->lock);
    cr_assert(ok, "waited in vain");
}

static void on_ready(void *arg, const struct sg_agent_facts *f)
{
    struct box *b = arg;
    b->facts = *f;
    box_set(b, &b->ready);
}

static void on_lost(void *arg, const struct sg_error *why)
{
    struct box *b = arg;
    sg_error_copy(&b->why, why);
    box_set(b, &b->lost);
}

static void on_closed(void *arg)
{
    struct box *b = arg;
    box_set(b, &b->closed);
}

/* ---- the sandbox ---- */

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool box_can(enum sg_agent_isolation isolation, enum box_tree tree)
{
    if (isolation == SG_AGENT_UID && geteuid() != 0)
        return false;
    return tree == BOX_HELPER || access(GROUPS "/cgroup.procs", W_OK) == 0;
}

/* In the child of a process with threads: system calls only, until exec. */
static void become_mapped(int to_parent, int from_parent)
{
    char c = 0;
    if (setgroups(0, NULL) < 0 || setresgid(AGENT_UID, AGENT_UID, AGENT_UID) < 0 ||
        setresuid(AGENT_UID, AGENT_UID, AGENT_UID) < 0 || unshare(CLONE_NEWUSER) < 0)
        _exit(101);
    if (write(to_parent, "x", 1) != 1 || read(from_parent, &c, 1) != 1 || c != 'x')
        _exit(102);
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        _exit(103);
}

static void map_child(pid_t pid, int from_child, int to_child)
{
    char path[64], map[96], c;
    cr_assert_eq(read(from_child, &c, 1), 1);
    snprintf(map, sizeof map, "0 %u 1\n1000 %u 1\n", AGENT_UID, COMMAND_UID);
    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    cr_assert(write_text(path, map));
    snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
    cr_assert(write_text(path, map));
    cr_assert_eq(write(to_child, "x", 1), 1);
}

static int passwd_file(void)
{
    static const char text[] = "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/sh\n";
    int fd = memfd_create("passwd", 0);
    cr_assert(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1 && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static pid_t start_bwrap(enum sg_agent_isolation isolation, int sock)
{
    char sock_text[16], passwd_text[16], disk[24];
    int passwd = passwd_file();
    bool uid = isolation == SG_AGENT_UID;
    snprintf(sock_text, sizeof sock_text, "%d", sock);
    snprintf(passwd_text, sizeof passwd_text, "%d", passwd);
    snprintf(disk, sizeof disk, "%ld", BOX_DISK);
    const char *common[] = {
        "bwrap",       "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",  "--as-pid-1",
        "--ro-bind",   "/usr",          "/usr",          "--symlink",     "usr/bin",        "/bin",
        "--symlink",   "usr/lib",       "/lib",          "--symlink",     "usr/lib64",      "/lib64",
        "--proc",      "/proc",         "--dev",         "/dev",          "--perms",        "1777",
        "--tmpfs",     "/tmp",          "--perms",       "0777",          "--size",         disk,
        "--tmpfs",     "/workspace",    "--perms",       "0444",          "--ro-bind-data", passwd_text,
        "/etc/passwd", "--ro-bind",     SG_AGENT_BINARY, "/agent",        "--chdir",        "/"};
    const char *as_uid[] = {"--cap-drop", "ALL",       "--cap-add", "CAP_SETUID", "--cap-add",
                            "CAP_SETGID", "--cap-add", "CAP_KILL",  "/agent",     "slot",
                            sock_text,    "uid",       NULL};
    const char *as_one[] = {"--unshare-user", "--uid", "1000",    "--gid",    "1000",
                            "/agent",         "slot",  sock_text, "dumpable", NULL};
    const char *argv[64];
    memcpy(argv, common, sizeof common);
    memcpy(argv + SG_COUNT_OF(common), uid ? as_uid : as_one, uid ? sizeof as_uid : sizeof as_one);
    int up[2], down[2];
    cr_assert(pipe2(up, O_CLOEXEC) == 0 && pipe2(down, O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        fcntl(sock, F_SETFD, 0);
        if (uid)
            become_mapped(up[1], down[0]);
        execvp("bwrap", (char *const *)(uintptr_t)argv);
        _exit(104);
    }
    cr_assert(pid > 0);
    close(passwd);
    if (uid)
        map_child(pid, up[0], down[1]);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
    return pid;
}

static void init(struct box *b, enum box_tree tree)
{
    *b = (struct box){.tree = tree};
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->news, NULL);
    cr_assert_eq(sg_reactor_new(&b->reactor, NULL), 0);
    cr_assert_eq(sg_workq_new(2, 256, &b->workq, NULL), 0);
    b->hold = sg_hold_new(on_closed, b);
}

static int connect_client(struct box *b, enum sg_agent_isolation isolation, int64_t tree_ms)
{
    int pair[2];
    struct sg_error err = {0};
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct sg_agent_options o = {
        .reactor = b->reactor, .workq = b->workq, .isolation = isolation, .hold = b->hold, .tree_ms = tree_ms};
    o.ready = on_ready;
    o.lost = on_lost;
    o.arg = b;
    cr_assert_eq(sg_agent_new(pair[0], &o, &b->agent, &err), 0, "%s", err.message);
    return pair[1];
}

/* Whoever may write to cgroup.procs may move processes; in a sandbox with one uid that is the test's own. */
static void give_to_agent(const struct box *b, const char *path)
{
    if (b->isolation == SG_AGENT_UID)
        cr_assert_eq(chown(path, AGENT_UID, (gid_t)-1), 0);
}

void box_start(struct box *b, enum sg_agent_isolation isolation, enum box_tree tree)
{
    init(b, tree);
    b->isolation = isolation;
    int sock = connect_client(b, isolation, 0);
    b->pid = start_bwrap(isolation, sock);
    close(sock);
    box_wait(b, &b->ready);
    if (tree == BOX_CGROUP) {
        snprintf(b->group, sizeof b->group, GROUPS "/sg-agent-test-%d-%d", (int)getpid(), (int)b->pid);
        cr_assert_eq(mkdir(b->group, 0755), 0);
        char procs[192];
        snprintf(procs, sizeof procs, "%s/cgroup.procs", b->group);
        give_to_agent(b, procs);
        /* To leave the group it is in, the agent must be allowed to write to the common one. */
        char here[192];
        snprintf(here, sizeof here, "%s/agent", b->group);
        cr_assert_eq(mkdir(here, 0755), 0);
        snprintf(procs, sizeof procs, "%s/agent/cgroup.procs", b->group);
        char pid[16];
        char children[64];
        snprintf(children, sizeof children, "/proc/%d/task/%d/children", (int)b->pid, (int)b->pid);
        FILE *f = fopen(children, "re");
        int child = 0;
        cr_assert(f != NULL && fscanf(f, "%d", &child) == 1);
        fclose(f);
        snprintf(pid, sizeof pid, "%d", child);
        cr_assert(write_text(procs, pid));
    }
}

int box_fake(struct box *b, enum sg_agent_isolation isolation, int64_t tree_ms)
{
    init(b, BOX_HELPER);
    return connect_client(b, isolation, tree_ms);
}

void box_fake_hello(int sock, enum sg_agent_isolation isolation)
{
    unsigned char buf[256];
    struct sg_agent_msg m = {.type = SG_AGENT_HELLO};
    m.u.hello.pid = 1;
    m.u.hello.isolation = isolation;
    m.u.hello.command_uid = 1000;
    m.u.hello.uid = isolation == SG_AGENT_UID ? 0 : 1000;
    m.u.hello.flags = SG_AGENT_HELLO_NO_NEW_PRIVS | SG_AGENT_HELLO_NOT_DUMPABLE;
    size_t n = sg_agent_encode(&m, buf, sizeof buf);
    cr_assert_eq(send(sock, buf, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void remove_groups(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d))
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    if (d != NULL)
        closedir(d);
    cr_expect_eq(rmdir(path), 0, "%s is left", path);
}

void box_stop(struct box *b)
{
    sg_agent_close(b->agent);
    b->agent = sg_agent_unref(b->agent);
    b->hold = sg_hold_unref(b->hold);
    box_wait(b, &b->closed);
    if (b->pid > 0)
        cr_assert_eq(waitpid(b->pid, NULL, 0), b->pid);
    sg_workq_free(b->workq);
    sg_reactor_free(b->reactor);
    if (b->group[0] != '\0')
        remove_groups(b->group);
    sg_error_clear(&b->why);
}

unsigned open_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

/* ---- commands ---- */

static void on_started(void *arg)
{
    struct run *r = arg;
    box_set(r->box, &r->started);
}

static void on_failed(void *arg, const struct sg_error *err)
{
    struct run *r = arg;
    sg_error_copy(&r->error, err);
    r->failed = true;
    box_set(r->box, &r->ended);
}

static void on_exited(void *arg, const struct sg_exit *exit)
{
    struct run *r = arg;
    r->exit = *exit;
    r->freed_first = r->freed; /* set on this thread */
    box_set(r->box, &r->ended);
}

static void group_kill(void *arg)
{
    struct run *r = arg;
    char path[256];
    snprintf(path, sizeof path, "%s/cgroup.kill", r->group);
    cr_assert(write_text(path, "1"));
}

static bool group_empty(void *arg)
{
    const struct run *r = arg;
    char path[256], text[256] = "";
    snprintf(path, sizeof path, "%s/cgroup.events", r->group);
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    return strstr(text, "populated 0") != NULL;
}

static void group_free(void *arg)
{
    struct run *r = arg;
    box_set(r->box, &r->freed);
}

static void make_group(struct run *r)
{
    static unsigned counter;
    char path[256];
    snprintf(r->group, sizeof r->group, "%s/%u", r->box->group,
             __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED));
    cr_assert_eq(mkdir(r->group, 0755), 0);
    snprintf(path, sizeof path, "%s/cgroup.procs", r->group);
    give_to_agent(r->box, path);
    r->tree.kill = group_kill;
    r->tree.empty = group_empty;
    r->tree.free = group_free;
    r->tree.arg = r;
    r->tree.group_dir = open(r->group, O_PATH | O_DIRECTORY | O_CLOEXEC);
    r->tree.group_procs = open(path, O_WRONLY | O_CLOEXEC);
    cr_assert(r->tree.group_dir >= 0 && r->tree.group_procs >= 0);
}

static void fill_env(struct sg_env *env, const struct run_args *a)
{
    cr_assert_eq(sg_env_set(env, "PATH", a->path != NULL ? a->path : "/usr/bin:/bin", NULL), 0);
    cr_assert_eq(sg_env_set(env, "HOME", "/workspace", NULL), 0);
    if (a->big_env != NULL)
        cr_assert_eq(sg_env_set(env, "BIG", a->big_env, NULL), 0);
}

static void feed(struct run *r, const struct run_args *a)
{
    size_t at = 0;
    while (at < a->input_len) {
        ssize_t n = sg_pipe_write(r->x->in, (const char *)a->input + at, a->input_len - at);
        if (n == -EPIPE)
            break;
        at += (size_t)n;
        if (n == 0) {
            struct timespec t = {.tv_nsec = 200000};
            nanosleep(&t, NULL);
        }
    }
    sg_pipe_close(r->x->in);
}

int run_start(struct run *r, struct box *b, const struct run_args *a)
{
    const char *sh[] = {"/bin/sh", "-c", a->shell, NULL};
    struct sg_env env = {0};
    struct sg_error err = {0};
    *r = (struct run){.box = b};
    fill_env(&env, a);
    if (b->tree == BOX_CGROUP)
        make_group(r);
    struct sg_exec_spec spec = {
        .argv = a->shell != NULL ? sh : a->argv,
        .cwd = a->cwd,
        .env = &env,
        .stdin_open = a->stdin_open || a->input != NULL,
        .tty = a->tty,
        .timeout_ms = a->timeout_ms > 0 ? a->timeout_ms : 15000,
        .pipe_bytes = a->pipe_bytes > 0 ? a->pipe_bytes : 65536,
    };
    struct sg_exec_sink sink = {.started = on_started, .failed = on_failed, .exited = on_exited, .arg = r};
    int rc =
        sg_agent_exec_start(b->agent, &spec, b->tree == BOX_CGROUP ? &r->tree : NULL, &sink, &r->x, &err);
    if (b->tree == BOX_CGROUP) {
        close(r->tree.group_dir);
        close(r->tree.group_procs);
    }
    sg_env_finish(&env);
    if (rc < 0) {
        enum sg_code code = err.code;
        sg_error_clear(&err);
        return (int)code;
    }
    if (a->input != NULL)
        feed(r, a);
    return 0;
}

static void wake_box(void *arg)
{
    struct box *b = arg;
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->news);
    pthread_mutex_unlock(&b->lock);
}

/* Takes what is there; true at the end of the pipe. */
static bool drain(struct sg_pipe *p, struct sg_buf *b)
{
    char buf[65536];
    for (;;) {
        ssize_t n = sg_pipe_read(p, buf, sizeof buf);
        if (n == -EAGAIN)
            return false;
        if (n <= 0)
            return true;
        (void)sg_buf_add_some(b, buf, (size_t)n);
    }
}

void run_wait(struct run *r)
{
    struct sg_buf out, err;
    struct timespec t;
    struct sg_waker w = {.wake = wake_box, .arg = r->box};
    sg_buf_init(&out, 64 << 20);
    sg_buf_init(&err, 64 << 20);
    deadline(&t, 30);
    sg_pipe_set_reader(r->x->out, &w);
    sg_pipe_set_reader(r->x->err, &w);
    bool o = false, e = false;
    int rc = 0;
    pthread_mutex_lock(&r->box->lock);
    while (rc == 0 && !(o && e && r->ended)) {
        pthread_mutex_unlock(&r->box->lock);
        o = o || drain(r->x->out, &out);
        e = e || drain(r->x->err, &err);
        pthread_mutex_lock(&r->box->lock);
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        if (soon.tv_sec > t.tv_sec)
            rc = ETIMEDOUT;
        soon.tv_nsec += 20000000; /* a wake-up between drain and wait is not lost for long */
        if (soon.tv_nsec >= 1000000000) {
            soon.tv_sec++;
            soon.tv_nsec -= 1000000000;
        }
        if (!(o && e && r->ended))
            pthread_cond_timedwait(&r->box->news, &r->box->lock, &soon);
    }
    pthread_mutex_unlock(&r->box->lock);
    cr_assert_eq(rc, 0, "the command did not end");
    sg_pipe_set_reader(r->x->out, NULL);
    sg_pipe_set_reader(r->x->err, NULL);
    r->out = sg_buf_steal(&out, &r->out_len);
    r->err = sg_buf_steal(&err, &r->err_len);
    r->out = r->out != NULL ? r->out : sg_xstrdup("");
    r->err = r->err != NULL ? r->err : sg_xstrdup("");
}

void run_finish(struct run *r)
{
    r->x->ops->release(r->x);
    if (r->box->tree == BOX_CGROUP) {
        box_wait(r->box, &r->freed);
        rmdir(r->group); /* fails while background children live: the box's end takes it */
    }
    free(r->out);
    free(r->err);
    sg_error_clear(&r->error);
}

void run_shell(struct run *r, struct box *b, const char *text)
{
    struct run_args a = {.shell = text};
    int code = run_start(r, b, &a);
    cr_assert_eq(code, 0, "cannot start: %s", sg_code_name((enum sg_code)code));
    run_wait(r);
    cr_assert(!r->failed, "%s", r->error.message);
}

char *box_sh(struct box *b, const char *text)
{
    struct run r;
    run_shell(&r, b, text);
    cr_assert(r.exit.signal == 0 && r.exit.returncode == 0, "%s: %d/%d %s", text, r.exit.returncode,
              r.exit.signal, r.err);
    char *out = sg_steal(&r.out);
    run_finish(&r);
    return out;
}

/* ---- files ---- */

static void result(struct file_result *r, const struct sg_error *err)
{
    if (err != NULL)
        sg_error_copy(&r->error, err);
    box_set(r->box, &r->done);
}

static void got_plain(void *arg, const struct sg_error *err)
{
    result(arg, err);
}

static void got_stat(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct file_result *r = arg;
    if (st != NULL)
        r->stat = *st;
    result(r, err);
}

static void got_source(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct file_result *r = arg;
    if (src != NULL) {
        r->source = *src;
        r->stat = src->stat;
    }
    result(r, err);
}

static void got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct file_result *r = arg;
    r->sink = sink;
    result(r, err);
}

static void got_commit(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    struct file_result *r = arg;
    r->created = created;
    got_stat(arg, st, err);
}

static void got_list(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct file_result *r = arg;
    if (list != NULL)
        r->list = *list;
    result(r, err);
}

static void got_fd(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct file_result *r = arg;
    r->fd = fd;
    sg_hold_unref(hold); /* the test closes it before the box ends */
    result(r, err);
}

static void begin(struct box *b, struct file_result *r)
{
    *r = (struct file_result){.box = b, .fd = -1, .source.fd = -1};
}

static enum sg_code finish(struct box *b, struct file_result *r, int rc)
{
    if (rc == 0)
        box_wait(b, &r->done);
    enum sg_code code = r->error.code;
    sg_error_clear(&r->error);
    return code;
}

enum sg_code box_put_open(struct box *b, const struct sg_file_put_args *a, struct file_result *r)
{
    begin(b, r);
    struct sg_file_sink_done done = {.fn = got_sink, .arg = r};
    return finish(b, r, sg_agent_put(b->agent, a, &done, &r->error));
}

void box_commit_start(struct file_result *r)
{
    r->done = false;
    r->sink->ops->commit(r->sink, got_commit, r);
}

enum sg_code box_commit(struct box *b, struct file_result *r)
{
    box_commit_start(r);
    return finish(b, r, 0);
}

enum sg_code box_put(struct box *b, const char *path, const void *data, size_t len, bool append,
                     struct file_result *r)
{
    struct file_result own;
    r = r != NULL ? r : &own;
    struct sg_file_put_args a = {.path = path, .append = append, .size_hint = -1};
    struct sg_error err = {0};
    enum sg_code code = box_put_open(b, &a, r);
    if (code != SG_OK)
        return code;
    if (r->sink->ops->write(r->sink, data, len, &err) < 0) {
        code = err.code;
        sg_error_clear(&err);
        r->sink->ops->abort(r->sink);
        return code;
    }
    return box_commit(b, r);
}

enum sg_code box_get(struct box *b, const char *path, struct file_result *r)
{
    begin(b, r);
    struct sg_file_source_done done = {.fn = got_source, .arg = r};
    return finish(b, r, sg_agent_get(b->agent, path, &done, &r->error));
}

char *box_read(struct box *b, const char *path, size_t *len)
{
    struct file_result r;
    if (box_get(b, path, &r) != SG_OK)
        return NULL;
    char *data = malloc(r.stat.size + 1);
    ssize_t n = pread(r.source.fd, data, r.stat.size, 0);
    cr_assert_eq(n, (ssize_t)r.stat.size);
    data[n] = '\0';
    if (len != NULL)
        *len = (size_t)n;
    close(r.source.fd);
    sg_hold_unref(r.source.hold);
    return data;
}

enum sg_code box_stat(struct box *b, const char *path, struct file_result *r)
{
    begin(b, r);
    struct sg_file_stat_done done = {.fn = got_stat, .arg = r};
    return finish(b, r, sg_agent_stat(b->agent, path, &done, &r->error));
}

enum sg_code box_list(struct box *b, const char *path, bool recursive, size_t max, struct file_result *r)
{
    begin(b, r);
    struct sg_file_list_done done = {.fn = got_list, .arg = r};
    const struct sg_file_list_args args = {.path = path, .recursive = recursive, .max = max};
    return finish(b, r, sg_agent_list(b->agent, &args, &done, &r->error));
}

enum sg_code box_mkdir(struct box *b, const char *path, uint32_t mode)
{
    struct file_result r;
    begin(b, &r);
    struct sg_file_stat_done done = {.fn = got_stat, .arg = &r};
    return finish(b, &r, sg_agent_mkdir(b->agent, path, mode, &done, &r.error));
}

enum sg_code box_remove(struct box *b, const char *path, bool recursive)
{
    struct file_result r;
    begin(b, &r);
    struct sg_done done = {.fn = got_plain, .arg = &r};
    return finish(b, &r, sg_agent_remove(b->agent, path, recursive, NULL, &done, &r.error));
}

enum sg_code box_move(struct box *b, const char *from, const char *to)
{
    struct file_result r;
    begin(b, &r);
    struct sg_done done = {.fn = got_plain, .arg = &r};
    return finish(b, &r, sg_agent_move(b->agent, from, to, &done, &r.error));
}

enum sg_code box_dial(struct box *b, uint16_t port, int64_t ms, struct file_result *r)
{
    begin(b, r);
    struct sg_dial_done done = {.fn = got_fd, .arg = r};
    return finish(b, r, sg_agent_dial(b->agent, port, sg_now_ms() + ms, &done, &r->error));
}
