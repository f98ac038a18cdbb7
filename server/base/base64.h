/* Standard base64 (RFC 4648, with padding). */
#ifndef SG_BASE64_H
#define SG_BASE64_H

#include "base/error.h"

/* Characters that len bytes become; len at most SIZE_MAX / 2. */
size_t sg_base64_length(size_t len);
/* Writes exactly these, no NUL, to out. */
void sg_base64_encode_to(const void *data, size_t len, char *out);
/* As text. Caller frees; NULL when memory is out. */
char *sg_base64_encode(const void *data, size_t len, size_t *ret_len);
/* Strict: no blanks, right padding, no more than cap bytes. Caller frees *ret. */
int sg_base64_decode(const char *text, size_t len, size_t cap, uint8_t **ret, size_t *ret_len,
                     struct sg_error *err);

#endif
