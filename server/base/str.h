/* Strict text helpers: no locale, no silent cuts. */
#ifndef SG_STR_H
#define SG_STR_H

#include "base/error.h"

/* Valid UTF-8 (no surrogates, no overlong forms) throughout? */
bool sg_utf8_valid(const void *data, size_t len);
/* Length of the longest prefix that ends on a character boundary when more bytes may follow: what can
 * be shown now of a stream. Bytes that can never become valid count as whole. */
size_t sg_utf8_whole(const void *data, size_t len);

/* Decimal integer, whole string, within [min, max]. */
bool sg_parse_int(const char *s, int64_t min, int64_t max, int64_t *ret);
/* "250ms", "5s", "1.5h", "2m", plain number = seconds. */
bool sg_parse_duration_ms(const char *s, int64_t *ret);
/* "64KiB", "1MiB", "2GiB", plain number = bytes. */
bool sg_parse_size(const char *s, int64_t *ret);

/* Percent-decodes len bytes of raw into out (len + 1 bytes); false for bad escapes and %00. plus: '+' is a
 * blank (query strings). *ret_len: decoded length. */
bool sg_percent_decode(const char *raw, size_t len, bool plus, char *out, size_t *ret_len);

/* Shortest text that reads back as the same double, with a '.' or an exponent: "0.1", "5.0", "1e+300". */
#define SG_DOUBLE_LEN 32
void sg_format_double(double v, char out[SG_DOUBLE_LEN]);

#endif
