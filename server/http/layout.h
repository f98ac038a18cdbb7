/* Were the lines of a request's head what they claim to be?
 *
 * libmicrohttpd before 1.0 hands out C strings that point into the very bytes received, line after line. So what it lets
 * through without telling (a NUL inside a line, a bare LF at its end, a folded line, a header without a name) shows as
 * a gap between one line's end and the next one's beginning that is not exactly CR LF. Later versions refuse
 * these themselves and keep no such layout: there every head is sound. Daemon thread, before the head is copied.
 */
#ifndef SG_LAYOUT_H
#define SG_LAYOUT_H

#include <microhttpd.h>

#include "base/base.h"

struct sg_layout {
    const char *next; /* where the next line must begin */
    bool sound;
};

/* target: where the parser had it when it was len bytes long; NULL: not known. */
void sg_layout_begin(struct sg_layout *l, const char *target, size_t len, const char *version);
/* In the order received, with the value as the parser gives it. */
void sg_layout_header(struct sg_layout *l, const char *name, const char *value, size_t value_len);
/* After the last header. */
bool sg_layout_end(struct sg_layout *l, struct MHD_Connection *mhd, const char *method);

#endif
