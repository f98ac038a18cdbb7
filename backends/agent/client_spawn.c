/* The request that starts a command: its strings, its pipes, its groups. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"

#define INLINE_STRINGS 8192U

/* A pipe whose server side does not block; the command's side is an ordinary one. */
static int make_pipe(int *server, int *command, bool command_reads)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    *server = p[command_reads ? 1 : 0];
    *command = p[command_reads ? 0 : 1];
    return fcntl(*server, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

/* The descriptors of one request; those from `own` to `own_end` are closed after it. */
struct parcel {
    int fds[SG_AGENT_FDS_MAX];
    unsigned n, own_end;
};

static void parcel_finish(struct parcel *p)
{
    for (unsigned i = 0; i < p->own_end; i++)
        sg_close(p->fds[i]);
}

static void add_string(struct sg_buf *b, const char *s, bool *bad)
{
    if (sg_buf_add(b, s, strlen(s) + 1) < 0)
        *bad = true;
}

/* cwd, argv and env as the wire wants them. */
static int gather(struct sg_agent *a, const struct sg_exec_spec *spec, struct sg_agent_msg *m,
                  struct sg_buf *b, struct sg_error *err)
{
    bool bad = false;
    sg_cleanup(sg_free_p) char *cwd = sg_agent_path(a, spec->cwd != NULL ? spec->cwd : a->root, err);
    if (cwd == NULL)
        return sg_error_field(err, SG_CWD_NOT_FOUND, "cwd",
                              "the working directory's path is empty or too long");
    add_string(b, cwd, &bad);
    uint32_t argc = 0;
    for (; spec->argv[argc] != NULL && argc < SG_AGENT_ARGC_MAX; argc++)
        add_string(b, spec->argv[argc], &bad);
    if (argc == 0 || spec->argv[argc] != NULL ||
        b->len > SG_EXEC_ARGS_BYTES_MAX + SG_AGENT_PATH_MAX + argc + 1)
        return sg_error_field(err, SG_INVALID_REQUEST, "command", "too many or too long arguments, or none");
    size_t envc = spec->env != NULL ? spec->env->n : 0;
    for (size_t i = 0; i < envc; i++) {
        bad = bad || sg_buf_add(b, spec->env->vars[i].name, strlen(spec->env->vars[i].name)) < 0;
        bad = bad || sg_buf_add(b, "=", 1) < 0;
        add_string(b, spec->env->vars[i].value, &bad);
    }
    if (bad || envc > SG_AGENT_ENVC_MAX)
        return sg_error_set(err, SG_INVALID_REQUEST, "command and environment are too long together");
    m->u.spawn.argc = argc;
    m->u.spawn.envc = (uint32_t)envc;
    m->u.spawn.len = (uint32_t)b->len;
    m->u.spawn.strings = b->data;
    return 0;
}

/* What does not fit a packet goes into a memfd that cannot change any more. */
static int pack_blob(struct sg_agent_msg *m, const struct sg_buf *b, struct parcel *p, struct sg_error *err)
{
    if (b->len <= INLINE_STRINGS)
        return 0;
    int fd = memfd_create("sandgate-spawn", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return sg_error_sys(err, SG_OVERLOADED, errno, "cannot pass a long command");
    p->fds[p->n++] = fd;
    p->own_end = p->n;
    for (size_t at = 0; at < b->len;) {
        ssize_t n = write(fd, b->data + at, b->len - at);
        if (n <= 0)
            return sg_error_sys(err, SG_OVERLOADED, errno, "cannot pass a long command");
        at += (size_t)n;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot pass a long command");
    m->u.spawn.flags |= SG_AGENT_SPAWN_BLOB;
    m->u.spawn.strings = NULL;
    return 0;
}

static int pack_pipes(const struct sg_spawn_ends *to, bool in, struct sg_agent_msg *m, struct parcel *p,
                      struct sg_error *err)
{
    struct {
        int *server;
        bool command_reads, wanted;
    } ends[] = {{to->in, true, in}, {to->out, false, true}, {to->err, false, true}};
    for (size_t i = 0; i < SG_COUNT_OF(ends); i++) {
        if (!ends[i].wanted)
            continue;
        p->fds[p->n] = -1;
        int e = make_pipe(ends[i].server, &p->fds[p->n], ends[i].command_reads);
        p->own_end = ++p->n;
        if (e == -EMFILE || e == -ENFILE) {
            sg_error_sys(err, SG_OVERLOADED, -e, "cannot make a pipe");
            return sg_error_retry_after(err, 1);
        }
        if (e < 0)
            return sg_error_sys(err, SG_INTERNAL, -e, "cannot make a pipe");
    }
    if (in)
        m->u.spawn.flags |= SG_AGENT_SPAWN_STDIN;
    return 0;
}

static int pack_streams(const struct sg_spawn_ends *to, const struct sg_exec_spec *spec, struct sg_agent_msg *m, struct parcel *p,
                        struct sg_error *err)
{
    if (spec->tty.rows == 0)
        return pack_pipes(to, spec->stdin_open, m, p, err);
    m->u.spawn.flags |= SG_AGENT_SPAWN_TTY;
    m->u.spawn.rows = spec->tty.rows;
    m->u.spawn.cols = spec->tty.cols;
    return 0;
}

static int pack_tree(const struct sg_agent_tree *t, struct sg_agent_msg *m, struct parcel *p,
                     struct sg_error *err)
{
    if (t == NULL || t->kill == NULL) {
        m->u.spawn.flags |= SG_AGENT_SPAWN_HELPER;
    } else {
        m->u.spawn.flags |= SG_AGENT_SPAWN_GROUP;
        p->fds[p->n++] = t->group_dir;
        p->fds[p->n++] = t->group_procs;
    }
    unsigned n = t != NULL ? t->n_tasks : 0;
    if (n > SG_AGENT_TASKS_MAX)
        return sg_error_set(err, SG_INTERNAL, "a command cannot join that many groups");
    for (unsigned i = 0; i < n; i++)
        p->fds[p->n++] = t->tasks[i];
    m->nfds = p->n;
    return 0;
}

int sg_agent_spawn(struct sg_agent *a, const struct sg_exec_spec *spec, const struct sg_agent_tree *tree,
                   struct sg_call *c, const struct sg_spawn_ends *ends, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_SPAWN};
    struct parcel p = {.n = 0};
    struct sg_buf strings;
    sg_buf_init(&strings, SG_AGENT_SPAWN_BYTES_MAX);
    int r = gather(a, spec, &m, &strings, err);
    if (r == 0)
        r = pack_blob(&m, &strings, &p, err);
    if (r == 0)
        r = pack_streams(ends, spec, &m, &p, err);
    if (r == 0)
        r = pack_tree(tree, &m, &p, err);
    if (r == 0)
        r = sg_agent_call(a, c, &m, p.fds, err);
    parcel_finish(&p);
    sg_buf_finish(&strings);
    return r;
}
