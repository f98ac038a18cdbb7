/* The result of a command as an answer, whatever its size. */
#ifndef SG_EXEC_ANSWER_H
#define SG_EXEC_ANSWER_H

#include "base/workq.h"
#include "http/respond.h"
#include "model/exec_json.h"

/* Answers with status and result as JSON, or, unless around is NULL, with that object and the result as its member `result`; around is stolen.
 * A small one is made whole. A large one is made while it is sent, out of what is kept of the output: so it costs no memory besides
 * that, however slowly it is taken, and nothing on the calling thread. */
void sg_exec_respond(struct sg_request *r, struct sg_workq *workq, int status, const struct sg_exec_result *result, json_t *around);

#endif
