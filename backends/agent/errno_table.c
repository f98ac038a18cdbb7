/* The one table from what the sandbox's kernel said to what the API says. */
#include "backends/agent/client_priv.h"

#include <errno.h>

static const struct {
    uint32_t error;
    enum sg_code code;
    const char *text;
} table[] = {
    {ENOENT, SG_NOT_FOUND, "no such file or directory"},
    {EACCES, SG_FORBIDDEN, "not permitted for the sandbox's user"},
    {EPERM, SG_FORBIDDEN, "not permitted for the sandbox's user"},
    {EROFS, SG_FORBIDDEN, "a read-only file system"},
    {EISDIR, SG_IS_A_DIRECTORY, "a directory"},
    {ENOTDIR, SG_NOT_A_DIRECTORY, "a part of the path is not a directory"},
    {SG_AGENT_ENOTREG, SG_NOT_A_REGULAR_FILE, "a FIFO, device, socket or kernel file"},
    {SG_AGENT_ECONDITION, SG_PRECONDITION_FAILED, "the file is not in the state that the request asks for"},
    {ENXIO, SG_NOT_A_REGULAR_FILE, "a FIFO, device, socket or kernel file"},
    {ENOTEMPTY, SG_DIRECTORY_NOT_EMPTY, "the directory is not empty"},
    {EEXIST, SG_ALREADY_EXISTS, "something of that name exists"},
    {ENOSPC, SG_SANDBOX_DISK_FULL, "no space left in the sandbox"},
    {EDQUOT, SG_SANDBOX_DISK_FULL, "no space left in the sandbox"},
    {EFBIG, SG_SANDBOX_DISK_FULL, "larger than the sandbox allows"},
    {ENAMETOOLONG, SG_PATH_REFUSED, "the path is too long"},
    {ELOOP, SG_PATH_REFUSED, "too many symbolic links, or one of the kernel's own"},
    {EINVAL, SG_PATH_REFUSED, "the path cannot be used for this"},
    {EXDEV, SG_CONFLICT, "not on one file system"},
    {EBUSY, SG_CONFLICT, "in use by the sandbox itself"},
    {ETXTBSY, SG_CONFLICT, "the program is running"},
    {EAGAIN, SG_OVERLOADED, "the sandbox is busy"},
    {EMFILE, SG_OVERLOADED, "too many files are open in the sandbox"},
    {ENFILE, SG_OVERLOADED, "too many files are open"},
    {EIO, SG_OUTCOME_UNKNOWN, "a fault of the disk, or what worked on it in the sandbox was killed: look before you repeat"},
    {ENOMEM, SG_OVERLOADED, "the sandbox is out of memory"},
};

int sg_agent_error(struct sg_error *err, uint32_t error)
{
    for (size_t i = 0; i < SG_COUNT_OF(table); i++) {
        if (table[i].error != error)
            continue;
        sg_error_set(err, table[i].code, "%s", table[i].text);
        if (err != NULL)
            err->sys = error >= SG_AGENT_ENOTREG ? 0 : (int)error;
        return table[i].code == SG_OVERLOADED ? sg_error_retry_after(err, 1) : -1;
    }
    return sg_error_sys(err, SG_INTERNAL, (int)(error & 0xffff),
                        "the sandbox answered with an unexpected error");
}
