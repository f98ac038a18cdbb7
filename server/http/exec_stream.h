/* The events of a command as an answer that goes on: newline-delimited JSON or server-sent events. */
#ifndef SG_EXEC_STREAM_H
#define SG_EXEC_STREAM_H

#include "base/reactor.h"
#include "http/respond.h"
#include "service/exec_log.h"

/* A silent stream says something at least every 15 s; a little more often, so that timers and networks may be late. */
#define SG_EXEC_PING_MS 10000

/* Answers 200 with what reader (stolen) gives: to the end of the command, or (follow false) to the last event there is now. A reader
 * that is too slow for the history ends its stream with an error event without a number, code history_dropped. */
void sg_exec_stream_respond(struct sg_request *r, struct sg_reactor *reactor, struct sg_exec_reader *reader, enum sg_event_format format,
                            bool follow);

#endif
