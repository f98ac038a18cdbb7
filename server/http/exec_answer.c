#include "http/exec_answer.h"

#include <errno.h>
#include <stdio.h>

#include "base/json.h"
#include "model/exec_text.h"

/* Bytes of output from which on an answer is large. */
#define LARGE ((size_t)64 * 1024)

/* ---- while it is sent ---- */

struct source {
    struct sg_exec_text *text;
    struct sg_buf piece;
    size_t sent; /* of the piece */
};

static ssize_t source_read(void *arg, char *data, size_t max)
{
    struct source *s = arg;
    size_t done = 0;

    while (done < max) {
        if (s->sent == s->piece.len) {
            s->piece.len = s->sent = 0;
            int rc = sg_exec_text_next(s->text, &s->piece);
            if (rc < 0)
                return -EIO; /* cut, rather than leave something out */
            if (rc == 0)
                break;
        }
        size_t n = s->piece.len - s->sent < max - done ? s->piece.len - s->sent : max - done;
        memcpy(data + done, s->piece.data + s->sent, n);
        s->sent += n;
        done += n;
    }
    return (ssize_t)done;
}

static void source_set_waker(void *arg SG_UNUSED, const struct sg_waker *w SG_UNUSED)
{
    /* There always is something, until there is nothing any more. */
}

static void source_close(void *arg)
{
    struct source *s = arg;

    sg_exec_text_free(s->text);
    sg_buf_finish(&s->piece);
    free(s);
}

static void respond_text(struct sg_request *r, int status, struct sg_exec_text *text)
{
    struct source *s = sg_xcalloc(1, sizeof *s);

    s->text = text;
    sg_buf_init(&s->piece, 2 * SG_EXEC_TEXT_PIECE);
    struct sg_body_source source = {.read = source_read, .set_waker = source_set_waker, .close = source_close, .arg = s};
    sg_respond_source(r, status, "application/json", &source);
}

/* ---- large ones ---- */

struct large {
    struct sg_work work;
    struct sg_request *r;
    struct sg_exec_result result; /* with references, and a copy of the id */
    char exec_id[SG_ID_MAX];
    json_t *around;
    int status;
};

/* {"a":1} -> {"a":1,"result": */
static char *before(const json_t *around)
{
    size_t len;
    sg_cleanup(sg_free_p) char *text = sg_json_dump(around, &len);

    return text ? sg_xasprintf("%.*s,\"result\":", (int)len - 1, text) : NULL;
}

static void respond_large(struct sg_work *w)
{
    struct large *l = sg_container_of(w, struct large, work);
    sg_cleanup(sg_free_p) char *head = l->around ? before(l->around) : sg_xstrdup("");
    struct sg_exec_text *text = head ? sg_exec_text_new(&l->result, head, l->around ? "}\n" : "\n") : NULL;

    if (text)
        respond_text(l->r, l->status, text);
    else
        sg_respond_json(l->r, l->status, NULL);
    sg_hold_unref(l->result.keep);
    sg_json_unref(l->result.command);
    sg_json_unref(l->around);
    sg_req_unref(l->r);
    free(l);
}

void sg_exec_respond(struct sg_request *r, struct sg_workq *workq, int status, const struct sg_exec_result *result, json_t *around)
{
    if (result->out.len + result->err.len < LARGE || !result->keep) {
        json_t *v = sg_exec_result_json(result);
        if (around)
            json_object_set_new(around, "result", v);
        sg_respond_json(r, status, around ? around : v);
        return;
    }
    struct large *l = sg_xcalloc(1, sizeof *l);
    l->work.run = respond_large;
    l->r = sg_req_ref(r);
    l->result = *result;
    snprintf(l->exec_id, sizeof l->exec_id, "%s", result->exec_id);
    l->result.exec_id = l->exec_id;
    l->result.keep = sg_hold_ref(result->keep);
    l->result.command = sg_json_ref(result->command);
    l->around = around;
    l->status = status;
    if (sg_workq_submit(workq, &l->work, NULL) < 0)
        respond_large(&l->work); /* the command has run, so its result is owed */
}
