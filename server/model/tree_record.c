#include "model/tree_record.h"

#include "base/str.h"

#define FIELDS 7U

int sg_tree_record_write(const struct sg_tree_record *r, struct sg_buf *b)
{
    struct sg_buf one;
    char text[SG_TREE_RECORD_MAX];

    sg_buf_init_over(&one, text, sizeof text);
    int rc = sg_buf_addf(&one, "%c%c%s%c%u%c%lld%c%u%c%llu%c%s%c", r->kind, 0, r->name, 0, r->mode & 0777U, 0, (long long)r->mtime_ns, 0, r->uid, 0,
                         (unsigned long long)r->size, 0, r->target, 0);
    return rc < 0 ? -1 : sg_buf_add(b, one.data, one.len);
}

void sg_tree_walk_finish(struct sg_tree_walk *w)
{
    free(w->last);
    *w = (struct sg_tree_walk){0};
}

/* Not empty, not absolute, and no part of it empty, "." or "..". */
static bool clean(const char *name)
{
    for (const char *p = name;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (*p == '\0')
            return strlen(name) <= SG_TREE_NAME_MAX;
    }
}

/* In byte order of the parts: as if '/' came before all other bytes. */
static bool comes_after(const char *name, const char *before)
{
    size_t i = 0;

    while (name[i] == before[i] && name[i] != '\0')
        i++;
    unsigned char a = name[i] == '/' ? 0 : (unsigned char)name[i], b = before[i] == '/' ? 0 : (unsigned char)before[i];
    return name[i] != '\0' && (before[i] == '\0' || a > b);
}

static bool follows(struct sg_tree_walk *w, const struct sg_tree_record *r)
{
    const char *slash = strrchr(r->name, '/');
    size_t parent = slash ? (size_t)(slash - r->name) : 0;

    if (w->last && !comes_after(r->name, w->last))
        return false;
    if (parent > w->open || (parent > 0 && (memcmp(r->name, w->last, parent) != 0 || (parent < w->open && w->last[parent] != '/'))))
        return false;
    free(w->last);
    w->last = sg_xstrdup(r->name);
    w->open = r->kind == 'd' ? strlen(r->name) : parent;
    return true;
}

static bool number(const char *text, int64_t min, int64_t max, int64_t *ret)
{
    return sg_parse_int(text, min, max, ret);
}

static bool parse(const char *const fields[FIELDS], struct sg_tree_record *ret)
{
    int64_t mode, mtime, uid, size;

    if (fields[0][0] == '\0' || fields[0][1] != '\0' || !number(fields[2], 0, 0777, &mode) || !number(fields[3], INT64_MIN, INT64_MAX, &mtime) ||
        !number(fields[4], 0, UINT32_MAX, &uid) || !number(fields[5], 0, INT64_MAX, &size))
        return false;
    *ret = (struct sg_tree_record){.kind = fields[0][0], .name = fields[1], .target = fields[6], .mode = (uint32_t)mode, .uid = (uint32_t)uid,
                                   .mtime_ns = mtime, .size = (uint64_t)size};
    return true;
}

static bool sound(const struct sg_tree_record *r)
{
    bool link = r->kind == 'l';

    if (r->kind == 'e')
        return r->name[0] == '\0' && r->size == 0;
    return (link || r->kind == 'f' || r->kind == 'd') && clean(r->name) && (r->target[0] != '\0') == link && strlen(r->target) <= SG_TREE_TARGET_MAX &&
           (r->kind == 'f' || r->size == 0);
}

ssize_t sg_tree_record_read(const char *data, size_t len, struct sg_tree_walk *w, struct sg_tree_record *ret, struct sg_error *err)
{
    const char *fields[FIELDS];
    size_t at = 0;

    for (unsigned i = 0; i < FIELDS; i++) {
        const char *nul = at < len ? memchr(data + at, '\0', len - at) : NULL;
        if (!nul && len < SG_TREE_RECORD_MAX)
            return 0;
        if (!nul)
            return sg_error_set(err, SG_PROVIDER_FAILED, "what the sandbox sends is no directory");
        fields[i] = data + at;
        at = (size_t)(nul - data) + 1;
    }
    if (!parse(fields, ret) || !sound(ret) || (ret->kind != 'e' && !follows(w, ret)))
        return sg_error_set(err, SG_PROVIDER_FAILED, "what the sandbox sends is no walk over a directory");
    return (ssize_t)at;
}
