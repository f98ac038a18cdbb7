/* From what the sandbox's kernel said to what the API says: of files as of every sandbox's, and the rest, which only an agent says. */
#include "backends/agent/client_priv.h"

#include <errno.h>

#include "backends/file_error.h"

_Static_assert(SG_AGENT_ENOTREG == SG_FILE_NOT_REGULAR && SG_AGENT_ECONDITION == SG_FILE_NO_MATCH, "two names of one error");

static const struct sg_file_error own[] = {
    {ELOOP, SG_PATH_REFUSED, "too many symbolic links, or one of the kernel's own"},
    {EAGAIN, SG_OVERLOADED, "the sandbox is busy"},
    {EMFILE, SG_OVERLOADED, "too many files are open in the sandbox"},
    {ENFILE, SG_OVERLOADED, "too many files are open"},
    {EIO, SG_OUTCOME_UNKNOWN, "a fault of the disk, or what worked on it in the sandbox was killed: look before you repeat"},
    {SG_AGENT_ENOSPOOL, SG_OVERLOADED, "this server has no room for the file on its way from or to the sandbox"},
    {ENOMEM, SG_OVERLOADED, "the sandbox is out of memory"},
};

int sg_agent_error(struct sg_error *err, uint32_t error)
{
    const struct sg_file_error *e = error <= INT32_MAX ? sg_file_error_find(own, SG_COUNT_OF(own), (int)error) : NULL;

    if (e == NULL)
        return sg_error_sys(err, SG_INTERNAL, (int)(error & 0xffff), "the sandbox answered with an unexpected error");
    sg_error_set(err, e->code, "%s", e->text);
    if (err != NULL)
        err->sys = error >= SG_AGENT_ENOTREG ? 0 : (int)error;
    return e->code == SG_OVERLOADED ? sg_error_retry_after(err, 1) : -1;
}
