/* The standard input of a command. */
#include "backends/e2b/exec_priv.h"

#include <errno.h>

#include "base/base64.h"
#include "base/clock.h"
#include "base/json.h"

#define INPUT_PIECE ((size_t)48 * 1024)
#define INPUT_MS 60000

static void fed(void *arg, const struct sg_origin_answer *a SG_UNUSED, const struct sg_error *err)
{
    struct e2b_ex *x = arg;

    pthread_mutex_lock(&x->lock);
    x->feeding = false;
    x->input_over = x->input_over || err;
    bool over = x->input_over;
    pthread_mutex_unlock(&x->lock);
    if (over)
        sg_pipe_stop(x->base.in);
    else
        e2b_ex_feed(x);
    e2b_ex_unref(x);
}

static void call_input(struct e2b_ex *x, const char *path, const json_t *body)
{
    struct sg_net_header headers[4];
    size_t n = e2b_headers(x->sb, "root", headers);

    sg_origin_call(x->sb->d->data, &(struct sg_origin_call){.method = "POST", .path = path, .body = body, .headers = headers, .n_headers = n,
                                                            .deadline_ms = sg_now_ms() + INPUT_MS, .done = fed, .arg = e2b_ex_ref(x)});
}

/* One piece at a time, so that they stay in order. */
void e2b_ex_feed(struct e2b_ex *x)
{
    char piece[INPUT_PIECE];

    pthread_mutex_lock(&x->lock);
    bool go = !x->feeding && !x->input_over && x->pid != 0 && !x->ended;
    ssize_t n = go ? sg_pipe_read(x->base.in, piece, sizeof piece) : -EAGAIN;
    x->feeding = x->feeding || n >= 0;
    x->input_over = x->input_over || n == 0 || n == -EIO;
    uint32_t pid = x->pid;
    pthread_mutex_unlock(&x->lock);
    if (n < 0)
        return;
    sg_cleanup(sg_free_p) char *text = n > 0 ? sg_base64_encode(piece, (size_t)n, NULL) : NULL;
    sg_cleanup(sg_json_p) json_t *body = n > 0 ? json_pack("{s:{s:I}, s:{s:s}}", "process", "pid", (json_int_t)pid, "input", "stdin", text)
                                               : json_pack("{s:{s:I}}", "process", "pid", (json_int_t)pid);
    call_input(x, n > 0 ? "/process.Process/SendInput" : "/process.Process/CloseStdin", body);
}

static void feed_task(struct sg_task *t)
{
    struct e2b_ex *x = sg_container_of(t, struct e2b_ex, feed);

    atomic_store(&x->feed_posted, false);
    e2b_ex_feed(x);
    e2b_ex_unref(x);
}

/* Not here and now: who writes may hold a lock. */
void e2b_ex_in_wake(void *arg)
{
    struct e2b_ex *x = arg;

    if (atomic_exchange(&x->feed_posted, true))
        return;
    x->feed.run = feed_task;
    sg_reactor_post(x->sb->d->reactor, &e2b_ex_ref(x)->feed);
}
