/* For clang-tidy only (./dev lint): what the analyzer cannot see, because it is in another file or in the macros of the hash and list
 * headers, where it takes every other pointer for NULL. */
#ifndef ANALYZER_H
#define ANALYZER_H

#include <uthash.h>
#include <utlist.h>

#include "base/error.h"

/* These return -1, and so do the functions that end with one. */
#define sg_error_set(...) ((void)(sg_error_set)(__VA_ARGS__), -1)
#define sg_error_field(...) ((void)(sg_error_field)(__VA_ARGS__), -1)
#define sg_error_sys(...) ((void)(sg_error_sys)(__VA_ARGS__), -1)
#define sg_error_wrap(...) ((void)(sg_error_wrap)(__VA_ARGS__), -1)
#define sg_error_reason(...) ((void)(sg_error_reason)(__VA_ARGS__), -1)
#define sg_error_retry_after(...) ((void)(sg_error_retry_after)(__VA_ARGS__), -1)

void analyzer_unlink(void *head, void *item);
unsigned analyzer_hash(const void *key, size_t len);
#undef HASH_DELETE
#define HASH_DELETE(hh, head, item) analyzer_unlink(&(head), item)
#undef DL_DELETE
#define DL_DELETE(head, item) analyzer_unlink(&(head), item)
#undef HASH_FUNCTION
#define HASH_FUNCTION(key, len, hashv) ((hashv) = analyzer_hash(key, len))

#endif
