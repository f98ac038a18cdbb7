/* One JSON line per event on a descriptor. Libraries return errors; the edge logs once.
 *
 *     struct sg_log_line l;
 *     sg_log_begin(&l, log, SG_LOG_INFO, "lease_ready");
 *     sg_log_str(&l, "lease_id", id);
 *     sg_log_int(&l, "duration_us", us);
 *     sg_log_end(&l);
 *
 * A line is at most 4096 bytes (longer values are cut and the line stays valid JSON) and is written
 * with one write(2). Any thread. Never waits for long: where the descriptor is a pipe, terminal or socket that nobody reads, lines
 * are left out, and how many is said once there is room (`log_lines_lost`). Bytes that are not UTF-8 are shown as U+FFFD.
 */
#ifndef SG_LOG_H
#define SG_LOG_H

#include "base/error.h"

enum sg_log_level { SG_LOG_DEBUG, SG_LOG_INFO, SG_LOG_WARN, SG_LOG_ERROR };

struct sg_log;

struct sg_log_line {
    struct sg_log *log;
    bool on;
    size_t len;
    char text[4096];
};

/* fd stays the caller's. */
struct sg_log *sg_log_new(int fd, enum sg_log_level level);
struct sg_log *sg_log_free(struct sg_log *log);
/* "debug", "info", "warn", "error"; false: unknown. */
bool sg_log_level_parse(const char *s, enum sg_log_level *ret);

/* log may be NULL: nothing is written. */
void sg_log_begin(struct sg_log_line *l, struct sg_log *log, enum sg_log_level level, const char *event);
/* value NULL or "": the member is left out. */
void sg_log_str(struct sg_log_line *l, const char *key, const char *value);
/* The same for the first len bytes of value, or up to its end. */
void sg_log_text(struct sg_log_line *l, const char *key, const char *value, size_t len);
void sg_log_int(struct sg_log_line *l, const char *key, int64_t value);
void sg_log_bool(struct sg_log_line *l, const char *key, bool value);
/* `error` object-free form: members code, error (message), errno. */
void sg_log_error(struct sg_log_line *l, const struct sg_error *err);
void sg_log_end(struct sg_log_line *l);

/* Begin, error members and end in one; err may be NULL. */
void sg_log_event(struct sg_log *log, enum sg_log_level level, const char *event, const struct sg_error *err);

#endif
