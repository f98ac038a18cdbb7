/* The events of a command or of a lease as an answer that goes on: newline-delimited JSON or server-sent events. */
#ifndef SG_EXEC_STREAM_H
#define SG_EXEC_STREAM_H

#include "base/reactor.h"
#include "http/respond.h"
#include "service/exec_log.h"

/* A silent stream says something at least every 15 s; a little more often, so that timers and networks may be late. */
#define SG_EXEC_PING_MS 10000

/* The format the caller wants of a route that only streams. */
enum sg_event_format sg_event_format_of(const struct sg_request *r);
/* The seq of the event to go on after, 0 when none is said. A client that connects again sends the last one it has seen as a header
 * (Last-Event-ID), with the address it began with: so that beats the query parameter `query` (NULL: there is none). -1: field. */
int sg_event_after(const struct sg_request *r, const char *query, int64_t *ret, struct sg_error *err);

/* Answers 200 with what reader (stolen) gives: to the end there is, or (follow false) to the last event there is now. A reader
 * that is too slow for the history ends its stream with an error event without a number, code history_dropped. */
void sg_exec_stream_respond(struct sg_request *r, struct sg_reactor *reactor, struct sg_exec_reader *reader, enum sg_event_format format,
                            bool follow);

#endif
