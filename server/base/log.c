#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define TAIL 3U           /* closing brace, newline, NUL */
#define VALUE_MAX 1024U   /* of one value's text, so that later members still fit */

static const char *const level_names[] = {"debug", "info", "warn", "error"};

#define PATIENCE_MS 20    /* with a reader that does not read */
#define PIPE_SIZE (1 << 20)

struct sg_log {
    int fd;
    enum sg_log_level level;
    bool read; /* by somebody who may stop: a pipe, a terminal, a socket */
    pthread_mutex_t lock;
    bool stalled;  /* the rest is of such: nobody waits any more */
    uint64_t lost; /* lines, since it was last said */
};

static bool is_read(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(fd));
}

struct sg_log *sg_log_new(int fd, enum sg_log_level level)
{
    struct sg_log *log = sg_xcalloc(1, sizeof *log);
    log->fd = fd;
    log->level = level;
    log->read = is_read(fd);
    (void)pthread_mutex_init(&log->lock, NULL);
    (void)fcntl(fd, F_SETPIPE_SZ, PIPE_SIZE); /* a reader may be late by so much; if that is not allowed, by less */
    return log;
}

struct sg_log *sg_log_free(struct sg_log *log)
{
    if (log != NULL) {
        (void)pthread_mutex_destroy(&log->lock);
    }
    free(log);
    return NULL;
}

bool sg_log_level_parse(const char *s, enum sg_log_level *ret)
{
    for (size_t i = 0; i < SG_COUNT_OF(level_names); i++) {
        if (sg_streq(s, level_names[i])) {
            *ret = (enum sg_log_level)i;
            return true;
        }
    }
    return false;
}

static size_t room(const struct sg_log_line *l)
{
    return sizeof l->text - TAIL - l->len;
}

static void put(struct sg_log_line *l, const char *s, size_t n)
{
    memcpy(l->text + l->len, s, n);
    l->len += n;
}

/* One character of value (n bytes left) as JSON text into out; returns how many bytes it took. */
static size_t escape(const char *value, size_t n, char out[8])
{
    unsigned char c = (unsigned char)value[0];
    if (c == '"' || c == '\\') {
        (void)snprintf(out, 8, "\\%c", c);
        return 1;
    }
    if (c < 0x20 || c == 0x7f) {
        (void)snprintf(out, 8, "\\u%04x", c);
        return 1;
    }
    size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (len > n || !sg_utf8_valid(value, len)) {
        (void)snprintf(out, 8, "\xef\xbf\xbd"); /* U+FFFD */
        return 1;
    }
    (void)snprintf(out, 8, "%.*s", (int)len, value);
    return len;
}

/* `,"key":`; false when not even the shortest value would fit behind it. */
static bool put_key(struct sg_log_line *l, const char *key)
{
    size_t n = strlen(key);
    if (!l->on || room(l) < n + 4 + 24) {
        return false;
    }
    char *at = l->text + l->len;
    if (l->len > 1) {
        *at++ = ',';
    }
    *at++ = '"';
    memcpy(at, key, n);
    at[n] = '"';
    at[n + 1] = ':';
    l->len = (size_t)(at - l->text) + n + 2;
    return true;
}

/* How many bytes at the start of value stand for themselves: nearly always all of them. */
static size_t plain(const char *value, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)(value[i] - 0x20) < 0x5f && value[i] != '"' && value[i] != '\\') {
        i++;
    }
    return i;
}

void sg_log_str(struct sg_log_line *l, const char *key, const char *value)
{
    sg_log_text(l, key, value, SIZE_MAX);
}

void sg_log_text(struct sg_log_line *l, const char *key, const char *value, size_t len)
{
    if (value == NULL || *value == '\0' || len == 0 || !put_key(l, key)) {
        return;
    }
    size_t left = strnlen(value, len < VALUE_MAX + 4 ? len : VALUE_MAX + 4);
    size_t used = 0;
    put(l, "\"", 1);
    while (left > 0) {
        char text[8];
        const char *from = value;
        size_t most = VALUE_MAX - used < room(l) - 1 ? VALUE_MAX - used : room(l) - 1;
        size_t taken = plain(value, left < most ? left : most);
        size_t n = taken;
        if (n == 0) {
            taken = escape(value, left, text);
            from = text;
            n = strlen(text);
        }
        if (n > most) {
            break;
        }
        put(l, from, n);
        used += n;
        value += taken;
        left -= taken;
    }
    put(l, "\"", 1);
}

void sg_log_int(struct sg_log_line *l, const char *key, int64_t value)
{
    char text[24];
    char *at = text + sizeof text;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (!put_key(l, key)) {
        return;
    }
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0) {
        *--at = '-';
    }
    put(l, at, (size_t)(text + sizeof text - at));
}

void sg_log_bool(struct sg_log_line *l, const char *key, bool value)
{
    if (put_key(l, key)) {
        put(l, value ? "true" : "false", value ? 4 : 5);
    }
}

void sg_log_begin(struct sg_log_line *l, struct sg_log *log, enum sg_log_level level, const char *event)
{
    l->log = log;
    l->on = log != NULL && level >= log->level;
    l->len = 0;
    if (!l->on) {
        return;
    }
    char now[SG_TIME_LEN];
    sg_time_format(sg_wall_us(), now);
    put(l, "{", 1);
    sg_log_str(l, "time", now);
    sg_log_str(l, "level", level_names[level]);
    sg_log_str(l, "event", event);
}

void sg_log_error(struct sg_log_line *l, const struct sg_error *err)
{
    if (err == NULL) {
        return;
    }
    sg_log_str(l, "code", sg_code_name(err->code));
    sg_log_str(l, "error", err->message);
    sg_log_str(l, "field", err->field);
    sg_log_str(l, "reason", err->reason);
    if (err->sys != 0) {
        sg_log_int(l, "errno", err->sys);
    }
}

/* ---- writing ---- */

static void close_line(struct sg_log_line *l)
{
    memcpy(l->text + l->len, "}\n", 3);
    l->len += 2;
    l->on = false;
}

static void write_line(const struct sg_log_line *l)
{
    ssize_t n;
    do {
        n = write(l->log->fd, l->text, l->len);
    } while (n < 0 && errno == EINTR); /* a log that cannot be written has nowhere to say so */
}

/* Whether a line can be written without waiting: a pipe that is writable takes as much as a line is at most. */
static bool takes_a_line(struct sg_log *log)
{
    struct pollfd p = {.fd = log->fd, .events = POLLOUT};
    log->stalled = poll(&p, 1, log->stalled ? 0 : PATIENCE_MS) <= 0;
    return !log->stalled;
}

static void tell_lost(struct sg_log *log)
{
    struct sg_log_line l;
    sg_log_begin(&l, log, SG_LOG_ERROR, "log_lines_lost");
    sg_log_int(&l, "lines", (int64_t)log->lost);
    close_line(&l);
    write_line(&l);
    log->lost = 0;
}

/* Whoever logs serves requests: a reader that has stopped must not stop the server. */
static void write_to_reader(struct sg_log *log, const struct sg_log_line *l)
{
    (void)pthread_mutex_lock(&log->lock);
    if (log->lost > 0 && takes_a_line(log)) {
        tell_lost(log);
    }
    if (log->lost == 0 && takes_a_line(log)) {
        write_line(l);
    } else {
        log->lost++;
    }
    (void)pthread_mutex_unlock(&log->lock);
}

void sg_log_end(struct sg_log_line *l)
{
    if (!l->on) {
        return;
    }
    close_line(l);
    if (l->log->read) {
        write_to_reader(l->log, l);
    } else {
        write_line(l);
    }
}

void sg_log_event(struct sg_log *log, enum sg_log_level level, const char *event, const struct sg_error *err)
{
    struct sg_log_line l;
    sg_log_begin(&l, log, level, event);
    sg_log_error(&l, err);
    sg_log_end(&l);
}
