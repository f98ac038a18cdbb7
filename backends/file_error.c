#include "backends/file_error.h"

#include <errno.h>

static const struct sg_file_error table[] = {
    {ENOENT, SG_NOT_FOUND, "no such file or directory"},
    {EACCES, SG_FORBIDDEN, "not permitted for the sandbox's user"},
    {EPERM, SG_FORBIDDEN, "not permitted for the sandbox's user"},
    {EROFS, SG_FORBIDDEN, "a read-only file system"},
    {EISDIR, SG_IS_A_DIRECTORY, "a directory"},
    {ENOTDIR, SG_NOT_A_DIRECTORY, "a part of the path is not a directory"},
    {SG_FILE_NOT_REGULAR, SG_NOT_A_REGULAR_FILE, "a FIFO, device, socket or kernel file"},
    {SG_FILE_NO_MATCH, SG_PRECONDITION_FAILED, "the file is not in the state that the request asks for"},
    {ENXIO, SG_NOT_A_REGULAR_FILE, "a FIFO, device, socket or kernel file"},
    {ENOTEMPTY, SG_DIRECTORY_NOT_EMPTY, "the directory is not empty"},
    {EEXIST, SG_ALREADY_EXISTS, "something of that name exists"},
    {ENOSPC, SG_SANDBOX_DISK_FULL, "no space left in the sandbox"},
    {EDQUOT, SG_SANDBOX_DISK_FULL, "no space left in the sandbox"},
    {EFBIG, SG_SANDBOX_DISK_FULL, "larger than the sandbox allows"},
    {ENAMETOOLONG, SG_PATH_REFUSED, "the path is too long"},
    {EINVAL, SG_PATH_REFUSED, "the path cannot be used for this"},
    {EXDEV, SG_CONFLICT, "not on one file system"},
    {EBUSY, SG_CONFLICT, "in use by the sandbox itself"},
    {ETXTBSY, SG_CONFLICT, "the program is running"},
};

static const struct sg_file_error *find_in(const struct sg_file_error *rows, size_t n, int error)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].error == error) {
            return &rows[i];
        }
    }
    return NULL;
}

const struct sg_file_error *sg_file_error_find(const struct sg_file_error *own, size_t n, int error)
{
    const struct sg_file_error *e = find_in(own, n, error);
    return e != NULL ? e : find_in(table, SG_COUNT_OF(table), error);
}
