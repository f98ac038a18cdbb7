/* Archives of strangers: whatever comes in, what comes out is safe to make below one directory and within the limits.
 * Input: one byte (bit 0: links may point outside; the rest: how the bytes are cut), then the archive. */
#include "fuzz.h"

#include <string.h>

#include "service/tar_reader.h"

struct input {
    const uint8_t *data;
    size_t size, at, step;
};

static ssize_t pull(void *arg, const void **data, struct sg_error *err)
{
    struct input *in = arg;
    size_t n = in->size - in->at < in->step ? in->size - in->at : in->step;
    (void)err;
    *data = in->data + in->at;
    in->at += n;
    return (ssize_t)n;
}

/* Relative, no empty, "." or ".." part. */
static void check_path(const char *path)
{
    while (*path) {
        size_t n = strcspn(path, "/");
        fuzz_require(n > 0 && !(n == 1 && path[0] == '.') && !(n == 2 && path[0] == '.' && path[1] == '.'), "clean parts");
        path += n;
        fuzz_require(*path == '\0' || path[1] != '\0', "no slash at the end");
        path += *path == '/';
    }
}

static void check_entry(const struct sg_tar_entry *e, const struct sg_tar_limits *limits)
{
    fuzz_require(e->path[0] != '/' && strlen(e->path) <= 4000, "relative");
    check_path(e->path);
    fuzz_require((e->mode & ~0777U) == 0, "no set-user-id");
    fuzz_require(e->kind == SG_TAR_DIRECTORY || e->path[0] != '\0', "the top is a directory");
    fuzz_require(e->size <= limits->bytes, "within the limit");
    if (e->kind == SG_TAR_HARDLINK) {
        fuzz_require(e->target[0] != '\0' && e->target[0] != '/', "a link to something inside");
        check_path(e->target);
    }
    if (e->kind == SG_TAR_SYMLINK && !limits->outside_links)
        fuzz_require(e->target[0] != '\0' && e->target[0] != '/', "a link that stays inside");
}

static void check_data(struct sg_tar_reader *t, uint64_t size)
{
    const void *data;
    size_t len;
    uint64_t offset, end = 0;
    volatile uint8_t last = 0;
    while (sg_tar_data(t, &data, &len, &offset, NULL) > 0) {
        fuzz_require(len > 0 && offset >= end && offset + len <= size, "pieces in order and inside of the file");
        last = ((const uint8_t *)data)[len - 1];
        end = offset + len;
    }
    (void)last;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct input in = {.data = data + 1, .size = size - 1, .step = (size_t)(data[0] >> 1) * 64 + 1};
    struct sg_tar_limits limits = {
        .entries = 100, .bytes = 1U << 20, .unpacked = 1U << 20, .outside_links = (data[0] & 1) != 0};
    struct sg_tar_reader *t = NULL;
    struct sg_tar_entry e;
    if (sg_tar_reader_new(&limits, pull, &in, &t, NULL) < 0)
        return 0;
    for (unsigned n = 1; sg_tar_next(t, &e, NULL) > 0; n++) {
        fuzz_require(n <= limits.entries, "so many entries");
        check_entry(&e, &limits);
        if (e.kind == SG_TAR_FILE && n % 3 != 0) /* the third is skipped */
            check_data(t, e.size);
    }
    fuzz_require(sg_tar_bytes(t) <= limits.bytes || sg_tar_entries(t) <= limits.entries + 1, "counted");
    sg_tar_reader_free(t);
    return 0;
}
