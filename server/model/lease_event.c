#include "model/lease_event.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/json.h"
#include "model/lease_json.h"

static struct sg_lease_event *room(struct sg_lease_events *l)
{
    if (l->n == SG_LEASE_EVENTS_MAX) {
        free(l->v[0].reason);
        l->n--;
        memmove(l->v, l->v + 1, l->n * sizeof *l->v);
    }
    if (l->n == l->size) {
        size_t size = l->size > 0 ? 2 * l->size : 4;
        struct sg_lease_event *v = sg_xcalloc(size, sizeof *v);
        if (l->n > 0) {
            memcpy(v, l->v, l->n * sizeof *v);
        }
        free(l->v);
        l->v = v;
        l->size = size;
    }
    return &l->v[l->n++];
}

void sg_lease_events_add(struct sg_lease_events *l, const struct sg_lease *lease, bool extended, int64_t at_us)
{
    struct sg_lease_event *e = room(l);
    *e = (struct sg_lease_event){.seq = ++l->last,
                                 .at_us = at_us,
                                 .expires_us = lease->expires_us,
                                 .state = lease->state,
                                 .extended = extended,
                                 .reason = lease->reason[0] != '\0' ? sg_xstrdup(lease->reason) : NULL};
}

void sg_lease_events_skip(struct sg_lease_events *l)
{
    l->last += SG_LEASE_EVENTS_GAP;
}

void sg_lease_events_copy(struct sg_lease_events *dst, const struct sg_lease_events *src)
{
    *dst = (struct sg_lease_events){.last = src->last};
    for (size_t i = 0; i < src->n; i++) {
        struct sg_lease_event *e = room(dst);
        *e = src->v[i];
        e->reason = e->reason != NULL ? sg_xstrdup(e->reason) : NULL;
    }
}

void sg_lease_events_finish(struct sg_lease_events *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].reason);
    }
    free(l->v);
    memset(l, 0, sizeof *l);
}

int sg_lease_events_from(const struct sg_lease_events *l, uint64_t after, size_t *ret, struct sg_error *err)
{
    uint64_t newest = l->n > 0 ? l->v[l->n - 1].seq : 0;
    if (after > newest) {
        return sg_error_field(err, SG_INVALID_REQUEST, "after", "there is no event of that number yet");
    }
    if (l->n > 0 && after + 1 < l->v[0].seq) {
        uint64_t oldest = l->v[0].seq;
        (void)sg_error_set(err, SG_HISTORY_DROPPED,
                           "the events after number %" PRIu64 " are no longer kept; the oldest one is number %" PRIu64,
                           after, oldest);
        sg_error_member(err, "oldest_seq", json_integer((json_int_t)oldest));
        return -1;
    }
    size_t i = 0;
    while (i < l->n && l->v[i].seq <= after) {
        i++;
    }
    *ret = i;
    return 0;
}

/* ---- the store's text: [[seq, at, expires, state, extended, reason], ...] ---- */

char *sg_lease_events_dump(const struct sg_lease_events *l)
{
    sg_cleanup(sg_json_p) json_t *all = json_array();
    size_t len;
    for (size_t i = 0; i < l->n; i++) {
        const struct sg_lease_event *e = &l->v[i];
        json_t *one = json_pack("[I, I, I, s, b, s?]", (json_int_t)e->seq, (json_int_t)e->at_us,
                                (json_int_t)e->expires_us, sg_lease_state_name(e->state), (int)e->extended,
                                e->reason);
        if (json_array_append_new(all, one) < 0) {
            return NULL;
        }
    }
    return sg_json_dump(all, &len);
}

static int parse_one(json_t *v, struct sg_lease_events *l)
{
    json_int_t seq, at, expires;
    const char *state;
    json_t *reason;
    int extended;
    struct sg_lease_event e = {0};
    if (json_unpack(v, "[I, I, I, s, b, o!]", &seq, &at, &expires, &state, &extended, &reason) < 0 || seq < 1 ||
        (uint64_t)seq <= l->last || !sg_lease_state_parse(state, &e.state)) {
        return -1;
    }
    e.seq = l->last = (uint64_t)seq;
    e.at_us = at;
    e.expires_us = expires;
    e.extended = extended != 0;
    e.reason = json_is_string(reason) ? sg_xstrdup(json_string_value(reason)) : NULL;
    *room(l) = e;
    return 0;
}

int sg_lease_events_parse(const char *text, struct sg_lease_events *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *all = NULL;
    size_t i;
    json_t *v;
    *ret = (struct sg_lease_events){0};
    int rc = sg_json_parse(text, strlen(text), &all, NULL);
    if (rc == 0 && !json_is_array(all)) {
        rc = -1;
    }
    json_array_foreach(all, i, v)
    {
        rc = rc == 0 ? parse_one(v, ret) : rc;
    }
    if (rc < 0) {
        sg_lease_events_finish(ret);
        return sg_error_set(err, SG_INTERNAL, "the stored events of a lease cannot be read");
    }
    return 0;
}

/* ---- the API's words ---- */

enum sg_event_type sg_lease_event_type(const struct sg_lease_event *e)
{
    static const enum sg_event_type types[SG_LEASE_STATE_COUNT] = {
        [SG_LEASE_CREATING] = SG_EVENT_CREATING,     [SG_LEASE_READY] = SG_EVENT_READY,
        [SG_LEASE_RELEASING] = SG_EVENT_RELEASING,   [SG_LEASE_TERMINATED] = SG_EVENT_TERMINATED,
        [SG_LEASE_FAILED] = SG_EVENT_FAILED,         [SG_LEASE_EXPIRED] = SG_EVENT_EXPIRED,
        [SG_LEASE_LOST] = SG_EVENT_LOST,
    };
    return e->extended ? SG_EVENT_EXTENDED : types[e->state];
}

/* Where a local sandbox is: {name, local_pool, generation}. Only there these are not the caller's own metadata. */
static json_t *slot_json(const struct sg_lease *lease)
{
    json_t *name = json_object_get(lease->metadata, "slot");
    if (!sg_streq(lease->provider, "local_bwrap") || name == NULL) {
        return json_null();
    }
    return json_pack("{s:o, s:o?, s:o?}", "name", sg_json_ref(name), "local_pool",
                     sg_json_ref(json_object_get(lease->metadata, "local_pool")), "generation",
                     sg_json_ref(json_object_get(lease->metadata, "generation")));
}

static const char *or_null(const char *s)
{
    return s != NULL && s[0] != '\0' ? s : NULL;
}

char *sg_lease_event_text(const struct sg_lease_event *e, const struct sg_lease *lease)
{
    char at[SG_TIME_LEN], expires[SG_TIME_LEN];
    size_t len;
    bool placed = e->expires_us != 0;
    sg_time_format(e->at_us, at);
    sg_time_format(e->expires_us, expires);
    sg_cleanup(sg_json_p) json_t *v = json_pack(
        "{s:s, s:s, s:s?, s:s?, s:s?, s:s?, s:o}", "at", at, "state", sg_lease_state_name(e->state), "reason",
        or_null(e->reason), "expires_at", placed ? expires : NULL, "provider", placed ? or_null(lease->provider) : NULL,
        "sandbox_id", placed ? or_null(lease->sandbox_id) : NULL, "slot", placed ? slot_json(lease) : json_null());
    return v != NULL ? sg_json_dump(v, &len) : NULL;
}
