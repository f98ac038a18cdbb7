/* What a running command says, or what happens to a lease, event by event, as newline-delimited JSON or as server-sent events: one
 * encoder for all. */
#ifndef SG_EXEC_EVENT_H
#define SG_EXEC_EVENT_H

#include "base/buf.h"
#include "model/exec_json.h"

enum sg_event_type {
    /* of commands */
    SG_EVENT_START,
    SG_EVENT_STDOUT,
    SG_EVENT_STDERR,
    SG_EVENT_EXIT,
    /* of both */
    SG_EVENT_ERROR,
    SG_EVENT_PING,
    /* of leases */
    SG_EVENT_CREATING,
    SG_EVENT_READY,
    SG_EVENT_EXTENDED,
    SG_EVENT_RELEASING,
    SG_EVENT_TERMINATED,
    SG_EVENT_FAILED,
    SG_EVENT_EXPIRED,
    SG_EVENT_LOST,
};
/* "start", "stdout", ... */
const char *sg_event_type_name(enum sg_event_type t);

struct sg_exec_event {
    uint64_t seq; /* from 1, without gaps for commands; 0: not one of the command's or lease's (a ping, the failure of a stream) */
    enum sg_event_type type;
    bool binary; /* stdout, stderr: the bytes are not text and go out as base64 */
    /* stdout, stderr: bytes; they never end or begin inside a character unless binary. Others: the further members, a JSON object as
     * compact text, or "". */
    const char *data;
    size_t len;
};

enum sg_event_format { SG_EVENT_NDJSON, SG_EVENT_SSE };
/* The media type without parameters. */
const char *sg_event_format_type(enum sg_event_format f);

/* Is it text: valid UTF-8 without NUL? Readers that take JSON strings as C strings are many, and six bytes for each zero byte would
 * be too much. */
bool sg_event_is_text(const void *data, size_t len);

/* Appends one whole event:
 *   {"seq":7,"type":"stdout","data":"...","encoding":"utf-8"}\n
 *   id: 7\nevent: stdout\ndata: (the same JSON)\n\n
 * -1 when out's cap would be passed or memory is out. */
int sg_exec_event_encode(const struct sg_exec_event *e, enum sg_event_format f, struct sg_buf *out);

/* The members of a start, an exit and an error event. malloc'ed; NULL when memory is out. */
char *sg_exec_start_text(const char *exec_id, json_t *command, int64_t timeout_ms, int64_t started_us);
char *sg_exec_exit_text(const struct sg_exec_result *r);
char *sg_exec_error_text(const struct sg_error *err);

#endif
