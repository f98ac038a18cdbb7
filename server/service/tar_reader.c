#include "service/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "service/tar_locale.h"

#define PATH_MAX_BYTES 4000U

struct sg_tar_reader {
    struct sg_tar_limits limits;
    sg_tar_pull *pull;
    void *arg;
    struct sg_error pull_error; /* of the last pull */
    struct archive *archive;
    locale_t locale;
    uint64_t entries, bytes;
    uint64_t size, offset; /* of the file at hand: its size, and where its last piece ended */
    bool in_file;
    char *path, *target;
};

static SG_PRINTF(4, 5) int refuse(struct sg_error *err, enum sg_code code, const char *reason, const char *fmt, ...)
{
    char text[sizeof err->message];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (code == SG_INVALID_REQUEST)
        sg_error_field(err, code, "body", "%s", text);
    else
        sg_error_set(err, code, "%s", text);
    return sg_error_reason(err, reason);
}

/* ---- the library's side ---- */

static la_ssize_t read_more(struct archive *a, void *arg, const void **data)
{
    struct sg_tar_reader *t = arg;
    ssize_t n = t->pull(t->arg, data, &t->pull_error);

    if (n < 0) {
        archive_set_error(a, EIO, "%s", t->pull_error.message);
        return -1;
    }
    return n;
}

/* What the library says about the last call. */
static int library_error(struct sg_tar_reader *t, struct sg_error *err)
{
    const char *text = archive_error_string(t->archive);

    if (t->pull_error.code != SG_OK) {
        sg_error_copy(err, &t->pull_error);
        return -1;
    }
    return refuse(err, SG_INVALID_REQUEST, "malformed_archive", "is not an archive that can be read: %s", text ? text : "unknown");
}

int sg_tar_reader_new(const struct sg_tar_limits *limits, sg_tar_pull *pull, void *arg, struct sg_tar_reader **ret,
                      struct sg_error *err)
{
    struct sg_tar_reader *t = sg_xcalloc(1, sizeof *t);

    *t = (struct sg_tar_reader){.limits = *limits, .pull = pull, .arg = arg, .archive = archive_read_new()};
    t->locale = sg_tar_locale_new();
    locale_t old = sg_tar_locale_enter(t->locale);
    /* Where the library lacks a codec of its own it would start a program: then the format is not known here. */
    int rc = !t->archive ? ARCHIVE_FATAL : archive_read_support_format_tar(t->archive);
    if (rc == ARCHIVE_OK)
        rc = archive_read_support_filter_gzip(t->archive);
    if (rc == ARCHIVE_OK)
        rc = archive_read_support_filter_zstd(t->archive);
    bool supported = rc == ARCHIVE_OK;
    if (supported)
        rc = archive_read_open(t->archive, t, NULL, read_more, NULL);
    sg_tar_locale_leave(old);
    if (rc == ARCHIVE_OK) {
        *ret = t;
        return 0;
    }
    rc = supported ? library_error(t, err) : sg_error_set(err, SG_NO_MEMORY, "archives cannot be read here");
    sg_tar_reader_free(t);
    return rc;
}

struct sg_tar_reader *sg_tar_reader_free(struct sg_tar_reader *t)
{
    if (t) {
        archive_read_free(t->archive);
        sg_tar_locale_free(t->locale);
        sg_error_clear(&t->pull_error);
        free(t->path);
        free(t->target);
        free(t);
    }
    return NULL;
}

/* ---- limits ---- */

static int check_expansion(struct sg_tar_reader *t, uint64_t unpacked, struct sg_error *err)
{
    if (unpacked <= t->limits.unpacked)
        return 0;
    return refuse(err, SG_PAYLOAD_TOO_LARGE, "expands_too_much", "the archive unpacks to too many times its size");
}

static int check_stream(struct sg_tar_reader *t, struct sg_error *err)
{
    int64_t unpacked = archive_filter_bytes(t->archive, 0);

    return check_expansion(t, unpacked > 0 ? (uint64_t)unpacked : 0, err);
}

static int count_entry(struct sg_tar_reader *t, uint64_t size, struct sg_error *err)
{
    if (++t->entries > t->limits.entries)
        return refuse(err, SG_PAYLOAD_TOO_LARGE, "too_many_entries", "the archive has more than %llu entries",
                      (unsigned long long)t->limits.entries);
    if (size > t->limits.bytes || t->bytes > t->limits.bytes - size)
        return refuse(err, SG_PAYLOAD_TOO_LARGE, "too_many_bytes", "the archive unpacks to more than %llu bytes",
                      (unsigned long long)t->limits.bytes);
    t->bytes += size;
    return 0;
}

/* ---- names ---- */

/* Copies path to *ret without "." and doubled slashes. -1: absolute, with "..", or too long. */
static int clean_path(const char *path, char **ret)
{
    size_t len = strlen(path), n = 0;

    if (path[0] == '/' || len > PATH_MAX_BYTES)
        return -1;
    char *out = sg_xcalloc(len + 1, 1);
    for (const char *p = path; *p;) {
        size_t part = strcspn(p, "/");
        if (part == 2 && p[0] == '.' && p[1] == '.') {
            free(out);
            return -1;
        }
        if (part > 0 && !(part == 1 && p[0] == '.')) {
            if (n > 0)
                out[n++] = '/';
            memcpy(out + n, p, part);
            n += part;
        }
        p += part + (p[part] == '/');
    }
    out[n] = '\0';
    free(*ret);
    *ret = out;
    return 0;
}

/* Does a link at path that says text stay below the top? Counted by names, as if nothing on the way were a link itself: the
 * links of the archive that are on the way have been judged likewise. */
static bool stays_inside(const char *path, const char *text)
{
    size_t depth = 0;

    if (text[0] == '/')
        return false;
    for (const char *p = path; *p; p++)
        depth += *p == '/';
    for (const char *p = text; *p;) {
        size_t part = strcspn(p, "/");
        if (part == 2 && p[0] == '.' && p[1] == '.') {
            if (depth == 0)
                return false;
            depth--;
        } else if (part > 0 && !(part == 1 && p[0] == '.')) {
            depth++;
        }
        p += part + (p[part] == '/');
    }
    return true;
}

static int read_link(struct sg_tar_reader *t, struct archive_entry *e, struct sg_tar_entry *ret, struct sg_error *err)
{
    const char *hard = archive_entry_hardlink(e), *soft = archive_entry_symlink(e);

    if (hard) {
        ret->kind = SG_TAR_HARDLINK;
        if (clean_path(hard, &t->target) < 0 || t->target[0] == '\0')
            return refuse(err, SG_INVALID_REQUEST, "unsafe_link", "has a link to outside of the archive: %s", t->path);
    } else {
        ret->kind = SG_TAR_SYMLINK;
        if (!soft || !*soft || strlen(soft) > PATH_MAX_BYTES)
            return refuse(err, SG_INVALID_REQUEST, "malformed_archive", "has a symbolic link without a usable text: %s", t->path);
        if (!t->limits.outside_links && !stays_inside(t->path, soft))
            return refuse(err, SG_INVALID_REQUEST, "unsafe_link", "has a symbolic link that points outside of the directory: %s", t->path);
        free(t->target);
        t->target = sg_xstrdup(soft);
    }
    ret->target = t->target;
    return 0;
}

/* ---- entries ---- */

static int64_t mtime_of(struct archive_entry *e)
{
    int64_t s = archive_entry_mtime(e);

    if (!archive_entry_mtime_is_set(e))
        return sg_wall_us() * 1000;
    if (s > INT64_MAX / 1000000000 - 1)
        return INT64_MAX;
    if (s < INT64_MIN / 1000000000 + 1)
        return INT64_MIN;
    return s * 1000000000 + archive_entry_mtime_nsec(e);
}

static int read_entry(struct sg_tar_reader *t, struct archive_entry *e, struct sg_tar_entry *ret, struct sg_error *err)
{
    const char *path = archive_entry_pathname(e);

    if (!path || !*path)
        return refuse(err, SG_INVALID_REQUEST, "malformed_archive", "has an entry without a name");
    if (clean_path(path, &t->path) < 0)
        return refuse(err, SG_INVALID_REQUEST, "unsafe_path", "has a path that is absolute, too long or goes through \"..\": %s", path);
    *ret = (struct sg_tar_entry){.path = t->path, .mode = (uint32_t)archive_entry_perm(e) & 0777, .mtime_ns = mtime_of(e)};
    unsigned type = (unsigned)archive_entry_filetype(e);
    if (archive_entry_hardlink(e) || type == AE_IFLNK) {
        if (count_entry(t, 0, err) < 0 || read_link(t, e, ret, err) < 0)
            return -1;
    } else if (type == AE_IFDIR) {
        ret->kind = SG_TAR_DIRECTORY;
        return count_entry(t, 0, err) < 0 ? -1 : 1;
    } else if (type == AE_IFREG) {
        int64_t size = archive_entry_size(e);
        if (size < 0)
            return refuse(err, SG_INVALID_REQUEST, "malformed_archive", "has a file of no size: %s", t->path);
        ret->kind = SG_TAR_FILE;
        ret->size = t->size = (uint64_t)size;
        t->in_file = true;
        t->offset = 0;
        if (count_entry(t, ret->size, err) < 0 || check_expansion(t, t->bytes, err) < 0)
            return -1;
    } else {
        return refuse(err, SG_INVALID_REQUEST, "unsupported_entry", "has a device, FIFO or socket: %s", t->path);
    }
    return t->path[0] != '\0' ? 1 : refuse(err, SG_INVALID_REQUEST, "unsafe_path", "names its own top, which must be a directory");
}

int sg_tar_next(struct sg_tar_reader *t, struct sg_tar_entry *ret, struct sg_error *err)
{
    struct archive_entry *e;

    t->in_file = false;
    locale_t old = sg_tar_locale_enter(t->locale);
    int rc = archive_read_next_header(t->archive, &e);
    if (rc == ARCHIVE_EOF)
        rc = 0;
    else if (rc != ARCHIVE_OK && rc != ARCHIVE_WARN) /* a warning: a name that is not text, kept as it is */
        rc = library_error(t, err);
    else
        rc = check_stream(t, err) < 0 ? -1 : read_entry(t, e, ret, err);
    sg_tar_locale_leave(old);
    return rc;
}

int sg_tar_data(struct sg_tar_reader *t, const void **data, size_t *len, uint64_t *offset, struct sg_error *err)
{
    la_int64_t at = 0;

    *len = 0;
    while (t->in_file && *len == 0) {
        int rc = archive_read_data_block(t->archive, data, len, &at);
        if (rc == ARCHIVE_EOF)
            t->in_file = false;
        else if (rc != ARCHIVE_OK && rc != ARCHIVE_WARN)
            return library_error(t, err);
        else if (check_stream(t, err) < 0)
            return -1;
    }
    if (!t->in_file)
        return 0;
    uint64_t first = (uint64_t)at;
    if (at < 0 || first < t->offset || first > t->size || *len > t->size - first)
        return refuse(err, SG_INVALID_REQUEST, "malformed_archive", "has a file whose pieces do not fit: %s", t->path);
    t->offset = first + *len;
    *offset = first;
    return 1;
}

uint64_t sg_tar_entries(const struct sg_tar_reader *t)
{
    return t->entries;
}

uint64_t sg_tar_bytes(const struct sg_tar_reader *t)
{
    return t->bytes;
}
