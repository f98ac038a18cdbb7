/* Load generators and baselines of ./dev bench. Each subcommand prints one JSON object on stdout; a failure
 * ends the program with status 1 and a message on stderr, because a figure of a broken run is worth nothing.
 */
#ifndef SG_BENCH_H
#define SG_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int64_t bench_now_ns(void); /* CLOCK_MONOTONIC */
_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void *bench_alloc(size_t size);   /* zeroed; ends the program when there is none */
long bench_number(const char *s); /* a number >= 0 or the end */
char *bench_file(const char *path, size_t *ret_len);

/* ---- samples of time ---- */

struct bench_samples {
    int64_t *ns;
    size_t n, cap;
};

void bench_samples_add(struct bench_samples *s, int64_t ns);
void bench_samples_join(struct bench_samples *into, struct bench_samples *from); /* frees from's */
int64_t bench_percentile(struct bench_samples *s, double p); /* sorts; 0 without samples */
/* "NAME_p50_us":..,"NAME_p99_us":.. without braces. */
void bench_print_percentiles(const char *name, struct bench_samples *s);

/* ---- a keep-alive HTTP/1.1 client that knows Content-Length only ---- */

struct bench_conn {
    int fd;
    char *buf; /* the answer; the head is NUL-terminated once it is complete */
    size_t len, cap;
    size_t head_len; /* 0: the head is not complete yet */
    size_t body_len;
    int status;
};

void bench_connect(struct bench_conn *c, int port, bool nonblocking);
void bench_close(struct bench_conn *c);
void bench_send(struct bench_conn *c, const char *data,
                size_t len); /* everything or the end of the program */
void bench_answer_begin(struct bench_conn *c);
/* Reads what is there (or waits, on a blocking connection); true once the answer is complete. */
bool bench_answer_more(struct bench_conn *c);
/* One whole exchange; the answer's body is at c->buf + c->head_len. */
int bench_call(struct bench_conn *c, const char *request, size_t len);

/* ---- subcommands ---- */

int bench_http(int argc, char **argv);
int bench_spawn(int argc, char **argv);
int bench_pairs(int argc, char **argv);
int bench_fsync(int argc, char **argv);
int bench_bulk(int argc, char **argv);
int bench_stream(int argc, char **argv);

#endif
