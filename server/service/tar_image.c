#include "service/tar_image.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/tar_locale.h"
#include "service/tar_reader.h"

#define ENTRIES_MAX 1000000U
#define HEADERS_MAX ((uint64_t)1 << 30) /* what is not the contents of files */
#define PIECE ((size_t)64 * 1024)

struct image {
    int fd;
    struct sg_sha256_stream *sha;
    struct archive *disk;
    char piece[PIECE];
};

/* sg_tar_pull */
static ssize_t pull(void *arg, const void **data, struct sg_error *err)
{
    struct image *im = arg;
    ssize_t n;

    do {
        n = read(im->fd, im->piece, sizeof im->piece);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot be read");
    sg_sha256_add(im->sha, im->piece, (size_t)n);
    *data = im->piece;
    return n;
}

static int library_error(struct image *im, const char *path, struct sg_error *err)
{
    const char *text = archive_error_string(im->disk);

    return sg_error_set(err, SG_INVALID_REQUEST, "%s cannot be unpacked: %s", path, text ? text : "unknown");
}

/* The modes are ours: everybody may read and run what is there, and nobody write to it. */
static struct archive_entry *entry_of(const struct sg_tar_entry *from)
{
    static const unsigned types[] = {[SG_TAR_FILE] = AE_IFREG, [SG_TAR_DIRECTORY] = AE_IFDIR, [SG_TAR_SYMLINK] = AE_IFLNK, [SG_TAR_HARDLINK] = AE_IFREG};
    struct archive_entry *e = archive_entry_new();

    archive_entry_set_pathname(e, from->path);
    archive_entry_set_filetype(e, types[from->kind]);
    archive_entry_set_perm(e, from->kind == SG_TAR_DIRECTORY ? 0755 : from->mode & 0111 ? 0555 : 0444);
    archive_entry_set_mtime(e, (time_t)(from->mtime_ns / 1000000000), 0);
    if (from->kind == SG_TAR_FILE)
        archive_entry_set_size(e, (la_int64_t)from->size);
    else if (from->kind == SG_TAR_SYMLINK)
        archive_entry_set_symlink(e, from->target);
    else if (from->kind == SG_TAR_HARDLINK)
        archive_entry_set_hardlink(e, from->target);
    return e;
}

static int extract(struct image *im, struct sg_tar_reader *t, const struct sg_tar_entry *from, struct sg_error *err)
{
    const void *data;
    size_t len;
    uint64_t offset;
    int rc;

    if (from->path[0] == '\0')
        return 0; /* the directory itself is there */
    struct archive_entry *e = entry_of(from);
    int made = archive_write_header(im->disk, e);
    archive_entry_free(e);
    if (made != ARCHIVE_OK)
        return library_error(im, from->path, err);
    while ((rc = sg_tar_data(t, &data, &len, &offset, err)) > 0)
        if (archive_write_data_block(im->disk, data, len, (la_int64_t)offset) < 0)
            return library_error(im, from->path, err);
    if (rc < 0)
        return -1;
    return archive_write_finish_entry(im->disk) == ARCHIVE_OK ? 0 : library_error(im, from->path, err);
}

static int extract_all(struct image *im, struct sg_tar_reader *t, struct sg_error *err)
{
    struct sg_tar_entry entry;
    int rc;

    while ((rc = sg_tar_next(t, &entry, err)) > 0)
        if (extract(im, t, &entry, err) < 0)
            return -1;
    if (rc == 0 && sg_tar_entries(t) == 0)
        return sg_error_set(err, SG_INVALID_REQUEST, "is an archive of nothing");
    return rc < 0 || archive_write_close(im->disk) == ARCHIVE_OK ? rc : library_error(im, "the rest", err);
}

/* Over each of these comes a generated one, for which there must be a place. */
static int make_etc(struct sg_error *err)
{
    static const char *const names[] = {"etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/nsswitch.conf"};
    struct stat st;

    if (mkdir("etc", 0755) < 0 && errno != EEXIST)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "etc");
    if (lstat("etc", &st) < 0 || !S_ISDIR(st.st_mode))
        return sg_error_set(err, SG_INVALID_REQUEST, "has an etc that is no directory");
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        sg_cleanup(sg_close_p) int fd = open(names[i], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
        if (fd < 0 && errno != EEXIST)
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", names[i]);
    }
    return 0;
}

static int unpack(struct image *im, struct sg_tar_reader *t, struct sg_error *err)
{
    const void *rest;
    ssize_t n;

    im->disk = archive_write_disk_new();
    if (!im->disk)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for an archive");
    (void)archive_write_disk_set_options(im->disk, ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_SECURE_SYMLINKS | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                                       ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
    if (extract_all(im, t, err) < 0 || make_etc(err) < 0)
        return -1;
    while ((n = pull(im, &rest, err)) > 0) /* behind the end of the archive: part of its digest */
        continue;
    return (int)n;
}

int sg_tar_image(int fd, const char *dir, int64_t max_bytes, char ret[SG_SHA256_HEX], struct sg_error *err)
{
    const struct sg_tar_limits limits = {.entries = ENTRIES_MAX,
                                         .bytes = (uint64_t)max_bytes,
                                         .unpacked = (uint64_t)max_bytes + HEADERS_MAX,
                                         .outside_links = true};
    struct sg_tar_reader *t = NULL;

    if (chdir(dir) < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", dir);
    struct image *im = sg_xcalloc(1, sizeof *im);
    *im = (struct image){.fd = fd, .sha = sg_sha256_begin()};
    locale_t locale = sg_tar_locale_new(), old = sg_tar_locale_enter(locale);
    int rc = sg_tar_reader_new(&limits, pull, im, &t, err);
    if (rc == 0)
        rc = unpack(im, t, err);
    if (rc == 0)
        sg_sha256_end(im->sha, ret);
    sg_tar_reader_free(t);
    (void)archive_write_free(im->disk);
    sg_tar_locale_leave(old);
    sg_tar_locale_free(locale);
    sg_sha256_free(im->sha);
    free(im);
    return rc;
}
