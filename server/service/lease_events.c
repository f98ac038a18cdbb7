/* Every follower has a small log of its own, which the registry fills: so each goes at its own pace, and one that stands still costs no
 * more than that log may hold. */
#include "service/lease_events.h"
#include "service/service_priv.h"

/* Holds all events that are kept of one lease; a follower further behind than that has lost some. */
#define LOG_BYTES ((size_t)128 * 1024)

struct sg_lease_follow {
    struct sg_follower f;
    _Atomic int refs; /* the caller's, the hook's, the registry's for a moment */
    struct sg_entry *entry;
    struct sg_exec_log *log;
    struct sg_cancel *cancel;
    struct sg_cancel_hook hook;
};

static struct sg_lease_follow *of(struct sg_follower *f)
{
    return sg_container_of(f, struct sg_lease_follow, f);
}

static void follow_unref(struct sg_follower *f)
{
    struct sg_lease_follow *w = of(f);

    if (--w->refs > 0)
        return;
    sg_exec_log_unref(w->log);
    sg_entry_unref(w->entry);
    sg_cancel_unref(w->cancel);
    free(w);
}

static void follow_ref(struct sg_follower *f)
{
    of(f)->refs++;
}

static void follow_event(struct sg_follower *f, const struct sg_lease_event *ev, const struct sg_lease *l)
{
    sg_cleanup(sg_free_p) char *text = sg_lease_event_text(ev, l);

    sg_exec_log_event(of(f)->log, ev->seq, sg_lease_event_type(ev), text);
}

static void follow_over(struct sg_follower *f)
{
    sg_exec_log_close(of(f)->log);
}

static void follow_wake(struct sg_follower *f)
{
    sg_exec_log_wake(of(f)->log);
}

/* A client that has gone needs no word; one that is still there when the server stops gets one. */
static void caller_cancelled(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct sg_lease_follow *w = sg_container_of(h, struct sg_lease_follow, hook);
    struct sg_error err = {0};

    sg_entry_unfollow(w->entry, &w->f);
    if (why == SG_CANCEL_SHUTDOWN) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down; follow on from the last event when it is back");
        sg_cleanup(sg_free_p) char *text = sg_exec_error_text(&err);
        sg_exec_log_event(w->log, 0, SG_EVENT_ERROR, text);
        sg_exec_log_close(w->log);
        sg_exec_log_wake(w->log);
    }
    follow_unref(&w->f);
}

static int too_many(const struct sg_service *s, struct sg_error *err)
{
    if (s->follow_memory.used < s->follow_memory.max)
        return 0;
    sg_error_set(err, SG_OVERLOADED, "too much waits for slow followers of events");
    return sg_error_retry_after(err, 1);
}

int sg_service_follow_lease(struct sg_service *s, struct sg_entry *e, uint64_t after, struct sg_cancel *cancel,
                            struct sg_lease_follow **ret, struct sg_exec_reader **ret_reader, struct sg_error *err)
{
    if (too_many(s, err) < 0)
        return -1;
    struct sg_lease_follow *w = sg_xcalloc(1, sizeof *w);
    w->f = (struct sg_follower){
        .event = follow_event, .over = follow_over, .wake = follow_wake, .ref = follow_ref, .unref = follow_unref};
    w->refs = 1;
    w->entry = sg_entry_ref(e);
    w->cancel = sg_cancel_ref(cancel);
    w->log = sg_exec_log_new(LOG_BYTES, 0, &s->follow_memory);
    if (sg_entry_follow(e, after, &w->f, err) < 0 || sg_exec_reader_new(w->log, 0, false, ret_reader, err) < 0) {
        sg_entry_unfollow(e, &w->f);
        follow_unref(&w->f);
        return -1;
    }
    w->hook.fired = caller_cancelled;
    w->refs++;
    sg_cancel_hook(cancel, &w->hook);
    *ret = w;
    return 0;
}

void sg_lease_follow_end(struct sg_lease_follow *w)
{
    if (sg_cancel_unhook(w->cancel, &w->hook))
        follow_unref(&w->f);
    sg_entry_unfollow(w->entry, &w->f);
    follow_unref(&w->f);
}
