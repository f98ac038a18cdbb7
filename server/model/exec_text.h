/* The JSON of a command's result in pieces, for output too large to be copied into one text. The members are those of
 * sg_exec_result_json(), in another order. */
#ifndef SG_EXEC_TEXT_H
#define SG_EXEC_TEXT_H

#include "model/exec_json.h"

struct sg_exec_text;

/* Takes over what it needs of r, with a reference on r->keep. before and after: texts around the object, copied. Reads all of the output
 * once, so it takes a while. NULL: memory is out. */
struct sg_exec_text *sg_exec_text_new(const struct sg_exec_result *r, const char *before, const char *after);
struct sg_exec_text *sg_exec_text_free(struct sg_exec_text *t); /* NULL-safe, returns NULL */
/* Appends the next piece, at most SG_EXEC_TEXT_PIECE bytes. 1; 0: that was all, nothing was appended; -1: out's cap would be passed, or
 * memory is out. */
#define SG_EXEC_TEXT_PIECE ((size_t)64 * 1024)
int sg_exec_text_next(struct sg_exec_text *t, struct sg_buf *out);

#endif
