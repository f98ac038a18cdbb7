/* What the tests of selection share: bodies in, answers out. */
#ifndef SG_TEST_SELECT_SUPPORT_H
#define SG_TEST_SELECT_SUPPORT_H

#include <criterion/criterion.h>

#include "base/json.h"
#include "select/decide.h"

/* Parses text that is right; the test fails otherwise. */
json_t *test_json(const char *text);
/* The same with every ' as ". */
json_t *test_json_q(const char *text);

/* POST /select's work on a body, over one registered backend (local_bwrap) and no credentials: the answer, or
 * {code, status, field} and the members of the error. */
json_t *test_select(json_t *body);

/* The receipt of an answer, borrowed. */
json_t *test_receipt_of(const json_t *answer);

#endif
