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

void sg_file_etag(const struct sg_file_stat *st, char out[SG_ETAG_MAX])
{
    (void)snprintf(out, SG_ETAG_MAX, "\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "\"", st->dev, st->ino,
                   (uint64_t)st->mtime_ns, st->size);
}

void sg_file_list_finish(struct sg_file_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->entries[i].name);
    }
    free(l->entries);
    *l = (struct sg_file_list){0};
}
