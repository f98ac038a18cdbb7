/* Files: names and what is known of them, by a script of ours that runs as the sandbox's user. */
#include "backends/e2b/files_priv.h"

#include <errno.h>
#include <stdio.h>

#include "backends/e2b/scripts.h"
#include "backends/file_error.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"

#define CONDITION_MAX ((size_t)4096)

/* ---- what goes in ---- */

char *e2b_hex(const char *path)
{
    size_t len = strlen(path);
    char *out = sg_xcalloc(2 * len + 1, 1);

    sg_hex((const uint8_t *)path, len, out);
    return out;
}

char *e2b_condition(const struct sg_condition *c)
{
    struct sg_buf b;

    sg_buf_init(&b, CONDITION_MAX);
    (void)sg_buf_addf(&b, "%d:", c ? (int)c->kind : 0);
    for (unsigned i = 0; c && i < c->n; i++)
        (void)sg_buf_addf(&b, "%s%llu,%llu,%lld,%lld,%llu", i > 0 ? ";" : "", (unsigned long long)c->tags[i].dev,
                          (unsigned long long)c->tags[i].ino, (long long)c->tags[i].mtime_ns, (long long)c->tags[i].ctime_ns,
                          (unsigned long long)c->tags[i].size);
    return sg_buf_steal(&b, NULL);
}

/* ---- what comes out ---- */

const char *e2b_field(const char **at, const char *end)
{
    const char *field = *at;
    const char *nul = field < end ? memchr(field, '\0', (size_t)(end - field)) : NULL;

    if (!nul)
        return NULL;
    *at = nul + 1;
    return field;
}

static bool number(const char **at, const char *end, int64_t *ret)
{
    const char *field = e2b_field(at, end);

    return field && sg_parse_int(field, INT64_MIN, INT64_MAX, ret);
}

static enum sg_file_type type_of(char c)
{
    switch (c) {
    case 'f':
        return SG_FILE_REGULAR;
    case 'd':
        return SG_FILE_DIRECTORY;
    case 'l':
        return SG_FILE_SYMLINK;
    case 'p':
        return SG_FILE_FIFO;
    case 's':
        return SG_FILE_SOCKET;
    case 'v':
        return SG_FILE_DEVICE;
    default:
        return SG_FILE_OTHER;
    }
}

bool e2b_record(const char **at, const char *end, const char **ret_name, struct sg_file_stat *ret)
{
    int64_t size, mode, ino, dev, uid;
    const char *name = e2b_field(at, end);
    const char *type = name ? e2b_field(at, end) : NULL;

    if (!type || !number(at, end, &size) || !number(at, end, &mode) || !number(at, end, &ret->mtime_ns) ||
        !number(at, end, &ret->ctime_ns) || !number(at, end, &ino) || !number(at, end, &dev) || !number(at, end, &uid))
        return false;
    const char *target = e2b_field(at, end);
    if (!target)
        return false;
    ret->type = type_of(type[0]);
    ret->size = (uint64_t)size;
    ret->mode = (uint32_t)mode & 07777U;
    ret->ino = (uint64_t)ino;
    ret->dev = (uint64_t)dev;
    ret->uid = (uint32_t)uid;
    snprintf(ret->target, sizeof ret->target, "%.*s", (int)sizeof ret->target - 1, target);
    *ret_name = name;
    return true;
}

/* ---- a run ---- */

/* What it says in a way of its own. */
static const struct sg_file_error own[] = {
    {ELOOP, SG_PATH_REFUSED, "too many symbolic links"},
    {ENOMEM, SG_OVERLOADED, "too much for the sandbox at once"},
    {10003, SG_CONFLICT, "it got shorter while it was read"},
    {10004, SG_LIMIT_EXCEEDED, "it has more entries or is deeper than an archive may be here"},
};

int e2b_file_error(const char *said, size_t len, struct sg_error *err)
{
    int64_t error;
    const char *end = said + len, *number = said[0] == 'E' ? e2b_field(&said, end) : NULL, *what = number ? e2b_field(&said, end) : NULL;

    if (!what || !sg_parse_int(number + 1, 0, INT32_MAX, &error))
        return e2b_file_nonsense(err);
    const struct sg_file_error *e = sg_file_error_find(own, SG_COUNT_OF(own), (int)error);
    if (!e)
        sg_error_set(err, SG_PROVIDER_FAILED, "the sandbox answers with an unexpected error (%d)", (int)error);
    else
        sg_error_set(err, e->code, "%s", e->text);
    if (e && e->code == SG_OVERLOADED)
        sg_error_retry_after(err, 1);
    if (e && e->code == SG_LIMIT_EXCEEDED)
        sg_error_reason(err, "too_many_entries");
    return *what ? sg_error_wrap(err, "%.200s", what) : -1;
}

int e2b_file_nonsense(struct sg_error *err)
{
    return sg_error_set(err, SG_PROVIDER_FAILED, "what the sandbox says of its files cannot be understood");
}

struct run {
    struct e2b_file_call c;
};

static void fail_unknown(struct run *r, const struct sg_error *err)
{
    struct sg_error why = {0};

    if (!r->c.changes || !sg_origin_unknown(err) || err->code == SG_SHUTTING_DOWN) {
        r->c.done(r->c.arg, NULL, 0, err);
        return;
    }
    sg_error_set(&why, SG_OUTCOME_UNKNOWN, "whether it has happened is not known: %.300s", err->message);
    sg_error_member(&why, "provider", json_string("e2b"));
    r->c.done(r->c.arg, NULL, 0, &why);
    sg_error_clear(&why);
}

static void ran(void *arg, const struct e2b_ran *said, const struct sg_error *err)
{
    struct run *r = arg;
    struct sg_error why = {0};

    if (err) {
        fail_unknown(r, err);
    } else if (said->code == 0) {
        r->c.done(r->c.arg, said->out, said->out_len, NULL);
    } else {
        if (said->code == E2B_FILE_FAILED)
            e2b_file_error(said->out, said->out_len, &why);
        else
            sg_error_set(&why, SG_PROVIDER_FAILED, "the sandbox cannot run what is needed for its files (status %d)", said->code);
        r->c.done(r->c.arg, NULL, 0, &why);
    }
    sg_error_clear(&why);
    free(r);
}

void e2b_file_run(struct e2b_sandbox *sb, const struct e2b_file_call *c)
{
    const char *argv[16] = {"perl", "-e", e2b_script_common, "-e", c->script ? c->script : e2b_script_files};
    size_t n = 5;
    struct run *r = sg_xcalloc(1, sizeof *r);

    r->c = *c;
    for (size_t i = 0; c->args[i]; i++)
        argv[n++] = c->args[i];
    e2b_run(sb, &(struct e2b_run_args){.user = "user", .argv = argv, .out_max = E2B_LIST_BYTES, .limit_ms = c->limit_ms ? c->limit_ms : E2B_FILES_MS,
                                           .done = ran, .arg = r});
}

/* ---- operations that say what is there ---- */

struct stat_call {
    struct sg_file_stat_done done;
};

static void stat_ran(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct stat_call *c = arg;
    struct sg_file_stat st = {0};
    struct sg_error why = {0};
    const char *name;

    if (!err && !e2b_record(&out, out + len, &name, &st)) {
        e2b_file_nonsense(&why);
        err = &why;
    }
    c->done.fn(c->done.arg, err ? NULL : &st, err);
    sg_error_clear(&why);
    free(c);
}

static int do_stat(struct sg_sandbox *base, const char *path, const struct sg_file_stat_done *done, struct sg_error *err SG_UNUSED)
{
    struct stat_call *c = sg_xcalloc(1, sizeof *c);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);

    c->done = *done;
    e2b_file_run((struct e2b_sandbox *)base, &(struct e2b_file_call){.args = {"stat", hex}, .done = stat_ran, .arg = c});
    return 0;
}

static int do_mkdir(struct sg_sandbox *base, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                    struct sg_error *err SG_UNUSED)
{
    struct stat_call *c = sg_xcalloc(1, sizeof *c);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);
    char octal[16];

    c->done = *done;
    snprintf(octal, sizeof octal, "%o", mode & 0777U);
    e2b_file_run((struct e2b_sandbox *)base, &(struct e2b_file_call){.args = {"mkdir", hex, octal}, .changes = true, .done = stat_ran, .arg = c});
    return 0;
}

/* ---- operations that say nothing ---- */

struct plain_call {
    struct sg_done done;
};

static void plain_ran(void *arg, const char *out SG_UNUSED, size_t len SG_UNUSED, const struct sg_error *err)
{
    struct plain_call *c = arg;

    c->done.fn(c->done.arg, err);
    free(c);
}

static int do_remove(struct sg_sandbox *base, const char *path, bool recursive, const struct sg_condition *only_if,
                     const struct sg_done *done, struct sg_error *err SG_UNUSED)
{
    struct plain_call *c = sg_xcalloc(1, sizeof *c);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);
    sg_cleanup(sg_free_p) char *cond = e2b_condition(only_if);

    c->done = *done;
    e2b_file_run((struct e2b_sandbox *)base, &(struct e2b_file_call){.args = {"remove", hex, recursive ? "1" : "0", cond},
                                                                     .changes = true, .done = plain_ran, .arg = c});
    return 0;
}

static int do_move(struct sg_sandbox *base, const char *from, const char *to, const struct sg_done *done, struct sg_error *err SG_UNUSED)
{
    struct plain_call *c = sg_xcalloc(1, sizeof *c);
    sg_cleanup(sg_free_p) char *a = e2b_hex(from);
    sg_cleanup(sg_free_p) char *b = e2b_hex(to);

    c->done = *done;
    e2b_file_run((struct e2b_sandbox *)base, &(struct e2b_file_call){.args = {"move", a, b}, .changes = true, .done = plain_ran, .arg = c});
    return 0;
}

/* ---- lists ---- */

struct list_call {
    struct sg_file_list_done done;
    size_t max;
};

/* False: it is none. */
static bool read_list(const char *out, size_t len, size_t max, struct sg_file_list *ret)
{
    const char *end = out + len, *name;
    const char *more = e2b_field(&out, end), *cut = more ? e2b_field(&out, end) : NULL;
    size_t size = 0;

    if (!cut)
        return false;
    ret->more = more[0] == '1';
    ret->truncated = cut[0] == '1';
    while (out < end) {
        struct sg_file_stat st = {0};
        if (!e2b_record(&out, end, &name, &st) || ret->n == max)
            return false;
        if (ret->n == size) {
            size = size > 0 ? 2 * size : 64;
            struct sg_file_entry *grown = realloc(ret->entries, size * sizeof *grown);
            if (!grown)
                return false;
            ret->entries = grown;
        }
        ret->entries[ret->n++] = (struct sg_file_entry){.name = sg_xstrdup(name), .stat = st};
    }
    return true;
}

static void list_ran(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct list_call *c = arg;
    struct sg_file_list list = {0};
    struct sg_error why = {0};

    if (!err && !read_list(out, len, c->max, &list)) {
        sg_file_list_finish(&list);
        e2b_file_nonsense(&why);
        err = &why;
    }
    c->done.fn(c->done.arg, err ? NULL : &list, err);
    sg_error_clear(&why);
    free(c);
}

static int do_list(struct sg_sandbox *base, const struct sg_file_list_args *a, const struct sg_file_list_done *done,
                   struct sg_error *err SG_UNUSED)
{
    struct list_call *c = sg_xcalloc(1, sizeof *c);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(a->path);
    sg_cleanup(sg_free_p) char *after = e2b_hex(a->after ? a->after : "");
    char max[24];

    c->done = *done;
    c->max = a->max;
    snprintf(max, sizeof max, "%zu", a->max);
    e2b_file_run((struct e2b_sandbox *)base,
                 &(struct e2b_file_call){.args = {"list", hex, a->recursive ? "1" : "0", after, max}, .done = list_ran, .arg = c});
    return 0;
}

const struct sg_file_ops e2b_file_ops = {
    .get = e2b_get,
    .put = e2b_put,
    .stat = do_stat,
    .list = do_list,
    .mkdir = do_mkdir,
    .remove = do_remove,
    .move = do_move,
    .tree = &e2b_tree_ops,
};
