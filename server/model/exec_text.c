#include "model/exec_text.h"

#include "base/hash.h"
#include "base/str.h"

/* In the worst case every byte of text needs six. */
#define TEXT_PIECE (SG_EXEC_TEXT_PIECE / 6 - 64)
/* Whole groups of base64. */
#define BASE64_PIECE ((size_t)3 * 8 * 1024)

enum kind { PLAIN, TEXT, BASE64 };

struct part {
    enum kind kind;
    const char *data;
    size_t len;
};

struct sg_exec_text {
    struct sg_hold *keep;
    char *head, *tail;
    struct part parts[8];
    size_t n, at;
    size_t done; /* of parts[at] */
};

static void add(struct sg_exec_text *t, enum kind kind, const char *data, size_t len)
{
    t->parts[t->n++] = (struct part){kind, data, len};
}

static void add_plain(struct sg_exec_text *t, const char *text)
{
    add(t, PLAIN, text, strlen(text));
}

/* In a string that is open already. */
static void add_output(struct sg_exec_text *t, const struct sg_exec_output *s, bool text, size_t len)
{
    add(t, text ? TEXT : BASE64, s->data, len);
}

/* Everything but the output, with the beginning of the string that it goes into: "BEFORE{...,"stdout":"". */
static char *make_head(const struct sg_exec_result *r, const char *before, bool out_text, bool err_text)
{
    sg_cleanup(sg_json_p) json_t *o = sg_exec_exit_json(r);
    int bad = json_object_set_new(o, "stdout_encoding", json_string(out_text ? "utf-8" : "base64"));
    bad |= json_object_set_new(o, "stderr_encoding", json_string(err_text ? "utf-8" : "base64"));
    bad |= json_object_set_new(o, "stdout_truncated", json_boolean(r->out.total > r->out.len));
    bad |= json_object_set_new(o, "stderr_truncated", json_boolean(r->err.total > r->err.len));
    sg_cleanup(sg_free_p) char *text = bad ? NULL : json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(15));
    if (!text)
        return NULL;
    text[strlen(text) - 1] = '\0'; /* the closing brace comes last */
    return sg_xasprintf("%s%s,\"stdout\":\"", before, text);
}

struct sg_exec_text *sg_exec_text_new(const struct sg_exec_result *r, const char *before, const char *after)
{
    size_t out_len, err_len;
    bool out_text = sg_exec_output_is_text(&r->out, &out_len);
    bool err_text = sg_exec_output_is_text(&r->err, &err_len);
    struct sg_exec_text *t = sg_xcalloc(1, sizeof *t);

    t->head = make_head(r, before, out_text, err_text);
    t->tail = sg_xasprintf("\"}%s", after);
    if (!t->head)
        return sg_exec_text_free(t);
    t->keep = sg_hold_ref(r->keep);
    add_plain(t, t->head);
    add_output(t, &r->out, out_text, out_len);
    add_plain(t, "\",\"stderr\":\"");
    add_output(t, &r->err, err_text, err_len);
    add_plain(t, t->tail);
    return t;
}

struct sg_exec_text *sg_exec_text_free(struct sg_exec_text *t)
{
    if (!t)
        return NULL;
    sg_hold_unref(t->keep);
    free(t->head);
    free(t->tail);
    free(t);
    return NULL;
}

/* The string's own quotes go again. */
static int add_escaped(struct sg_buf *out, const char *data, size_t len)
{
    size_t before = out->len;

    if (sg_json_add_string(out, data, len) < 0)
        return -1;
    memmove(out->data + before, out->data + before + 1, out->len - before - 2);
    out->len -= 2;
    out->data[out->len] = '\0';
    return 0;
}

static int add_base64(struct sg_buf *out, const char *data, size_t len)
{
    size_t n;
    sg_cleanup(sg_free_p) char *text = sg_base64_encode(data, len, &n);

    return text ? sg_buf_add(out, text, n) : -1;
}

/* What of a part goes out at once. */
static size_t piece_of(const struct part *p, size_t done)
{
    const size_t most = p->kind == TEXT ? TEXT_PIECE : p->kind == BASE64 ? BASE64_PIECE : SG_EXEC_TEXT_PIECE;
    size_t left = p->len - done;

    if (left <= most)
        return left;
    return p->kind == TEXT ? sg_utf8_whole(p->data + done, most) : most;
}

int sg_exec_text_next(struct sg_exec_text *t, struct sg_buf *out)
{
    while (t->at < t->n && t->done == t->parts[t->at].len) {
        t->at++;
        t->done = 0;
    }
    if (t->at == t->n)
        return 0;
    const struct part *p = &t->parts[t->at];
    size_t n = piece_of(p, t->done);
    const char *data = p->data + t->done;
    int rc = p->kind == TEXT ? add_escaped(out, data, n) : p->kind == BASE64 ? add_base64(out, data, n) : sg_buf_add(out, data, n);
    t->done += n;
    return rc < 0 ? -1 : 1;
}
