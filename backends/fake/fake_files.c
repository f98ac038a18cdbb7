/* Files of the fake: a map from absolute path to node. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/fake/fake_priv.h"
#include "base/clock.h"
#include "base/fd.h"

/* ---- paths and nodes ---- */

int fake_path(const char *path, char out[FAKE_PATH_MAX], struct sg_error *err)
{
    size_t n = 0;
    if (strlen(path) + 12 > FAKE_PATH_MAX) {
        return sg_error_set(err, SG_PATH_REFUSED, "the path is too long");
    }
    if (path[0] != '/') {
        n = strlen("/workspace");
        memcpy(out, "/workspace", n);
    }
    for (const char *p = path; *p != '\0';) {
        size_t len = strcspn(p, "/");
        if (len == 2 && p[0] == '.' && p[1] == '.') {
            while (n > 0 && out[--n] != '/') {
            }
        } else if (len > 0 && !(len == 1 && p[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, p, len);
            n += len;
        }
        p += len + (p[len] == '/');
    }
    if (n == 0) {
        out[n++] = '/';
    }
    out[n] = '\0';
    return 0;
}

struct fake_node *fake_find(struct fake_sandbox *sb, const char *abs)
{
    struct fake_node *node = NULL;
    HASH_FIND_STR(sb->files, abs, node);
    return node;
}

static struct fake_node *node_add(struct fake_sandbox *sb, const char *abs, enum sg_file_type type,
                                  uint32_t mode)
{
    struct fake_node *node = sg_xcalloc(1, sizeof *node);
    node->path = sg_xstrdup(abs);
    node->stat = (struct sg_file_stat){.type = type,
                                       .mode = mode,
                                       .mtime_ns = sg_wall_us() * 1000,
                                       .ctime_ns = sg_wall_us() * 1000,
                                       .ino = ++sb->next_ino,
                                       .dev = 1,
                                       .uid = 1000};
    HASH_ADD_KEYPTR(hh, sb->files, node->path, strlen(node->path), node);
    return node;
}

static void node_drop(struct fake_node **files, struct fake_node *node)
{
    HASH_DEL(*files, node);
    free(node->path);
    free(node->data);
    free(node);
}

static void node_remove(struct fake_sandbox *sb, struct fake_node *node)
{
    node_drop(&sb->files, node);
}

static bool below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return n > 0 && strncmp(path, dir, n) == 0 && (dir[n - 1] == '/' ? path[n] != '\0' : path[n] == '/');
}

static int make_dirs(struct fake_sandbox *sb, char *abs, struct sg_error *err)
{
    for (char *p = abs + 1;; p++) {
        if (*p != '/' && *p != '\0') {
            continue;
        }
        char was = *p;
        *p = '\0';
        struct fake_node *node = fake_find(sb, abs);
        if (node == NULL) {
            node = node_add(sb, abs, SG_FILE_DIRECTORY, 0755);
        }
        *p = was;
        if (node->stat.type != SG_FILE_DIRECTORY) {
            return sg_error_set(err, SG_NOT_A_DIRECTORY, "%s is not a directory", node->path);
        }
        if (was == '\0') {
            return 0;
        }
    }
}

static int make_parents(struct fake_sandbox *sb, char *abs, struct sg_error *err)
{
    char *slash = strrchr(abs, '/');
    if (slash == abs) {
        return 0;
    }
    *slash = '\0';
    int rc = make_dirs(sb, abs, err);
    *slash = '/';
    return rc;
}

void fake_files_init(struct fake_sandbox *sb)
{
    static const char *const dirs[] = {"/workspace", "/home/sandbox", "/tmp"};
    node_add(sb, "/", SG_FILE_DIRECTORY, 0755);
    for (size_t i = 0; i < SG_COUNT_OF(dirs); i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "%s", dirs[i]);
        (void)make_dirs(sb, path, NULL);
    }
}

void fake_files_free(struct fake_node **files)
{
    struct fake_node *node = NULL;
    struct fake_node *next = NULL;
    HASH_ITER(hh, *files, node, next)
    {
        node_drop(files, node);
    }
}

void fake_files_finish(struct fake_sandbox *sb)
{
    fake_files_free(&sb->files);
}

void fake_files_copy(struct fake_node **to, struct fake_node *from)
{
    for (const struct fake_node *node = from; node != NULL; node = node->hh.next) {
        struct fake_node *copy = sg_xcalloc(1, sizeof *copy);
        size_t len = (size_t)node->stat.size;
        copy->path = sg_xstrdup(node->path);
        copy->stat = node->stat;
        copy->data = sg_xcalloc(1, len + 1);
        if (node->data != NULL) {
            memcpy(copy->data, node->data, len);
        }
        HASH_ADD_KEYPTR(hh, *to, copy->path, strlen(copy->path), copy);
    }
}

/* Is something above abs no directory? */
static bool through_a_file(struct fake_sandbox *sb, const char *abs)
{
    char above[FAKE_PATH_MAX];
    (void)snprintf(above, sizeof above, "%s", abs);
    for (char *slash; (slash = strrchr(above, '/')) != NULL && slash != above;) {
        *slash = '\0';
        const struct fake_node *node = fake_find(sb, above);
        if (node != NULL) {
            return node->stat.type != SG_FILE_DIRECTORY;
        }
    }
    return false;
}

static struct fake_node *want(struct fake_sandbox *sb, const char *path, char abs[FAKE_PATH_MAX],
                              struct sg_error *err)
{
    if (fake_sandbox_usable(sb, err) < 0 || fake_path(path, abs, err) < 0) {
        return NULL;
    }
    struct fake_node *node = fake_find(sb, abs);
    if (node == NULL && through_a_file(sb, abs)) {
        sg_error_set(err, SG_NOT_A_DIRECTORY, "the path of %s leads through a file", abs);
    } else if (node == NULL) {
        sg_error_set(err, SG_NOT_FOUND, "there is no %s", abs);
    }
    return node;
}

int fake_write(struct fake_sandbox *sb, const char *path, const char *data, size_t len, bool append,
               uint32_t mode, bool *ret_created, struct sg_file_stat *ret_stat, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    if (fake_sandbox_usable(sb, err) < 0 || fake_path(path, abs, err) < 0) {
        return -1;
    }
    struct fake_node *node = fake_find(sb, abs);
    if (node != NULL && node->stat.type == SG_FILE_DIRECTORY) {
        return sg_error_set(err, SG_IS_A_DIRECTORY, "%s is a directory", abs);
    }
    size_t old = append && node != NULL ? (size_t)node->stat.size : 0;
    if (old + len > FAKE_FILE_MAX) {
        return sg_error_set(err, SG_SANDBOX_DISK_FULL, "the disk of the sandbox is full");
    }
    char *whole = malloc(old + len + 1);
    if (whole == NULL || make_parents(sb, abs, err) < 0) {
        free(whole);
        return whole == NULL ? sg_error_set(err, SG_NO_MEMORY, "out of memory") : -1;
    }
    if (old > 0) {
        memcpy(whole, node->data, old);
    }
    if (len > 0) {
        memcpy(whole + old, data, len);
    }
    *ret_created = node == NULL;
    if (node == NULL) {
        node = node_add(sb, abs, SG_FILE_REGULAR, 0644);
    }
    free(node->data);
    node->data = whole;
    node->stat.size = old + len;
    node->stat.mode = mode != 0 ? mode : node->stat.mode;
    node->stat.mtime_ns = node->stat.ctime_ns = sg_wall_us() * 1000;
    *ret_stat = node->stat;
    return 0;
}

/* ---- operations ---- */

enum file_verb { FILE_GET, FILE_STAT, FILE_LIST, FILE_MKDIR, FILE_REMOVE, FILE_MOVE, FILE_PUT, FILE_COMMIT };

struct fake_sink {
    struct sg_file_sink base;
    struct fake_sandbox *sb; /* one reference */
    char *path;
    bool append;
    uint32_t mode; /* 0: default */
    struct sg_condition only_if;
    char *data;
    size_t len;
    size_t cap;
};

struct file_op {
    struct fake_op op;
    enum file_verb verb;
    char *path;
    char *to; /* of a list: what the names come behind, or NULL */
    bool flag; /* recursive */
    size_t max;
    uint32_t mode;
    struct fake_sink *sink;
    struct sg_condition only_if;
    union {
        struct sg_file_source_done get;
        struct sg_file_sink_done put;
        struct sg_file_stat_done stat;
        struct sg_file_list_done list;
        struct sg_done plain;
        struct {
            void (*fn)(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err);
            void *arg;
        } commit;
    } done;
    struct sg_file_source src;
    struct sg_file_stat st;
    struct sg_file_list found;
    bool created;
};

static int do_get(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    struct fake_node *node = want(o->op.sb, o->path, abs, err);
    if (node == NULL) {
        return -1;
    }
    if (node->stat.type != SG_FILE_REGULAR) {
        return sg_error_set(err, SG_IS_A_DIRECTORY, "%s is a directory", abs);
    }
    char self[64];
    int fd sg_cleanup(sg_close_p) = memfd_create("fake", MFD_CLOEXEC);
    int rc = fd < 0 ? -errno : sg_write_all(fd, node->data, (size_t)node->stat.size);
    if (rc < 0) {
        return sg_error_sys(err, SG_INTERNAL, -rc, "cannot hand over a file");
    }
    (void)snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    o->src.fd = open(self, O_RDONLY | O_CLOEXEC);
    o->src.stat = node->stat;
    return o->src.fd < 0 ? sg_error_sys(err, SG_INTERNAL, errno, "cannot hand over a file") : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sg_file_entry *)a)->name, ((const struct sg_file_entry *)b)->name);
}

static int do_list(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    struct fake_node *dir = want(o->op.sb, o->path, abs, err);
    struct fake_node *node = NULL;
    struct fake_node *next = NULL;
    if (dir == NULL) {
        return -1;
    }
    if (dir->stat.type != SG_FILE_DIRECTORY) {
        return sg_error_set(err, SG_NOT_A_DIRECTORY, "%s is not a directory", abs);
    }
    size_t skip = strlen(abs) + (abs[1] != '\0');
    o->found.entries = sg_xcalloc(HASH_COUNT(o->op.sb->files), sizeof *o->found.entries);
    HASH_ITER(hh, o->op.sb->files, node, next)
    {
        if (!below(node->path, abs) || (!o->flag && strchr(node->path + skip, '/') != NULL) ||
            (o->to != NULL && strcmp(node->path + skip, o->to) <= 0)) {
            continue;
        }
        o->found.entries[o->found.n++] =
            (struct sg_file_entry){.name = sg_xstrdup(node->path + skip), .stat = node->stat};
    }
    qsort(o->found.entries, o->found.n, sizeof *o->found.entries, by_name);
    while (o->found.n > o->max) {
        free(o->found.entries[--o->found.n].name);
        o->found.more = true;
    }
    return 0;
}

static int do_mkdir(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    if (fake_sandbox_usable(o->op.sb, err) < 0 || fake_path(o->path, abs, err) < 0) {
        return -1;
    }
    bool fresh = fake_find(o->op.sb, abs) == NULL;
    if (make_dirs(o->op.sb, abs, err) < 0) {
        return -1;
    }
    struct fake_node *node = fake_find(o->op.sb, abs);
    if (fresh) {
        node->stat.mode = o->mode;
    }
    o->st = node->stat;
    return 0;
}

static int check(struct fake_sandbox *sb, const struct sg_condition *c, const char *path, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    if (fake_path(path, abs, err) < 0) {
        return -1;
    }
    const struct fake_node *node = fake_find(sb, abs);
    return sg_condition_holds(c, node != NULL ? &node->stat : NULL)
               ? 0
               : sg_error_set(err, SG_PRECONDITION_FAILED, "%s is in another state", abs);
}

static int do_remove(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    if (check(o->op.sb, &o->only_if, o->path, err) < 0) {
        return -1;
    }
    struct fake_node *found = want(o->op.sb, o->path, abs, err);
    struct fake_node *node = NULL;
    struct fake_node *next = NULL;
    if (found == NULL) {
        return -1;
    }
    if (abs[1] == '\0') {
        return sg_error_set(err, SG_FORBIDDEN, "the root cannot be removed");
    }
    HASH_ITER(hh, o->op.sb->files, node, next)
    {
        if (!below(node->path, abs)) {
            continue;
        }
        if (!o->flag) {
            return sg_error_set(err, SG_DIRECTORY_NOT_EMPTY, "%s is not empty", abs);
        }
        node_remove(o->op.sb, node);
    }
    node_remove(o->op.sb, found);
    return 0;
}

static void rename_node(struct fake_sandbox *sb, struct fake_node *node, const char *to, size_t old_len)
{
    char *path = sg_xasprintf("%s%s", to, node->path + old_len);
    HASH_DEL(sb->files, node);
    free(node->path);
    node->path = path;
    HASH_ADD_KEYPTR(hh, sb->files, node->path, strlen(node->path), node);
}

static bool has_children(struct fake_sandbox *sb, const char *abs)
{
    struct fake_node *node = NULL;
    struct fake_node *next = NULL;
    HASH_ITER(hh, sb->files, node, next)
    {
        if (below(node->path, abs)) {
            return true;
        }
    }
    return false;
}

/* A file replaces a file, a directory an empty directory. */
static int may_replace(struct fake_sandbox *sb, const struct fake_node *node, const struct fake_node *target, struct sg_error *err)
{
    bool dir = node->stat.type == SG_FILE_DIRECTORY;
    if (target == NULL) {
        return 0;
    }
    if ((target->stat.type == SG_FILE_DIRECTORY) != dir) {
        return sg_error_set(err, dir ? SG_NOT_A_DIRECTORY : SG_IS_A_DIRECTORY, "%s is %s directory", target->path, dir ? "no" : "a");
    }
    return dir && has_children(sb, target->path) ? sg_error_set(err, SG_DIRECTORY_NOT_EMPTY, "%s is not empty", target->path) : 0;
}

static int do_move(struct file_op *o, struct sg_error *err)
{
    char from[FAKE_PATH_MAX];
    char to[FAKE_PATH_MAX];
    struct fake_sandbox *sb = o->op.sb;
    struct fake_node *node = want(sb, o->path, from, err);
    if (node == NULL || fake_path(o->to, to, err) < 0) {
        return -1;
    }
    if (sg_streq(from, to)) {
        return 0;
    }
    struct fake_node *target = fake_find(sb, to);
    if (below(to, from)) {
        return sg_error_set(err, SG_PATH_REFUSED, "%s is inside of %s", to, from);
    }
    if (may_replace(sb, node, target, err) < 0 || make_parents(sb, to, err) < 0) {
        return -1;
    }
    if (target != NULL) {
        node_remove(sb, target);
    }
    size_t old_len = strlen(from);
    for (;;) {
        struct fake_node *child = NULL;
        struct fake_node *next = NULL;
        HASH_ITER(hh, sb->files, child, next)
        {
            if (below(child->path, from)) {
                break;
            }
        }
        if (child == NULL) {
            break;
        }
        rename_node(sb, child, to, old_len);
    }
    rename_node(sb, node, to, old_len);
    return 0;
}

static int do_commit(struct file_op *o, struct sg_error *err)
{
    struct fake_sink *s = o->sink;
    if (check(o->op.sb, &s->only_if, s->path, err) < 0) {
        return -1;
    }
    return fake_write(o->op.sb, s->path, s->data, s->len, s->append, s->mode, &o->created, &o->st, err);
}

static int do_stat(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    struct fake_node *node = want(o->op.sb, o->path, abs, err);
    if (node == NULL) {
        return -1;
    }
    o->st = node->stat;
    return 0;
}

static int do_put(struct file_op *o, struct sg_error *err)
{
    char abs[FAKE_PATH_MAX];
    if (fake_sandbox_usable(o->op.sb, err) < 0 || fake_path(o->path, abs, err) < 0) {
        return -1;
    }
    const struct fake_node *node = fake_find(o->op.sb, abs);
    if (node != NULL && node->stat.type == SG_FILE_DIRECTORY) {
        return sg_error_set(err, SG_IS_A_DIRECTORY, "%s is a directory", abs);
    }
    return check(o->op.sb, &o->sink->only_if, o->path, err);
}

static int perform(struct file_op *o, struct sg_error *err)
{
    switch (o->verb) {
    case FILE_GET:
        return do_get(o, err);
    case FILE_STAT:
        return do_stat(o, err);
    case FILE_LIST:
        return do_list(o, err);
    case FILE_MKDIR:
        return do_mkdir(o, err);
    case FILE_REMOVE:
        return do_remove(o, err);
    case FILE_MOVE:
        return do_move(o, err);
    case FILE_PUT:
        return do_put(o, err);
    case FILE_COMMIT:
        return do_commit(o, err);
    }
    return sg_error_set(err, SG_INTERNAL, "no such verb");
}

static void sink_free(struct fake_sink *s)
{
    sg_sandbox_unref(&s->sb->base);
    free(s->path);
    free(s->data);
    free(s);
}

static void answer(struct file_op *o, const struct sg_error *err)
{
    switch (o->verb) {
    case FILE_GET:
        o->done.get.fn(o->done.get.arg, err == NULL ? &o->src : NULL, err);
        break;
    case FILE_STAT:
    case FILE_MKDIR:
        o->done.stat.fn(o->done.stat.arg, err == NULL ? &o->st : NULL, err);
        break;
    case FILE_LIST:
        o->done.list.fn(o->done.list.arg, err == NULL ? &o->found : NULL, err);
        break;
    case FILE_REMOVE:
    case FILE_MOVE:
        o->done.plain.fn(o->done.plain.arg, err);
        break;
    case FILE_PUT:
        o->done.put.fn(o->done.put.arg, err == NULL ? &o->sink->base : NULL, err);
        break;
    case FILE_COMMIT:
        o->done.commit.fn(o->done.commit.arg, err == NULL ? &o->st : NULL, o->created, err);
        break;
    }
}

static void finish(struct fake_op *op, const struct sg_error *err)
{
    struct file_op *o = (struct file_op *)op;
    struct sg_error own = {0};
    if (err == NULL && perform(o, &own) < 0) {
        err = &own;
    }
    answer(o, err);
    if (o->sink != NULL && (o->verb == FILE_COMMIT || err != NULL)) {
        sink_free(o->sink);
    }
    sg_error_clear(&own);
    fake_op_end(op);
    free(o->path);
    free(o->to);
    free(o);
}

static struct file_op *file_op_new(enum file_verb verb, const char *path)
{
    struct file_op *o = sg_xcalloc(1, sizeof *o);
    o->verb = verb;
    o->path = path != NULL ? sg_xstrdup(path) : NULL;
    o->src.fd = -1;
    o->op.finish = finish;
    return o;
}

static void start(struct file_op *o, struct fake_sandbox *sb)
{
    /* Only the verbs a caller names count as steps of the script, not the second half of a put. */
    fake_op_start(&o->op, sb->f, sb, o->verb == FILE_COMMIT ? FAKE_LISTS : FAKE_FILES);
}

/* ---- slots ---- */

static int get(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done,
               struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_GET, path);
    o->done.get = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

static int sink_write(struct sg_file_sink *sink, const void *data, size_t len, struct sg_error *err)
{
    struct fake_sink *s = (struct fake_sink *)sink;
    if (len > FAKE_FILE_MAX - s->len) {
        return sg_error_set(err, SG_SANDBOX_DISK_FULL, "the disk of the sandbox is full");
    }
    if (s->len + len > s->cap) {
        size_t cap = 2 * (s->len + len);
        char *grown = realloc(s->data, cap);
        if (grown == NULL) {
            return sg_error_set(err, SG_NO_MEMORY, "out of memory");
        }
        s->data = grown;
        s->cap = cap;
    }
    if (len > 0 && data != NULL) {
        memcpy(s->data + s->len, data, len);
    } else if (len > 0) {
        memset(s->data + s->len, 0, len);
    }
    s->len += len;
    return 0;
}

static void sink_commit(struct sg_file_sink *sink,
                        void (*done)(void *arg, const struct sg_file_stat *st, bool created,
                                     const struct sg_error *err),
                        void *arg)
{
    struct fake_sink *s = (struct fake_sink *)sink;
    struct file_op *o = file_op_new(FILE_COMMIT, NULL);
    o->sink = s;
    o->done.commit.fn = done;
    o->done.commit.arg = arg;
    start(o, s->sb);
}

static void sink_abort(struct sg_file_sink *sink)
{
    sink_free((struct fake_sink *)sink);
}

static const struct sg_file_sink_ops sink_ops = {
    .write = sink_write, .commit = sink_commit, .abort = sink_abort};

static int put(struct sg_sandbox *sb, const struct sg_file_put_args *a, const struct sg_file_sink_done *done,
               struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_PUT, a->path);
    struct fake_sink *s = sg_xcalloc(1, sizeof *s);
    s->base.ops = &sink_ops;
    s->sb = (struct fake_sandbox *)sg_sandbox_ref(sb);
    s->path = sg_xstrdup(a->path);
    s->append = a->append;
    s->mode = a->mode_given ? a->mode : 0;
    if (a->only_if != NULL) {
        s->only_if = *a->only_if;
    }
    o->sink = s;
    o->done.put = *done;
    start(o, s->sb);
    return 0;
}

static int stat_(struct sg_sandbox *sb, const char *path, const struct sg_file_stat_done *done,
                 struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_STAT, path);
    o->done.stat = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

static int list(struct sg_sandbox *sb, const struct sg_file_list_args *a, const struct sg_file_list_done *done,
                struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_LIST, a->path);
    o->flag = a->recursive;
    o->max = a->max;
    o->to = a->after != NULL ? sg_xstrdup(a->after) : NULL; /* the name that they come behind */
    o->done.list = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

static int mkdir_(struct sg_sandbox *sb, const char *path, uint32_t mode,
                  const struct sg_file_stat_done *done, struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_MKDIR, path);
    o->mode = mode;
    o->done.stat = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

static int remove_(struct sg_sandbox *sb, const char *path, bool recursive, const struct sg_condition *only_if,
                   const struct sg_done *done, struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_REMOVE, path);
    o->flag = recursive;
    if (only_if != NULL) {
        o->only_if = *only_if;
    }
    o->done.plain = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

static int move(struct sg_sandbox *sb, const char *from, const char *to, const struct sg_done *done,
                struct sg_error *err)
{
    (void)err;
    struct file_op *o = file_op_new(FILE_MOVE, from);
    o->to = sg_xstrdup(to);
    o->done.plain = *done;
    start(o, (struct fake_sandbox *)sb);
    return 0;
}

const struct sg_file_ops fake_file_ops = {
    .get = get,
    .put = put,
    .stat = stat_,
    .list = list,
    .mkdir = mkdir_,
    .remove = remove_,
    .move = move,
};
