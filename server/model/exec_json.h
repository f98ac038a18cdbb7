/* The JSON of a command: its request and its result. The one place that knows these field names. */
#ifndef SG_EXEC_JSON_H
#define SG_EXEC_JSON_H

#include "base/buf.h"
#include "base/hold.h"
#include "base/json.h"
#include "model/exec.h"

/* A parsed exec request; owns everything it points to. */
struct sg_exec_request {
    char **argv; /* NULL-terminated; shell text is /bin/sh -c TEXT */
    json_t *command; /* as given, for the answer's `cmd` */
    char *cwd;       /* or NULL */
    struct sg_env env;
    int64_t timeout_ms; /* 0: not given */
    bool stdin_given;
    uint8_t *stdin_data;
    size_t stdin_len;
    int64_t max_output_bytes; /* 0: not given */
    bool detach;
    struct sg_tty_size tty; /* rows 0: none */
    char exec_id[SG_ID_MAX]; /* "" unless the caller chose one */
    char hash[65];           /* of the body: tells a repetition from a conflict */
};

/* Strict parse of the body. Ranges that depend on the configuration (timeouts, caps) are the service's to check. */
int sg_exec_request_parse(const char *body, size_t len, struct sg_exec_request *ret, struct sg_error *err);
void sg_exec_request_finish(struct sg_exec_request *q);

/* What one output stream left behind. */
struct sg_exec_output {
    const char *data;
    size_t len;
    uint64_t total; /* bytes the command wrote */
};

/* Everything the answer says of a finished command; borrowed by sg_exec_result_json. */
struct sg_exec_result {
    struct sg_hold *keep; /* what out and err point to lives as long as a reference on this; or NULL */
    const char *exec_id;
    json_t *command;
    struct sg_exec_output out;
    struct sg_exec_output err;
    struct sg_exit exit;
    int64_t timeout_ms;
};

/* Is a stream's output given as text, and how much of it? Else it is base64. A cut in the middle of a character does not make text
 * binary. */
bool sg_exec_output_is_text(const struct sg_exec_output *s, size_t *ret_len);
/* The 200 body of a synchronous exec. Output that is not valid UTF-8 is base64 and says so. NULL when memory is out. */
json_t *sg_exec_result_json(const struct sg_exec_result *r);
/* The same without the output itself: what the last event of a stream says. */
json_t *sg_exec_exit_json(const struct sg_exec_result *r);
/* One step of a larger work: command, output without its totals, and how it ended; ended false: it runs, and how it will end is null. */
json_t *sg_exec_step_json(const struct sg_exec_result *r, bool ended);

/* The `rows` and `cols` of a terminal: 0 or -1 (SG_INVALID_REQUEST below 1, SG_LIMIT_EXCEEDED above SG_TTY_SIZE_MAX). Those that are absent
 * keep what *size has; with all_given they must be there. path: the prefix of field names. */
int sg_tty_size_read(struct sg_json_reader *r, bool all_given, struct sg_tty_size *size, struct sg_error *err);
/* {rows, cols}, null for 0 rows. */
json_t *sg_tty_size_json(struct sg_tty_size size);

/* The `env` member of any request: object of strings. */
int sg_env_parse(const json_t *v, const char *path, struct sg_env *ret, struct sg_error *err);

#endif
