/* Lists: the sandbox writes records into a memfd of a fixed size, which is read, checked and sorted here. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define INLINE_BYTES ((uint64_t)64 * 1024) /* more than this is a worker's to sort */

struct list_op {
    struct sg_call call;
    struct sg_agent *agent;
    struct sg_file_list_done done;
    struct sg_work work;
    int memfd;
    uint64_t size;
    size_t max;
    bool truncated, more;
};

static void op_free(struct list_op *op)
{
    sg_close(op->memfd);
    sg_agent_unref(op->agent);
    free(op);
}

/* A private copy: the sandbox may go on writing into the memfd. */
static char *read_records(struct list_op *op, struct sg_error *err)
{
    char *data = malloc(op->size + 1);
    if (data == NULL) {
        sg_error_set(err, SG_NO_MEMORY, "no memory for a list of %llu bytes", (unsigned long long)op->size);
        return NULL;
    }
    for (size_t at = 0; at < op->size;) {
        ssize_t n = pread(op->memfd, data + at, op->size - at, (off_t)at);
        if (n <= 0) {
            sg_error_sys(err, SG_INTERNAL, n < 0 ? errno : EIO, "cannot read a list");
            free(data);
            return NULL;
        }
        at += (size_t)n;
    }
    return data;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sg_file_entry *)a)->name, ((const struct sg_file_entry *)b)->name);
}

static int count(const char *p, size_t len, size_t *n)
{
    struct sg_agent_record rec;
    const char *name, *target;
    int r;
    for (*n = 0; (r = sg_agent_record_next(&p, &len, &rec, &name, &target)) == 1; ++*n)
        ;
    return r;
}

static int decode(struct list_op *op, const char *p, size_t len, struct sg_file_list *l, struct sg_error *err)
{
    struct sg_agent_record rec;
    const char *name, *target;
    size_t n;
    if (count(p, len, &n) < 0 || n > op->max || (n == 0 && op->more))
        return sg_error_set(err, SG_INTERNAL, "the sandbox gave a list that cannot be read");
    l->entries = calloc(n + 1, sizeof *l->entries);
    if (l->entries == NULL)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a list of %zu entries", n);
    while (l->n < n && sg_agent_record_next(&p, &len, &rec, &name, &target) == 1) {
        struct sg_file_entry *e = &l->entries[l->n++];
        e->name = sg_xstrndup(name, rec.name_len);
        sg_agent_stat_from(&e->stat, &rec.stat, target, rec.target_len);
    }
    l->truncated = op->truncated;
    l->more = op->more;
    qsort(l->entries, l->n, sizeof *l->entries, by_name);
    return 0;
}

static void finish(struct list_op *op)
{
    struct sg_file_list l = {0};
    struct sg_error err = {0};
    char *data = read_records(op, &err);
    int r = data == NULL ? -1 : decode(op, data, op->size, &l, &err);
    free(data);
    if (r == 0) {
        op->done.fn(op->done.arg, &l, NULL);
    } else {
        sg_file_list_finish(&l);
        op->done.fn(op->done.arg, NULL, &err);
    }
    sg_error_clear(&err);
    op_free(op);
}

static void finish_work(struct sg_work *w)
{
    finish(sg_container_of(w, struct list_op, work));
}

static int answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct list_op *op = sg_container_of(c, struct list_op, call);
    struct sg_error e = {0};
    bool wrong = false;
    sg_close(fd);
    int r = sg_agent_answer_error(m, err, &e) ? -1 : 0;
    if (r == 0 && m->u.done.size > SG_AGENT_LIST_BYTES_MAX) {
        wrong = true;
        r = sg_error_set(&e, SG_SANDBOX_LOST, "the agent broke the protocol");
    }
    if (r == 0) {
        op->size = m->u.done.size;
        op->truncated = m->u.done.flags & SG_AGENT_DONE_TRUNCATED;
        op->more = m->u.done.flags & SG_AGENT_DONE_MORE;
        if (op->size <= INLINE_BYTES) {
            finish(op);
            return 0;
        }
        op->work.run = finish_work;
        r = sg_workq_submit(op->agent->workq, &op->work, &e);
    }
    if (r < 0) {
        op->done.fn(op->done.arg, NULL, &e);
        op_free(op);
    }
    sg_error_clear(&e);
    return wrong ? -1 : 0;
}

/* Its size is its cap; pages appear as they are written. */
static int make_memfd(void)
{
    int fd = memfd_create("sandgate-list", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, SG_AGENT_LIST_BYTES_MAX) < 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0))
        fd = sg_close(fd);
    return fd;
}

int sg_agent_list(struct sg_agent *a, const struct sg_file_list_args *args, const struct sg_file_list_done *done,
                  struct sg_error *err)
{
    return sg_agent_list_links(a, args, 0, done, err);
}

int sg_agent_list_links(struct sg_agent *a, const struct sg_file_list_args *args, uint32_t links,
                        const struct sg_file_list_done *done, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *full = sg_agent_path(a, args->path, err);
    if (full == NULL)
        return -1;
    if (args->after != NULL && strlen(args->after) > SG_AGENT_PATH_MAX)
        return sg_error_field(err, SG_PATH_REFUSED, "after", "the name is too long");
    struct list_op *op = sg_xcalloc(1, sizeof *op);
    op->agent = sg_agent_ref(a);
    op->call.answer = answer;
    op->call.tree = true;
    op->done = *done;
    op->max = args->max < SG_AGENT_LIST_MAX ? args->max : SG_AGENT_LIST_MAX;
    op->memfd = make_memfd();
    struct sg_agent_msg m = {.type = SG_AGENT_LIST, .nfds = 1};
    m.u.file.path = full;
    m.u.file.path2 = args->after != NULL ? args->after : "";
    m.u.file.flags = links | (args->recursive ? SG_AGENT_RECURSIVE : 0);
    m.u.file.max_entries = (uint32_t)op->max;
    m.u.file.max_bytes = SG_AGENT_LIST_BYTES_MAX;
    int r = op->memfd < 0 ? sg_error_sys(err, SG_OVERLOADED, errno, "cannot make room for a list")
                          : sg_agent_call(a, &op->call, &m, &op->memfd, err);
    if (r < 0)
        op_free(op);
    return r;
}
