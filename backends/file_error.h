/* The one table from what a kernel says of a file to what the API says of it, for sandboxes of every kind. */
#ifndef SG_FILE_ERROR_H
#define SG_FILE_ERROR_H

#include "base/error.h"

/* Beyond what a kernel has words for. */
#define SG_FILE_NOT_REGULAR 10001 /* a FIFO, device, socket, or a file of a pseudo file system */
#define SG_FILE_NO_MATCH 10002    /* the condition does not hold */

struct sg_file_error {
    int error; /* an errno, or one of the above */
    enum sg_code code;
    const char *text;
};

/* own: n rows of the caller's, which come first. NULL for one that is in neither. */
const struct sg_file_error *sg_file_error_find(const struct sg_file_error *own, size_t n, int error);

#endif
