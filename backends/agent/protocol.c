/* Encoder and decoder of the agent's wire, shared by both sides: no allocation, no I/O, string.h only. */
#include "backends/agent/protocol.h"

#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif
#ifndef CONFIGFS_MAGIC
#define CONFIGFS_MAGIC 0x62656570
#endif
#ifndef MQUEUE_MAGIC
#define MQUEUE_MAGIC 0x19800202
#endif

/* ---- writing ---- */

struct writer {
    unsigned char *p;
    size_t len, cap;
    bool bad;
};

static void put(struct writer *w, const void *data, size_t len)
{
    if (w->bad || len > w->cap - w->len) {
        w->bad = true;
        return;
    }
    if (len > 0)
        memcpy(w->p + w->len, data, len);
    w->len += len;
}

static void put_u8(struct writer *w, unsigned v)
{
    unsigned char b = (unsigned char)v;
    put(w, &b, sizeof b);
}

static void put_u16(struct writer *w, unsigned v)
{
    uint16_t b = (uint16_t)v;
    put(w, &b, sizeof b);
}

static void put_u32(struct writer *w, uint32_t v)
{
    put(w, &v, sizeof v);
}

static void put_u64(struct writer *w, uint64_t v)
{
    put(w, &v, sizeof v);
}

static void put_str(struct writer *w, const char *s, size_t max)
{
    size_t n = s == NULL ? 0 : strlen(s);
    if (n > max) {
        w->bad = true;
        return;
    }
    put_u32(w, (uint32_t)n);
    put(w, s, n);
    put_u8(w, 0);
}

static void put_stat(struct writer *w, const struct sg_agent_stat *st)
{
    put_u32(w, st->type);
    put_u32(w, st->mode);
    put_u32(w, st->uid);
    put_u32(w, 0);
    put_u64(w, st->size);
    put_u64(w, (uint64_t)st->mtime_ns);
    put_u64(w, (uint64_t)st->ctime_ns);
    put_u64(w, st->ino);
    put_u64(w, st->dev);
}

/* ---- reading ---- */

struct reader {
    const unsigned char *p;
    size_t len;
    bool bad;
};

static const void *take(struct reader *r, size_t len)
{
    if (r->bad || len > r->len) {
        r->bad = true;
        return NULL;
    }
    const void *p = r->p;
    r->p += len;
    r->len -= len;
    return p;
}

static uint32_t take_u32(struct reader *r)
{
    uint32_t v = 0;
    const void *p = take(r, sizeof v);
    if (p != NULL)
        memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t take_u64(struct reader *r)
{
    uint64_t v = 0;
    const void *p = take(r, sizeof v);
    if (p != NULL)
        memcpy(&v, p, sizeof v);
    return v;
}

static const char *take_str(struct reader *r, size_t min, size_t max)
{
    size_t n = take_u32(r);
    if (r->bad || n < min || n > max) {
        r->bad = true;
        return NULL;
    }
    const char *s = take(r, n + 1);
    if (s == NULL || memchr(s, '\0', n + 1) != s + n) {
        r->bad = true;
        return NULL;
    }
    return s;
}

static void take_stat(struct reader *r, struct sg_agent_stat *st)
{
    st->type = take_u32(r);
    st->mode = take_u32(r);
    st->uid = take_u32(r);
    if (take_u32(r) != 0 || (st->type & ~(uint32_t)S_IFMT) != 0 || (st->mode & ~07777U) != 0)
        r->bad = true;
    st->size = take_u64(r);
    st->mtime_ns = (int64_t)take_u64(r);
    st->ctime_ns = (int64_t)take_u64(r);
    st->ino = take_u64(r);
    st->dev = take_u64(r);
}

/* ---- what each type holds ---- */

enum { FIELD_HOW = 1, FIELD_MODE = 2, FIELD_MAX = 4, FIELD_MTIME = 8, FIELD_CONDITION = 16, FIELD_PATH2 = 32 };

/* The members of a file request in the order of the packet: flags how mode max mtime condition path path2. */
static unsigned file_fields(enum sg_agent_type type)
{
    switch (type) {
    case SG_AGENT_OPEN:
        return FIELD_HOW | FIELD_CONDITION;
    case SG_AGENT_COMMIT:
        return FIELD_MODE | FIELD_MTIME | FIELD_CONDITION | FIELD_PATH2;
    case SG_AGENT_LIST:
        return FIELD_MAX | FIELD_PATH2;
    case SG_AGENT_MKDIR:
        return FIELD_MODE;
    case SG_AGENT_RENAME:
    case SG_AGENT_MERGE:
        return FIELD_PATH2;
    case SG_AGENT_REMOVE:
        return FIELD_CONDITION;
    case SG_AGENT_LINK:
        return FIELD_MTIME | FIELD_PATH2;
    case SG_AGENT_ATTRIBUTES:
        return FIELD_MODE | FIELD_MTIME;
    default:
        return 0;
    }
}

static void put_condition(struct writer *w, const struct sg_agent_condition *c)
{
    put_u32(w, c->kind);
    put_u32(w, c->n);
    for (uint32_t i = 0; i < c->n && i < SG_AGENT_TAGS_MAX; i++) {
        put_u64(w, c->tags[i].dev);
        put_u64(w, c->tags[i].ino);
        put_u64(w, (uint64_t)c->tags[i].mtime_ns);
        put_u64(w, (uint64_t)c->tags[i].ctime_ns);
        put_u64(w, c->tags[i].size);
    }
}

static void take_condition(struct reader *r, struct sg_agent_condition *c)
{
    c->kind = take_u32(r);
    c->n = take_u32(r);
    if (c->kind > SG_AGENT_DIFFERS || c->n > SG_AGENT_TAGS_MAX)
        r->bad = true;
    for (uint32_t i = 0; i < c->n && !r->bad; i++) {
        c->tags[i].dev = take_u64(r);
        c->tags[i].ino = take_u64(r);
        c->tags[i].mtime_ns = (int64_t)take_u64(r);
        c->tags[i].ctime_ns = (int64_t)take_u64(r);
        c->tags[i].size = take_u64(r);
    }
}

static void put_file(struct writer *w, const struct sg_agent_msg *m)
{
    unsigned f = file_fields(m->type);
    put_u32(w, m->u.file.flags);
    if (f & FIELD_HOW)
        put_u32(w, m->u.file.how);
    if (f & FIELD_MODE)
        put_u32(w, m->u.file.mode);
    if (f & FIELD_MAX) {
        put_u32(w, m->u.file.max_entries);
        put_u64(w, m->u.file.max_bytes);
    }
    if (f & FIELD_MTIME)
        put_u64(w, (uint64_t)m->u.file.mtime_ns);
    if (f & FIELD_CONDITION)
        put_condition(w, &m->u.file.condition);
    put_str(w, m->u.file.path, SG_AGENT_PATH_MAX);
    if (f & FIELD_PATH2)
        put_str(w, m->u.file.path2, SG_AGENT_PATH_MAX);
}

static void take_file(struct reader *r, struct sg_agent_msg *m)
{
    unsigned f = file_fields(m->type);
    m->u.file.flags = take_u32(r);
    if (f & FIELD_HOW)
        m->u.file.how = take_u32(r);
    if (f & FIELD_MODE)
        m->u.file.mode = take_u32(r);
    if (f & FIELD_MAX) {
        m->u.file.max_entries = take_u32(r);
        m->u.file.max_bytes = take_u64(r);
    }
    if (f & FIELD_MTIME)
        m->u.file.mtime_ns = (int64_t)take_u64(r);
    if (f & FIELD_CONDITION)
        take_condition(r, &m->u.file.condition);
    m->u.file.path = take_str(r, 1, SG_AGENT_PATH_MAX);
    if (f & FIELD_PATH2) /* the temp name of a COMMIT and what comes before a LIST may be empty, a new name may not */
        m->u.file.path2 = take_str(r, m->type == SG_AGENT_COMMIT || m->type == SG_AGENT_LIST ? 0 : 1, SG_AGENT_PATH_MAX);
}

static uint32_t file_flags(enum sg_agent_type type)
{
    switch (type) {
    case SG_AGENT_COMMIT:
        return SG_AGENT_SET_MODE | SG_AGENT_COMMIT_NEW | SG_AGENT_COMMIT_APPEND | SG_AGENT_SET_MTIME;
    case SG_AGENT_ATTRIBUTES:
        return SG_AGENT_SET_MODE | SG_AGENT_SET_MTIME;
    case SG_AGENT_LINK:
        return SG_AGENT_SYMBOLIC | SG_AGENT_SET_MTIME;
    case SG_AGENT_MKDIR:
        return SG_AGENT_STAGE;
    case SG_AGENT_STAT:
        return SG_AGENT_RESOLVE;
    case SG_AGENT_LIST:
    case SG_AGENT_REMOVE:
        return SG_AGENT_RECURSIVE;
    default:
        return 0;
    }
}

static bool file_valid(const struct sg_agent_msg *m)
{
    if ((m->u.file.flags & ~(file_flags(m->type) | SG_AGENT_NO_LINKS)) != 0 || (m->u.file.mode & ~07777U) != 0)
        return false;
    if (m->u.file.condition.kind > SG_AGENT_DIFFERS || m->u.file.condition.n > SG_AGENT_TAGS_MAX)
        return false;
    if (m->type == SG_AGENT_RENAME || m->type == SG_AGENT_LINK || m->type == SG_AGENT_MERGE)
        return m->u.file.path2 != NULL && m->u.file.path2[0] != '\0';
    if (m->type == SG_AGENT_OPEN)
        return m->u.file.how >= SG_AGENT_OPEN_READ && m->u.file.how <= SG_AGENT_OPEN_CONTENT;
    if (m->type == SG_AGENT_LIST)
        return m->u.file.max_bytes <= SG_AGENT_LIST_BYTES_MAX && m->u.file.max_entries <= SG_AGENT_LIST_MAX;
    return true;
}

static bool tty_size_valid(uint32_t rows, uint32_t cols)
{
    return rows >= 1 && rows <= SG_AGENT_TTY_SIZE_MAX && cols >= 1 && cols <= SG_AGENT_TTY_SIZE_MAX;
}

static bool spawn_valid(const struct sg_agent_msg *m)
{
    uint32_t f = m->u.spawn.flags;
    if ((f & ~SG_AGENT_SPAWN_FLAGS) != 0 || m->u.spawn.argc < 1 || m->u.spawn.argc > SG_AGENT_ARGC_MAX)
        return false;
    if (m->u.spawn.envc > SG_AGENT_ENVC_MAX || m->u.spawn.len > SG_AGENT_SPAWN_BYTES_MAX)
        return false;
    bool tty = (f & SG_AGENT_SPAWN_TTY) != 0;
    bool sized = tty ? tty_size_valid(m->u.spawn.rows, m->u.spawn.cols) : m->u.spawn.rows == 0 && m->u.spawn.cols == 0;
    if (!sized || (tty && (f & SG_AGENT_SPAWN_STDIN)))
        return false;
    unsigned fixed = (tty ? 0U : 2U) + ((f & SG_AGENT_SPAWN_STDIN) ? 1U : 0U) + ((f & SG_AGENT_SPAWN_BLOB) ? 1U : 0U) +
                     ((f & SG_AGENT_SPAWN_GROUP) ? 2U : 0U);
    return m->nfds >= fixed && m->nfds - fixed <= SG_AGENT_TASKS_MAX;
}

/* The number of descriptors each type travels with, and the values that have a range. */
static bool valid(const struct sg_agent_msg *m)
{
    switch (m->type) {
    case SG_AGENT_SPAWN:
        return spawn_valid(m);
    case SG_AGENT_COMMIT:
    case SG_AGENT_LIST:
        return m->nfds == 1 && file_valid(m);
    case SG_AGENT_OPEN:
    case SG_AGENT_STAT:
    case SG_AGENT_MKDIR:
    case SG_AGENT_RENAME:
    case SG_AGENT_REMOVE:
    case SG_AGENT_LINK:
    case SG_AGENT_ATTRIBUTES:
    case SG_AGENT_MERGE:
        return m->nfds == 0 && file_valid(m);
    case SG_AGENT_SIGNAL:
        return m->nfds == 0 && m->u.signal.signo >= 1 && m->u.signal.signo <= 64;
    case SG_AGENT_EXITED:
        return m->nfds == 0 && m->u.exited.signal <= 64 && m->u.exited.status <= 255;
    case SG_AGENT_SPAWN_FAILED:
        return m->nfds == 0 && m->u.failed.stage >= SG_AGENT_STAGE_FORK &&
               m->u.failed.stage <= SG_AGENT_STAGE_TTY;
    case SG_AGENT_RESIZE:
        return m->nfds == 0 && m->u.resize.command != 0 && tty_size_valid(m->u.resize.rows, m->u.resize.cols);
    case SG_AGENT_LISTEN:
        return m->nfds == 0 && m->u.listen.port >= 1 && m->u.listen.port <= 65535;
    case SG_AGENT_TERMINAL:
        return m->nfds == 1;
    case SG_AGENT_DONE:
        return m->nfds <= 1 && (m->u.done.flags & ~SG_AGENT_DONE_FLAGS) == 0 &&
               (m->nfds == 0 || m->u.done.error == 0);
    default:
        return m->nfds == 0;
    }
}

static void put_payload(struct writer *w, const struct sg_agent_msg *m)
{
    switch (m->type) {
    case SG_AGENT_HELLO:
        put_u32(w, m->u.hello.pid);
        put_u32(w, m->u.hello.isolation);
        put_u32(w, m->u.hello.uid);
        put_u32(w, m->u.hello.gid);
        put_u32(w, m->u.hello.command_uid);
        put_u32(w, m->u.hello.command_gid);
        put_u32(w, m->u.hello.flags);
        put_u64(w, m->u.hello.caps);
        put_u64(w, m->u.hello.netns_cookie);
        break;
    case SG_AGENT_SPAWN:
        put_u32(w, m->u.spawn.flags);
        put_u32(w, m->u.spawn.argc);
        put_u32(w, m->u.spawn.envc);
        put_u32(w, m->u.spawn.rows);
        put_u32(w, m->u.spawn.cols);
        put_u32(w, m->u.spawn.len);
        if (!(m->u.spawn.flags & SG_AGENT_SPAWN_BLOB))
            put(w, m->u.spawn.strings, m->u.spawn.len);
        break;
    case SG_AGENT_STARTED:
        put_u32(w, m->u.started.pid);
        break;
    case SG_AGENT_SPAWN_FAILED:
        put_u32(w, m->u.failed.stage);
        put_u32(w, m->u.failed.error);
        break;
    case SG_AGENT_EXITED:
        put_u32(w, m->u.exited.status);
        put_u32(w, m->u.exited.signal);
        break;
    case SG_AGENT_SIGNAL:
        put_u32(w, m->u.signal.signo);
        break;
    case SG_AGENT_SOCKET:
        put_u32(w, m->u.socket.family);
        put_u32(w, m->u.socket.port);
        break;
    case SG_AGENT_RESIZE:
        put_u64(w, m->u.resize.command);
        put_u32(w, m->u.resize.rows);
        put_u32(w, m->u.resize.cols);
        break;
    case SG_AGENT_LISTEN:
        put_u32(w, m->u.listen.port);
        break;
    case SG_AGENT_DONE:
        put_u32(w, m->u.done.error);
        put_u32(w, m->u.done.flags);
        put_u64(w, m->u.done.size);
        put_stat(w, &m->u.done.stat);
        put_str(w, m->u.done.text, SG_AGENT_TEXT_MAX);
        break;
    case SG_AGENT_TERMINAL:
    case SG_AGENT_KILL:
    case SG_AGENT_ACCEPT:
        break;
    default:
        put_file(w, m);
        break;
    }
}

size_t sg_agent_encode(const struct sg_agent_msg *m, void *buf, size_t cap)
{
    if (cap > SG_AGENT_PACKET_MAX)
        cap = SG_AGENT_PACKET_MAX;
    if (!valid(m))
        return 0;
    struct writer w = {.p = buf, .cap = cap};
    put_u8(&w, SG_AGENT_VERSION);
    put_u8(&w, m->type);
    put_u16(&w, m->nfds);
    put_u32(&w, 0);
    put_u64(&w, m->id);
    put_payload(&w, m);
    if (w.bad)
        return 0;
    uint32_t length = (uint32_t)(w.len - SG_AGENT_HEADER);
    memcpy(w.p + 4, &length, sizeof length);
    return w.len;
}

static bool sent_by(enum sg_agent_side from, unsigned type)
{
    if (from == SG_AGENT_FROM_SERVER)
        return type >= SG_AGENT_SPAWN && type <= SG_AGENT_ACCEPT;
    return type >= SG_AGENT_HELLO && type <= SG_AGENT_TERMINAL;
}

static void take_payload(struct reader *r, struct sg_agent_msg *m)
{
    switch (m->type) {
    case SG_AGENT_HELLO:
        m->u.hello.pid = take_u32(r);
        m->u.hello.isolation = take_u32(r);
        m->u.hello.uid = take_u32(r);
        m->u.hello.gid = take_u32(r);
        m->u.hello.command_uid = take_u32(r);
        m->u.hello.command_gid = take_u32(r);
        m->u.hello.flags = take_u32(r);
        m->u.hello.caps = take_u64(r);
        m->u.hello.netns_cookie = take_u64(r);
        break;
    case SG_AGENT_SPAWN:
        m->u.spawn.flags = take_u32(r);
        m->u.spawn.argc = take_u32(r);
        m->u.spawn.envc = take_u32(r);
        m->u.spawn.rows = take_u32(r);
        m->u.spawn.cols = take_u32(r);
        m->u.spawn.len = take_u32(r);
        if (!(m->u.spawn.flags & SG_AGENT_SPAWN_BLOB))
            m->u.spawn.strings = take(r, m->u.spawn.len);
        break;
    case SG_AGENT_STARTED:
        m->u.started.pid = take_u32(r);
        break;
    case SG_AGENT_SPAWN_FAILED:
        m->u.failed.stage = take_u32(r);
        m->u.failed.error = take_u32(r);
        break;
    case SG_AGENT_EXITED:
        m->u.exited.status = take_u32(r);
        m->u.exited.signal = take_u32(r);
        break;
    case SG_AGENT_SIGNAL:
        m->u.signal.signo = take_u32(r);
        break;
    case SG_AGENT_SOCKET:
        m->u.socket.family = take_u32(r);
        m->u.socket.port = take_u32(r);
        break;
    case SG_AGENT_RESIZE:
        m->u.resize.command = take_u64(r);
        m->u.resize.rows = take_u32(r);
        m->u.resize.cols = take_u32(r);
        break;
    case SG_AGENT_LISTEN:
        m->u.listen.port = take_u32(r);
        break;
    case SG_AGENT_DONE:
        m->u.done.error = take_u32(r);
        m->u.done.flags = take_u32(r);
        m->u.done.size = take_u64(r);
        take_stat(r, &m->u.done.stat);
        m->u.done.text = take_str(r, 0, SG_AGENT_TEXT_MAX);
        break;
    case SG_AGENT_TERMINAL:
    case SG_AGENT_KILL:
    case SG_AGENT_ACCEPT:
        break;
    default:
        take_file(r, m);
        break;
    }
}

bool sg_agent_other_version(const void *buf, size_t len)
{
    const unsigned char *p = buf;
    return len >= SG_AGENT_HEADER && p[0] != SG_AGENT_VERSION && p[1] == SG_AGENT_HELLO;
}

int sg_agent_decode(const void *buf, size_t len, unsigned nfds, enum sg_agent_side from,
                    struct sg_agent_msg *m)
{
    memset(m, 0, sizeof *m);
    const unsigned char *p = buf;
    if (len < SG_AGENT_HEADER || len > SG_AGENT_PACKET_MAX || p[0] != SG_AGENT_VERSION ||
        !sent_by(from, p[1]))
        return -1;
    uint16_t count;
    uint32_t length;
    memcpy(&count, p + 2, sizeof count);
    memcpy(&length, p + 4, sizeof length);
    memcpy(&m->id, p + 8, sizeof m->id);
    if (length != len - SG_AGENT_HEADER || count != nfds)
        return -1;
    m->type = (enum sg_agent_type)p[1];
    m->nfds = nfds;
    if ((m->id == 0) != (m->type == SG_AGENT_HELLO))
        return -1;
    struct reader r = {.p = p + SG_AGENT_HEADER, .len = length};
    take_payload(&r, m);
    return !r.bad && r.len == 0 && valid(m) ? 0 : -1;
}

int sg_agent_spawn_split(const char *strings, size_t len, uint32_t argc, uint32_t envc, const char **cwd,
                         char **argv, char **envp)
{
    size_t want = (size_t)1 + argc + envc;
    const char *p = strings, *end = strings + len;
    for (size_t i = 0; i < want; i++) {
        const char *nul = p == end ? NULL : memchr(p, '\0', (size_t)(end - p));
        if (nul == NULL)
            return -1;
        char *s = (char *)(uintptr_t)p; /* exec wants char *const *, nobody writes */
        if (i == 0)
            *cwd = p;
        else if (i <= argc)
            argv[i - 1] = s;
        else
            envp[i - 1 - argc] = s;
        p = nul + 1;
    }
    argv[argc] = NULL;
    envp[envc] = NULL;
    return p == end ? 0 : -1;
}

int sg_agent_record_next(const char **p, size_t *len, struct sg_agent_record *rec, const char **name,
                         const char **target)
{
    if (*len == 0)
        return 0;
    if (*len < sizeof *rec)
        return -1;
    memcpy(rec, *p, sizeof *rec);
    size_t rest = *len - sizeof *rec;
    if (rec->name_len < 1 || rec->name_len > SG_AGENT_PATH_MAX || rec->target_len > SG_AGENT_TARGET_MAX ||
        (size_t)rec->name_len + rec->target_len > rest)
        return -1;
    *name = *p + sizeof *rec;
    *target = *name + rec->name_len;
    *p = *target + rec->target_len;
    *len = rest - rec->name_len - rec->target_len;
    return memchr(*name, '\0', rec->name_len + rec->target_len) == NULL ? 1 : -1;
}

bool sg_agent_fs_refused(unsigned long f_type)
{
    static const unsigned long refused[] = {
        PROC_SUPER_MAGIC,   SYSFS_MAGIC,        CGROUP_SUPER_MAGIC,  CGROUP2_SUPER_MAGIC, FUSE_SUPER_MAGIC,
        DEVPTS_SUPER_MAGIC, DEBUGFS_MAGIC,      TRACEFS_MAGIC,       SECURITYFS_MAGIC,    BPF_FS_MAGIC,
        EFIVARFS_MAGIC,     CONFIGFS_MAGIC,     MQUEUE_MAGIC,        NSFS_MAGIC,          SOCKFS_MAGIC,
        PIPEFS_MAGIC,       AUTOFS_SUPER_MAGIC, ANON_INODE_FS_MAGIC, SELINUX_MAGIC,       SMACK_MAGIC,
        BINFMTFS_MAGIC,
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (f_type == refused[i])
            return true;
    return false;
}
