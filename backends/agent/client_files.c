/* Files: one request each, and what comes of it. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- small parts ---- */

char *sg_agent_path(struct sg_agent *a, const char *path, struct sg_error *err)
{
    size_t len = strlen(path), root = path[0] == '/' ? 0 : strlen(a->root) + 1;
    if (len == 0) {
        sg_error_field(err, SG_PATH_REFUSED, "path", "the path is empty");
        return NULL;
    }
    if (len + root > SG_AGENT_PATH_MAX) {
        sg_error_field(err, SG_PATH_REFUSED, "path", "the path is too long");
        return NULL;
    }
    if (path[0] != '/')
        return sg_xasprintf("%s/%s", a->root, path);
    size_t seen = a->seen_at != NULL ? strlen(a->seen_at) : 0;
    if (seen > 0 && strncmp(path, a->seen_at, seen) == 0 && (path[seen] == '/' || path[seen] == '\0'))
        return sg_xstrdup(path[seen] == '/' ? path + seen : "/");
    return sg_xstrdup(path);
}

static enum sg_file_type type_from(uint32_t type)
{
    switch (type) {
    case S_IFREG:
        return SG_FILE_REGULAR;
    case S_IFDIR:
        return SG_FILE_DIRECTORY;
    case S_IFLNK:
        return SG_FILE_SYMLINK;
    case S_IFIFO:
        return SG_FILE_FIFO;
    case S_IFSOCK:
        return SG_FILE_SOCKET;
    case S_IFCHR:
    case S_IFBLK:
        return SG_FILE_DEVICE;
    default:
        return SG_FILE_OTHER;
    }
}

void sg_agent_condition_from(struct sg_agent_condition *out, const struct sg_condition *c)
{
    static const enum sg_agent_kind kinds[] = {
        [SG_IF_ALWAYS] = SG_AGENT_ALWAYS,   [SG_IF_EXISTS] = SG_AGENT_EXISTS,   [SG_IF_ABSENT] = SG_AGENT_ABSENT,
        [SG_IF_MATCHES] = SG_AGENT_MATCHES, [SG_IF_DIFFERS] = SG_AGENT_DIFFERS,
    };
    *out = (struct sg_agent_condition){0};
    if (c == NULL)
        return;
    out->kind = kinds[c->kind];
    for (; out->n < c->n; out->n++)
        out->tags[out->n] = (struct sg_agent_tag){c->tags[out->n].dev, c->tags[out->n].ino, c->tags[out->n].mtime_ns,
                                                  c->tags[out->n].ctime_ns, c->tags[out->n].size};
}

void sg_agent_stat_from(struct sg_file_stat *out, const struct sg_agent_stat *st, const char *target,
                        size_t target_len)
{
    *out = (struct sg_file_stat){
        .type = type_from(st->type),
        .size = st->size,
        .mode = st->mode,
        .mtime_ns = st->mtime_ns,
        .ctime_ns = st->ctime_ns,
        .ino = st->ino,
        .dev = st->dev,
        .uid = st->uid,
    };
    size_t n = target_len < sizeof out->target ? target_len : sizeof out->target - 1;
    if (n > 0)
        memcpy(out->target, target, n);
    out->target[n] = '\0';
}

void sg_agent_stat_from_fd(struct sg_file_stat *out, const struct stat *st, uint32_t uid)
{
    *out = (struct sg_file_stat){
        .type = type_from(st->st_mode & S_IFMT),
        .size = (uint64_t)st->st_size,
        .mode = st->st_mode & 07777,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
        .ino = st->st_ino,
        .dev = st->st_dev,
        .uid = uid,
    };
}

/* One request about a file. */
struct file_op {
    struct sg_call call;
    struct sg_agent *agent;
    union {
        struct sg_done plain;
        struct sg_file_stat_done stat;
        struct sg_file_source_done source;
        struct sg_text_done text;
    } done;
    bool wants_text; /* of stat_answer */
    bool content;    /* what comes is none: its content does, through the descriptor */
    int access;      /* of the descriptor that comes */
};

static struct file_op *op_new(struct sg_agent *a, sg_answer *answer)
{
    struct file_op *op = sg_xcalloc(1, sizeof *op);
    op->agent = sg_agent_ref(a);
    op->call.answer = answer;
    return op;
}

static void op_free(struct file_op *op)
{
    sg_agent_unref(op->agent);
    free(op);
}

static int op_send(struct file_op *op, struct sg_agent_msg *m, struct sg_error *err)
{
    int r = sg_agent_call(op->agent, &op->call, m, NULL, err);
    if (r < 0)
        op_free(op);
    return r;
}

bool sg_agent_answer_error(const struct sg_agent_msg *m, const struct sg_error *err, struct sg_error *e)
{
    if (m == NULL)
        sg_error_copy(e, err);
    else if (m->u.done.error != 0)
        sg_agent_error(e, m->u.done.error);
    else
        return false;
    return true;
}

/* ---- stat, mkdir, remove, move ---- */

/* A stat, and for whoever wants it the text that came along. */
static int stat_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct file_op *op = sg_container_of(c, struct file_op, call);
    struct sg_error e = {0};
    struct sg_file_stat st;
    bool failed = sg_agent_answer_error(m, err, &e);
    bool wrong = fd >= 0 || (!failed && !(m->u.done.flags & SG_AGENT_DONE_STAT));
    if (wrong)
        sg_error_set(&e, SG_SANDBOX_LOST, "the agent broke the protocol");
    bool good = !failed && !wrong;
    if (good)
        sg_agent_stat_from(&st, &m->u.done.stat, m->u.done.text, strlen(m->u.done.text));
    if (op->wants_text)
        op->done.text.fn(op->done.text.arg, good ? m->u.done.text : NULL, good ? &st : NULL, good ? NULL : &e);
    else
        op->done.stat.fn(op->done.stat.arg, good ? &st : NULL, good ? NULL : &e);
    sg_error_clear(&e);
    sg_close(fd);
    op_free(op);
    return wrong ? -1 : 0;
}

static int plain_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct file_op *op = sg_container_of(c, struct file_op, call);
    struct sg_error e = {0};
    bool failed = sg_agent_answer_error(m, err, &e);
    if (failed && m != NULL && m->u.done.text[0] != '\0')
        sg_error_wrap(&e, "%s", m->u.done.text);
    op->done.plain.fn(op->done.plain.arg, failed ? &e : NULL);
    sg_error_clear(&e);
    sg_close(fd);
    op_free(op);
    return 0;
}

int sg_agent_stat(struct sg_agent *a, const char *path, const struct sg_file_stat_done *done,
                  struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full = sg_agent_path(a, path, err);
    if (full == NULL)
        return -1;
    struct sg_agent_msg m = {.type = SG_AGENT_STAT, .u.file.path = full};
    struct file_op *op = op_new(a, stat_answer);
    op->done.stat = *done;
    return op_send(op, &m, err);
}

int sg_agent_mkdir(struct sg_agent *a, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                   struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full = sg_agent_path(a, path, err);
    if (full == NULL)
        return -1;
    struct sg_agent_msg m = {.type = SG_AGENT_MKDIR, .u.file = {.path = full, .mode = mode & 07777}};
    struct file_op *op = op_new(a, stat_answer);
    op->done.stat = *done;
    return op_send(op, &m, err);
}

int sg_agent_remove(struct sg_agent *a, const char *path, bool recursive, const struct sg_condition *only_if,
                    const struct sg_done *done, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full = sg_agent_path(a, path, err);
    if (full == NULL)
        return -1;
    struct sg_agent_msg m = {.type = SG_AGENT_REMOVE, .u.file.path = full};
    m.u.file.flags = recursive ? SG_AGENT_RECURSIVE : 0;
    sg_agent_condition_from(&m.u.file.condition, only_if);
    struct file_op *op = op_new(a, plain_answer);
    op->call.tree = true;
    op->done.plain = *done;
    return op_send(op, &m, err);
}

int sg_agent_move(struct sg_agent *a, const char *from, const char *to, const struct sg_done *done,
                  struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full_from = sg_agent_path(a, from, err);
    sg_cleanup(sg_free_p) char *full_to = full_from != NULL ? sg_agent_path(a, to, err) : NULL;
    if (full_to == NULL)
        return -1;
    struct sg_agent_msg m = {.type = SG_AGENT_RENAME, .u.file = {.path = full_from, .path2 = full_to}};
    struct file_op *op = op_new(a, plain_answer);
    op->call.tree = true;
    op->done.plain = *done;
    return op_send(op, &m, err);
}

/* ---- get ---- */

int sg_agent_take_file(const struct sg_agent_msg *m, int fd, int access, const struct sg_error *err,
                       struct stat *st, bool *wrong, struct sg_error *e)
{
    *wrong = false;
    if (sg_agent_answer_error(m, err, e))
        return -1;
    const char *what = sg_agent_check_file(fd, access, st);
    if (what == NULL)
        return 0;
    *wrong = true;
    return sg_error_set(e, SG_SANDBOX_LOST, "the agent handed over %s", what);
}

static int get_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct file_op *op = sg_container_of(c, struct file_op, call);
    struct sg_file_source src = {.fd = -1};
    struct sg_error e = {0};
    struct stat st;
    bool wrong = false;
    if (op->content && !sg_agent_answer_error(m, err, &e)) {
        src.content = sg_agent_content_new(op->agent, fd);
        sg_agent_stat_from(&src.stat, &m->u.done.stat, NULL, 0);
        op->done.source.fn(op->done.source.arg, &src, NULL);
    } else if (op->content) {
        op->done.source.fn(op->done.source.arg, NULL, &e);
        sg_close(fd);
    } else if (sg_agent_take_file(m, fd, op->access, err, &st, &wrong, &e) < 0) {
        op->done.source.fn(op->done.source.arg, NULL, &e);
        sg_close(fd);
    } else {
        src.fd = fd;
        src.hold = sg_hold_ref(op->agent->o.hold);
        sg_agent_stat_from_fd(&src.stat, &st, m->u.done.stat.uid);
        if (op->agent->o.far && (m->u.done.flags & SG_AGENT_DONE_STAT) != 0) /* the descriptor is that of a copy */
            sg_agent_stat_from(&src.stat, &m->u.done.stat, NULL, 0);
        op->done.source.fn(op->done.source.arg, &src, NULL);
    }
    sg_error_clear(&e);
    op_free(op);
    return wrong ? -1 : 0;
}

static int open_file(struct sg_agent *a, struct sg_agent_msg *m, int access, const struct sg_file_source_done *done,
                     struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full = sg_agent_path(a, m->u.file.path, err);
    if (full == NULL)
        return -1;
    m->type = SG_AGENT_OPEN;
    m->u.file.path = full;
    struct file_op *op = op_new(a, get_answer);
    op->call.wants_fd = true;
    op->content = m->u.file.how == SG_AGENT_OPEN_CONTENT;
    op->access = access;
    op->done.source = *done;
    return op_send(op, m, err);
}

int sg_agent_get(struct sg_agent *a, const char *path, const struct sg_file_source_done *done,
                 struct sg_error *err)
{
    struct sg_agent_msg m = {.u.file = {.path = path, .how = SG_AGENT_OPEN_READ}};
    return open_file(a, &m, O_RDONLY, done, err);
}

int sg_agent_open(struct sg_agent *a, const char *path, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.u.file = {.path = path, .how = a->o.far ? SG_AGENT_OPEN_CONTENT : SG_AGENT_OPEN_READ}};
    return open_file(a, &m, O_RDONLY, done, err);
}

/* ---- trees ---- */

int sg_agent_tree_get(struct sg_agent *a, const char *path, const struct sg_file_source_done *done,
                      struct sg_error *err)
{
    struct sg_agent_msg m = {
        .u.file = {.path = path, .how = SG_AGENT_OPEN_READ, .flags = SG_AGENT_NO_LINKS}};
    return open_file(a, &m, O_RDONLY, done, err);
}

int sg_agent_scratch(struct sg_agent *a, const char *path, const struct sg_file_source_done *done,
                     struct sg_error *err)
{
    struct sg_agent_msg m = {.u.file = {.path = path, .how = SG_AGENT_OPEN_SCRATCH}};
    return open_file(a, &m, O_RDWR, done, err);
}

int sg_agent_tree_list(struct sg_agent *a, const char *path, size_t max, const struct sg_file_list_done *done,
                       struct sg_error *err)
{
    const struct sg_file_list_args args = {.path = path, .max = max};
    return sg_agent_list_links(a, &args, SG_AGENT_NO_LINKS, done, err);
}

/* m->u.file.path (and path2, unless it is the text of a symbolic link) become whole paths. */
static int send_tree(struct sg_agent *a, struct sg_agent_msg *m, struct file_op *op, struct sg_error *err)
{
    bool is_path = m->u.file.path2 != NULL &&
                   (m->type != SG_AGENT_LINK || !(m->u.file.flags & SG_AGENT_SYMBOLIC));
    sg_cleanup(sg_free_p) char *first = sg_agent_path(a, m->u.file.path, err);
    sg_cleanup(sg_free_p) char *second = is_path && first != NULL ? sg_agent_path(a, m->u.file.path2, err) : NULL;
    if (first == NULL || (is_path && second == NULL)) {
        op_free(op);
        return -1;
    }
    m->u.file.path = first;
    if (is_path)
        m->u.file.path2 = second;
    return op_send(op, m, err);
}

static int ask_text(struct sg_agent *a, struct sg_agent_msg *m, const struct sg_text_done *done, struct sg_error *err)
{
    struct file_op *op = op_new(a, stat_answer);
    op->wants_text = true;
    op->done.text = *done;
    return send_tree(a, m, op, err);
}

int sg_agent_resolve(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_STAT, .u.file = {.path = path, .flags = SG_AGENT_RESOLVE}};
    return ask_text(a, &m, done, err);
}

int sg_agent_readlink(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_STAT, .u.file = {.path = path, .flags = SG_AGENT_NO_LINKS}};
    return ask_text(a, &m, done, err);
}

int sg_agent_stage(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_MKDIR,
                             .u.file = {.path = path, .flags = SG_AGENT_STAGE, .mode = 0700}};
    return ask_text(a, &m, done, err);
}

int sg_agent_tree_mkdir(struct sg_agent *a, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                        struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_MKDIR,
                             .u.file = {.path = path, .flags = SG_AGENT_NO_LINKS, .mode = mode & 0777}};
    struct file_op *op = op_new(a, stat_answer);
    op->done.stat = *done;
    return send_tree(a, &m, op, err);
}

static int do_plain(struct sg_agent *a, struct sg_agent_msg *m, const struct sg_done *done, struct sg_error *err)
{
    struct file_op *op = op_new(a, plain_answer);
    op->call.tree = m->type == SG_AGENT_MERGE;
    op->done.plain = *done;
    m->u.file.flags |= SG_AGENT_NO_LINKS;
    return send_tree(a, m, op, err);
}

int sg_agent_symlink(struct sg_agent *a, const char *path, const char *text, int64_t mtime_ns,
                     const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_LINK, .u.file = {.path = path, .path2 = text, .mtime_ns = mtime_ns}};
    if (text[0] == '\0' || strlen(text) > SG_AGENT_PATH_MAX)
        return sg_error_set(err, SG_PATH_REFUSED, "the text of a symbolic link is empty or too long");
    m.u.file.flags = SG_AGENT_SYMBOLIC | SG_AGENT_SET_MTIME;
    return do_plain(a, &m, done, err);
}

int sg_agent_link(struct sg_agent *a, const char *path, const char *existing, const struct sg_done *done,
                  struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_LINK, .u.file = {.path = path, .path2 = existing}};
    return do_plain(a, &m, done, err);
}

int sg_agent_attributes(struct sg_agent *a, const char *path, uint32_t mode, int64_t mtime_ns,
                        const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_ATTRIBUTES,
                             .u.file = {.path = path, .mode = mode & 0777, .mtime_ns = mtime_ns}};
    m.u.file.flags = SG_AGENT_SET_MODE | SG_AGENT_SET_MTIME;
    return do_plain(a, &m, done, err);
}

int sg_agent_merge(struct sg_agent *a, const char *stage, const char *to, const struct sg_done *done,
                   struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_MERGE, .u.file = {.path = stage, .path2 = to}};
    return do_plain(a, &m, done, err);
}
