/* What one command wrote, as numbered events: one writer, any number of readers at their own pace. Also what happens to one lease
 * (sg_exec_log_event()).
 *
 * Bounded: an attached reader that is `window` bytes behind makes the log full, and a full log is a command that is not read
 * from, so it stops at its next write; other readers never do. What all attached readers have passed is history: kept up to `history`
 * bytes, less when what all commands keep is too much; the oldest events go first. A reader whose next event has gone is told so,
 * it never skips one.
 * Events are in the order in which the bytes arrived. A character is never split: the beginning of one waits for its end.
 *
 * Any thread. Wakers are called without locks held; they must not block.
 */
#ifndef SG_EXEC_LOG_H
#define SG_EXEC_LOG_H

#include "base/pipe.h"
#include "model/exec_event.h"
#include "service/run_memory.h"

/* Most bytes of output in one event, but for what is left of a character. */
#define SG_EXEC_LOG_PIECE ((size_t)32 * 1024)

struct sg_exec_log;
struct sg_exec_reader;

/* One reference, for the caller. history 0: nothing is kept but for attached readers. */
struct sg_exec_log *sg_exec_log_new(size_t history, size_t window, struct sg_run_memory *memory);
struct sg_exec_log *sg_exec_log_ref(struct sg_exec_log *l);
struct sg_exec_log *sg_exec_log_unref(struct sg_exec_log *l); /* NULL-safe, returns NULL */

/* ---- the writer: one call at a time; only wake calls anybody ---- */

/* Is an attached reader too far behind? True: `space` is called once when it no longer is. */
bool sg_exec_log_full(struct sg_exec_log *l);
/* NULL: none. */
void sg_exec_log_set_space(struct sg_exec_log *l, const struct sg_waker *space);
/* The first event. text: JSON members, copied; NULL: none. */
void sg_exec_log_start(struct sg_exec_log *l, const char *text);
/* len bytes of stdout or stderr; taken whether or not the log is full. After the end: ignored. */
void sg_exec_log_output(struct sg_exec_log *l, enum sg_event_type type, const char *data, size_t len);
/* The last event, exit or error, after whatever characters were left unfinished. Later calls do nothing. */
void sg_exec_log_end(struct sg_exec_log *l, enum sg_event_type type, const char *text);
/* An event that is numbered elsewhere: readers get to see that number, 0 for one without. text: JSON members, copied; NULL: none. After
 * the end: ignored. */
void sg_exec_log_event(struct sg_exec_log *l, uint64_t seq, enum sg_event_type type, const char *text);
/* The event before was the last. */
void sg_exec_log_close(struct sg_exec_log *l);
/* Wakes the readers that wait for what was written since, or for the end. */
void sg_exec_log_wake(struct sg_exec_log *l);

/* Gives up all history that no attached reader still has to read, but for the last event. */
void sg_exec_log_drop(struct sg_exec_log *l);
/* Bytes held, overhead included. */
size_t sg_exec_log_bytes(struct sg_exec_log *l);

/* ---- readers ---- */

#define SG_EXEC_OLDEST UINT64_MAX
/* Reads on after event number `after` (0: from the beginning, SG_EXEC_OLDEST: from what is still kept). -1: SG_HISTORY_DROPPED with the member oldest_seq, SG_INVALID_REQUEST (field
 * after) when there is no such event yet. *ret holds a reference on the log. */
int sg_exec_reader_new(struct sg_exec_log *l, uint64_t after, bool attached, struct sg_exec_reader **ret, struct sg_error *err);
/* The reader is gone: an attached one slows nobody down any more. Its waker is not called again, but for a call that is just being
 * made. NULL-safe, returns NULL. */
struct sg_exec_reader *sg_exec_reader_free(struct sg_exec_reader *r);
/* 1: *ret is the next event, valid until the next call; 0: the last one was read; -EAGAIN: none yet, the waker is called once when there
 * is; -ESTALE: the next one is no longer kept. One call at a time. */
int sg_exec_reader_next(struct sg_exec_reader *r, struct sg_exec_event *ret);
/* The number of the event that was read last. Not while another call is being made. */
uint64_t sg_exec_reader_after(const struct sg_exec_reader *r);
/* Sets the waker (NULL: removes) and calls it at once when there is something to read. */
void sg_exec_reader_set_waker(struct sg_exec_reader *r, const struct sg_waker *w);

#endif
