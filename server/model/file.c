#include "model/file.h"

#include <inttypes.h>
#include <stdio.h>

const char *sg_file_type_name(enum sg_file_type t)
{
    static const char *const names[] = {
        [SG_FILE_REGULAR] = "file", [SG_FILE_DIRECTORY] = "directory", [SG_FILE_SYMLINK] = "symlink",
        [SG_FILE_FIFO] = "fifo",    [SG_FILE_SOCKET] = "socket",       [SG_FILE_DEVICE] = "device",
        [SG_FILE_OTHER] = "other",
    };
    return names[t];
}

bool sg_file_mode_parse(const char *s, uint32_t *ret)
{
    size_t n = strlen(s);
    uint32_t mode = 0;

    if (n == 0 || n > 5 || strspn(s, "01234567") != n)
        return false;
    for (size_t i = 0; i < n; i++)
        mode = mode * 8 + (uint32_t)(s[i] - '0');
    if (mode > 0777)
        return false;
    *ret = mode;
    return true;
}

void sg_file_etag(const struct sg_file_stat *st, char out[SG_ETAG_MAX])
{
    (void)snprintf(out, SG_ETAG_MAX, "\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "\"", st->dev, st->ino,
                   (uint64_t)st->mtime_ns, (uint64_t)st->ctime_ns, st->size);
}

/* Lower-case hex without a leading zero, as "%x" writes it, up to `end`. */
static bool hex_part(const char **p, const char *end, char stop, uint64_t *ret)
{
    const char *s = *p;
    uint64_t v = 0;

    for (; s < end && *s != stop; s++) {
        int digit = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : -1;
        if (digit < 0 || s - *p >= 16 || (v == 0 && s != *p))
            return false;
        v = v << 4 | (unsigned)digit;
    }
    if (s == *p || (stop != '\0' && s == end))
        return false;
    *p = s + (stop != '\0');
    *ret = v;
    return true;
}

bool sg_file_tag_parse(const char *text, size_t len, struct sg_file_tag *ret)
{
    const char *p = text, *end = text + len;
    uint64_t mtime, ctime;

    if (!hex_part(&p, end, '-', &ret->dev) || !hex_part(&p, end, '-', &ret->ino) || !hex_part(&p, end, '-', &mtime) ||
        !hex_part(&p, end, '-', &ctime) || !hex_part(&p, end, '\0', &ret->size))
        return false;
    ret->mtime_ns = (int64_t)mtime;
    ret->ctime_ns = (int64_t)ctime;
    return true;
}

static bool has_tag(const struct sg_condition *c, const struct sg_file_stat *st)
{
    for (unsigned i = 0; i < c->n; i++) {
        const struct sg_file_tag *t = &c->tags[i];
        if (t->dev == st->dev && t->ino == st->ino && t->mtime_ns == st->mtime_ns && t->ctime_ns == st->ctime_ns &&
            t->size == st->size)
            return true;
    }
    return false;
}

bool sg_condition_holds(const struct sg_condition *c, const struct sg_file_stat *st)
{
    switch (c ? c->kind : SG_IF_ALWAYS) {
    case SG_IF_ALWAYS:
        break;
    case SG_IF_EXISTS:
        return st != NULL;
    case SG_IF_ABSENT:
        return st == NULL;
    case SG_IF_MATCHES:
        return st && has_tag(c, st);
    case SG_IF_DIFFERS:
        return !st || !has_tag(c, st);
    }
    return true;
}

void sg_file_list_finish(struct sg_file_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->entries[i].name);
    }
    free(l->entries);
    *l = (struct sg_file_list){0};
}
