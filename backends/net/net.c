/* The thread, the clients and the turns of their calls. */
#include "backends/net/net_priv.h"

#include <errno.h>
#include <limits.h>
#include <utlist.h>

#include "base/clock.h"

#define WIRES_MAX 4096U      /* upgraded connections at the same time, of all clients */
#define POLL_MS 60000        /* with nothing to wait for; a poke ends it */
#define LEAST_LEFT_MS 300    /* who waited, and has less time for the call itself, had better not begin: it may be done and not answered */
#define KEPT_CONNECTIONS 64L /* idle ones, of all clients */

struct sg_net_call *sg_call_ref(struct sg_net_call *c)
{
    (void)atomic_fetch_add(&c->refs, 1);
    return c;
}

void sg_call_unref(struct sg_net_call *c)
{
    if (atomic_fetch_sub(&c->refs, 1) > 1) {
        return;
    }
    struct sg_net *n = c->net;
    sg_call_free(c);
    (void)pthread_mutex_lock(&n->lock);
    if (--n->objects == 0) {
        (void)pthread_cond_broadcast(&n->idle);
    }
    (void)pthread_mutex_unlock(&n->lock);
}

/* Under the lock. */
static void poke_locked(struct sg_net *n, struct sg_net_call *c)
{
    if (!c->poked && !c->starting && c->state != SG_CALL_ENDED) {
        c->poked = true;
        sg_call_ref(c);
        DL_APPEND2(n->poked, c, poked_prev, poked_next);
    }
}

void sg_call_poke(struct sg_net_call *c)
{
    struct sg_net *n = c->net;
    (void)pthread_mutex_lock(&n->lock);
    poke_locked(n, c);
    (void)curl_multi_wakeup(n->multi);
    (void)pthread_mutex_unlock(&n->lock);
}

/* ---- the end of a call; net thread ---- */

static void count_end(struct sg_net_counts *n, const struct sg_net_call *c, const struct sg_error *err)
{
    n->bytes_in += c->bytes_in;
    n->bytes_out += c->body_pipe != NULL ? (uint64_t)c->body_sent : c->body_len;
    if (err == NULL) {
        n->answered++;
    } else if (err->code == SG_CANCELLED) {
        n->cancelled++;
    } else {
        n->failed++;
        n->timed_out += err->code == SG_PROVIDER_TIMEOUT || strcmp(err->reason, "busy") == 0;
    }
}

static void settle_pipes(struct sg_net_call *c, const struct sg_error *err)
{
    if (c->body_pipe != NULL) {
        sg_pipe_set_reader(c->body_pipe, NULL);
        sg_pipe_stop(c->body_pipe);
    }
    if (c->response_pipe == NULL) {
        return;
    }
    sg_pipe_set_writer(c->response_pipe, NULL);
    if (err == NULL) {
        sg_pipe_close(c->response_pipe);
    } else {
        sg_pipe_fail(c->response_pipe, err);
    }
}

static void run_waiting(struct sg_net_client *client);

/* err NULL: with its response. c->done may be the last that anybody sees of the client. */
static void end(struct sg_net_call *c, const struct sg_error *err)
{
    struct sg_net_client *client = c->client;
    struct sg_net *n = client->net;
    if (c->state == SG_CALL_WAITING) {
        DL_DELETE2(client->queue, c, queue_prev, queue_next);
    }
    if (c->wire != NULL && c->wire->state != SG_WIRE_CONNECTING) {
        DL_DELETE2(n->wires, c, wire_prev, wire_next);
    }
    if (c->easy != NULL) {
        (void)curl_multi_remove_handle(n->multi, c->easy);
        curl_easy_cleanup(c->easy);
        c->easy = NULL;
    }
    if (c->cancel != NULL && sg_cancel_unhook(c->cancel, &c->hook)) {
        sg_call_unref(c);
    }
    settle_pipes(c, err);
    (void)pthread_mutex_lock(&n->lock);
    client->counts.waiting -= c->state == SG_CALL_NEW || c->state == SG_CALL_WAITING;
    client->counts.running -= c->state == SG_CALL_RUNNING;
    count_end(&client->counts, c, err);
    c->state = SG_CALL_ENDED;
    (void)pthread_mutex_unlock(&n->lock);
    run_waiting(client);
    c->done(c->arg, err == NULL ? &c->response : NULL, err);
    (void)pthread_mutex_lock(&n->lock);
    DL_DELETE2(client->alive, c, alive_prev, alive_next);
    if (client->alive == NULL) {
        (void)pthread_cond_broadcast(&n->idle);
    }
    (void)pthread_mutex_unlock(&n->lock);
    sg_call_unref(c);
}

static void end_stopped(struct sg_net_call *c)
{
    struct sg_error err = {0};
    if (c->stop == SG_CALL_CANCELLED) {
        sg_error_set(&err, SG_CANCELLED, "the call was cancelled");
    } else {
        sg_error_set(&err, SG_SHUTTING_DOWN, "calls to %s are being shut down", c->client->shown);
        sg_error_retry_after(&err, 5);
    }
    end(c, &err);
    sg_error_clear(&err);
}

static void end_late(struct sg_net_call *c)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "%s is busy: the call did not get its turn in time", c->client->shown);
    sg_error_reason(&err, "busy");
    sg_error_retry_after(&err, 1);
    end(c, &err);
    sg_error_clear(&err);
}

/* ---- turns; net thread ---- */

static bool take_turn(struct sg_net_call *c)
{
    struct sg_net *n = c->client->net;
    (void)pthread_mutex_lock(&n->lock);
    bool free_turn = c->client->counts.running < c->client->max_concurrent;
    if (free_turn) {
        c->client->counts.running++;
        c->client->counts.waiting--;
        c->state = SG_CALL_RUNNING;
    }
    (void)pthread_mutex_unlock(&n->lock);
    return free_turn;
}

static void start(struct sg_net_call *c)
{
    struct sg_error err = {0};
    int rc = sg_call_prepare(c, &err);
    if (rc == 0 && curl_multi_add_handle(c->client->net->multi, c->easy) != CURLM_OK) {
        rc = sg_error_set(&err, SG_NO_MEMORY, "no memory for a call to %s", c->client->shown);
    }
    if (rc < 0) {
        end(c, &err);
    }
    sg_error_clear(&err);
}

/* One that cannot start ends, and its end brings us here again: at most once per waiting call. */
static void run_waiting(struct sg_net_client *client)
{
    struct sg_net_call *c = client->queue;
    if (c != NULL && c->waited && c->deadline_ms > 0 && c->deadline_ms - sg_now_ms() < LEAST_LEFT_MS) {
        end_late(c);
        return;
    }
    if (c == NULL || !take_turn(c)) {
        return;
    }
    DL_DELETE2(client->queue, c, queue_prev, queue_next);
    start(c);
}

static void wire_went(struct sg_net_call *c, int went)
{
    if (went != 0) {
        end(c, went < 0 ? &c->why : NULL);
    }
}

static void wire_begin(struct sg_net_call *c)
{
    DL_APPEND2(c->net->wires, c, wire_prev, wire_next);
    int went = sg_wire_begin(c);
    c->wire->state = c->wire->state == SG_WIRE_CONNECTING ? SG_WIRE_REQUEST : c->wire->state; /* it is in the list */
    wire_went(c, went);
}

/* Each of them has its turn; a reference, as a callback may end another. How long the thread may sleep for their sake. */
static int step_wires(struct sg_net *n, int wait_ms)
{
    struct sg_net_call *c = n->wires != NULL ? sg_call_ref(n->wires) : NULL;
    n->n_waits = 0;
    while (c != NULL) {
        struct sg_net_call *next = c->wire_next != NULL ? sg_call_ref(c->wire_next) : NULL;
        if (c->state == SG_CALL_RUNNING) {
            wire_went(c, sg_wire_step(c));
        }
        sg_call_unref(c);
        c = next;
    }
    DL_FOREACH2(n->wires, c, wire_next)
    {
        int64_t left = c->headed || c->deadline_ms == 0 ? wait_ms : c->deadline_ms - sg_now_ms();
        wait_ms = c->wire->more || left <= 0 ? 0 : left < wait_ms ? (int)left : wait_ms;
        n->n_waits += n->n_waits < WIRES_MAX && sg_wire_wants(c, &n->waits[n->n_waits]);
    }
    return wait_ms;
}

static void set_state(struct sg_net_call *c, enum sg_call_state state)
{
    (void)pthread_mutex_lock(&c->net->lock);
    c->state = state;
    (void)pthread_mutex_unlock(&c->net->lock);
}

static void look(struct sg_net_call *c)
{
    if (c->state == SG_CALL_ENDED) {
        return;
    }
    if (c->stop != SG_CALL_GO) {
        end_stopped(c);
    } else if (c->state == SG_CALL_NEW) {
        set_state(c, SG_CALL_WAITING);
        DL_APPEND2(c->client->queue, c, queue_prev, queue_next);
        run_waiting(c->client);
        c->waited = true;
    } else if (c->state == SG_CALL_RUNNING && c->wire != NULL && c->wire->state != SG_WIRE_CONNECTING) {
        wire_went(c, sg_wire_step(c));
    } else if (c->state == SG_CALL_RUNNING && c->paused) {
        c->paused = false;
        (void)curl_easy_pause(c->easy, CURLPAUSE_CONT); /* calls the callbacks, which may pause it again */
    } else if (c->response_pipe != NULL && sg_pipe_is_over(c->response_pipe)) {
        (void)atomic_exchange(&c->stop, SG_CALL_CANCELLED);
        end_stopped(c);
    }
}

static struct sg_net_call *next_poked(struct sg_net *n)
{
    (void)pthread_mutex_lock(&n->lock);
    struct sg_net_call *c = n->poked;
    if (c != NULL) {
        DL_DELETE2(n->poked, c, poked_prev, poked_next);
        c->poked = false;
    }
    (void)pthread_mutex_unlock(&n->lock);
    return c;
}

/* The waiting call whose deadline comes first, with a reference. */
static struct sg_net_call *most_urgent(struct sg_net *n)
{
    struct sg_net_call *best = NULL;
    (void)pthread_mutex_lock(&n->lock);
    for (struct sg_net_client *k = n->clients; k != NULL; k = k->next) {
        for (struct sg_net_call *c = k->queue; c != NULL; c = c->queue_next) {
            if (c->deadline_ms > 0 && (best == NULL || c->deadline_ms < best->deadline_ms)) {
                best = c;
            }
        }
    }
    if (best != NULL) {
        sg_call_ref(best);
    }
    (void)pthread_mutex_unlock(&n->lock);
    return best;
}

/* Ends who waited too long; how long the thread may sleep. */
static int expire(struct sg_net *n)
{
    for (;;) {
        struct sg_net_call *c = most_urgent(n);
        int64_t left = c != NULL ? c->deadline_ms - sg_now_ms() : POLL_MS;
        if (c != NULL && left <= 0) {
            end_late(c);
        }
        if (c != NULL) {
            sg_call_unref(c);
        }
        if (left > 0) {
            return left < POLL_MS ? (int)left : POLL_MS;
        }
    }
}

static void reap(struct sg_net *n)
{
    int left;
    for (CURLMsg *m = curl_multi_info_read(n->multi, &left); m != NULL; m = curl_multi_info_read(n->multi, &left)) {
        struct sg_net_call *c = NULL;
        struct sg_error err = {0};
        CURLcode rc = m->data.result;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c) != CURLE_OK || c == NULL) {
            continue;
        }
        if (c->wire != NULL && rc == CURLE_OK) {
            wire_begin(c);
            continue;
        }
        end(c, sg_call_verdict(c, rc, &err) < 0 ? &err : NULL);
        sg_error_clear(&err);
    }
}

static void *run(void *arg)
{
    struct sg_net *n = arg;
    bool stop = false;
    while (!stop) {
        for (struct sg_net_call *c = next_poked(n); c != NULL; c = next_poked(n)) {
            look(c);
            sg_call_unref(c);
        }
        int running;
        (void)curl_multi_perform(n->multi, &running);
        reap(n);
        int wait_ms = step_wires(n, expire(n));
        (void)pthread_mutex_lock(&n->lock);
        stop = n->stop;
        bool more = n->poked != NULL;
        (void)pthread_mutex_unlock(&n->lock);
        if (!stop && !more) {
            (void)curl_multi_poll(n->multi, n->waits, n->n_waits, wait_ms, NULL);
        }
    }
    return NULL;
}

/* ---- the net ---- */

int sg_net_new(struct sg_net **ret, struct sg_error *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return sg_error_set(err, SG_INTERNAL, "cannot initialise libcurl");
    }
    struct sg_net *n = sg_xcalloc(1, sizeof *n);
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)pthread_cond_init(&n->idle, NULL);
    n->multi = curl_multi_init();
    n->waits = sg_xcalloc(WIRES_MAX, sizeof *n->waits);
    int rc = n->multi == NULL ? ENOMEM : 0;
    if (rc == 0) {
        (void)curl_multi_setopt(n->multi, CURLMOPT_MAXCONNECTS, KEPT_CONNECTIONS);
        rc = pthread_create(&n->thread, NULL, run, n);
    }
    if (rc != 0) {
        n->stop = true;
        sg_error_sys(err, SG_INTERNAL, rc, "cannot start the thread of HTTP calls");
        curl_multi_cleanup(n->multi);
        curl_global_cleanup();
        free(n->waits);
        free(n);
        return -1;
    }
    *ret = n;
    return 0;
}

struct sg_net *sg_net_free(struct sg_net *n)
{
    if (n == NULL) {
        return NULL;
    }
    (void)pthread_mutex_lock(&n->lock);
    n->stop = true;
    (void)curl_multi_wakeup(n->multi);
    (void)pthread_mutex_unlock(&n->lock);
    (void)pthread_join(n->thread, NULL);
    for (struct sg_net_call *c = next_poked(n); c != NULL; c = next_poked(n)) {
        sg_call_unref(c); /* of calls that have ended */
    }
    (void)pthread_mutex_lock(&n->lock);
    while (n->objects > 0) { /* a cancel that is just being fired still has one */
        (void)pthread_cond_wait(&n->idle, &n->lock);
    }
    (void)pthread_mutex_unlock(&n->lock);
    (void)curl_multi_cleanup(n->multi);
    curl_global_cleanup();
    (void)pthread_cond_destroy(&n->idle);
    (void)pthread_mutex_destroy(&n->lock);
    free(n->waits);
    free(n);
    return NULL;
}

/* ---- clients ---- */

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* Printable ASCII without blanks. */
static bool plain(const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s <= ' ' || *s >= 0x7f) {
            return false;
        }
    }
    return true;
}

static int take_base(struct sg_net_client *c, const char *base, struct sg_error *err)
{
    if (base != NULL && begins(base, "unix:///") && strlen(base) - 7 < 108 && base[8] != '\0') {
        c->socket = sg_xstrdup(base + 7);
        c->url = sg_xstrdup("http://localhost");
        c->shown = sg_xstrdup(base);
        return 0;
    }
    size_t scheme = base == NULL ? 0 : begins(base, "http://") ? 7 : begins(base, "https://") ? 8 : 0;
    if (scheme == 0 || base[scheme] == '\0' || base[scheme] == '/' || strpbrk(base, "?#@") != NULL || !plain(base)) {
        return sg_error_set(err, SG_INVALID_REQUEST, "\"%s\" is not http://HOST[:PORT][/PREFIX], https://... or unix:///PATH",
                            base != NULL ? base : "");
    }
    size_t len = strlen(base);
    while (base[len - 1] == '/') {
        len--;
    }
    c->url = sg_xstrndup(base, len);
    c->shown = sg_xstrndup(base + scheme, strcspn(base + scheme, "/"));
    return 0;
}

static int take_proxy(struct sg_net_client *c, const struct sg_secret *proxy, struct sg_error *err)
{
    static const char scheme[] = "http://";
    const char *url = proxy != NULL ? sg_secret_expose(proxy, NULL) : "";
    if (proxy == NULL) {
        return 0;
    }
    const char *auth = url + sizeof scheme - 1;
    const char *at = begins(url, scheme) ? strrchr(auth, '@') : NULL;
    const char *host = at != NULL ? at + 1 : auth;
    if (!begins(url, scheme) || !plain(url) || host[0] == '\0' || strpbrk(host, "/?#") != NULL || c->socket != NULL) {
        return sg_error_set(err, SG_INVALID_REQUEST, "the proxy for %s is not http://[USER:PASSWORD@]HOST[:PORT]", c->shown);
    }
    c->proxy = sg_xasprintf("%s%s", scheme, host);
    c->proxy_auth = at != NULL ? sg_secret_new(auth, (size_t)(at - auth)) : NULL;
    return 0;
}

/* As curl wants it: of any name and port. */
static int take_connect_to(struct sg_net_client *c, const char *to, struct sg_error *err)
{
    const char *colon = to != NULL ? strrchr(to, ':') : NULL;
    if (to == NULL) {
        return 0;
    }
    if (colon == NULL || colon == to || colon[1] == '\0' || strpbrk(to, "/?#@") != NULL || !plain(to) || c->socket != NULL) {
        return sg_error_set(err, SG_INVALID_REQUEST, "\"%s\" is not HOST:PORT", to);
    }
    sg_cleanup(sg_free_p) char *rule = sg_xasprintf("::%s", to);
    c->connect_to = curl_slist_append(NULL, rule);
    return c->connect_to != NULL ? 0 : sg_error_set(err, SG_NO_MEMORY, "no memory for a client");
}

static char *copy(const char *s)
{
    return s != NULL ? sg_xstrdup(s) : NULL;
}

static void client_drop(struct sg_net_client *c)
{
    free(c->url);
    free(c->socket);
    free(c->shown);
    free(c->ca_file);
    free(c->cert_file);
    free(c->key_file);
    free(c->proxy);
    sg_secret_free(c->proxy_auth);
    curl_slist_free_all(c->connect_to);
    free(c);
}

int sg_net_client_new(struct sg_net *n, const struct sg_net_client_config *cfg, struct sg_net_client **ret, struct sg_error *err)
{
    struct sg_net_client *c = sg_xcalloc(1, sizeof *c);
    if (take_base(c, cfg->base, err) < 0 || take_proxy(c, cfg->proxy, err) < 0 || take_connect_to(c, cfg->connect_to, err) < 0) {
        client_drop(c);
        return -1;
    }
    c->net = n;
    c->ca_file = copy(cfg->ca_file);
    c->cert_file = copy(cfg->cert_file);
    c->key_file = copy(cfg->key_file);
    c->http2 = cfg->http2;
    c->max_concurrent = cfg->max_concurrent > 0 ? cfg->max_concurrent : SG_NET_CONCURRENT_MAX;
    c->max_waiting = cfg->max_waiting > 0 ? cfg->max_waiting : SG_NET_WAITING_MAX;
    c->receive_buffer = cfg->receive_buffer;
    c->connect_ms = cfg->connect_ms > 0 ? cfg->connect_ms : SG_NET_CONNECT_MS;
    (void)pthread_mutex_lock(&n->lock);
    DL_APPEND(n->clients, c);
    (void)pthread_mutex_unlock(&n->lock);
    *ret = c;
    return 0;
}

struct sg_net_client *sg_net_client_free(struct sg_net_client *c)
{
    if (c == NULL) {
        return NULL;
    }
    struct sg_net *n = c->net;
    (void)pthread_mutex_lock(&n->lock);
    c->closing = true;
    for (struct sg_net_call *k = c->alive; k != NULL; k = k->alive_next) {
        enum sg_call_stop go = SG_CALL_GO;
        (void)atomic_compare_exchange_strong(&k->stop, &go, SG_CALL_CLOSED);
        poke_locked(n, k);
    }
    (void)curl_multi_wakeup(n->multi);
    while (c->alive != NULL) {
        (void)pthread_cond_wait(&n->idle, &n->lock);
    }
    DL_DELETE(n->clients, c);
    (void)pthread_mutex_unlock(&n->lock);
    client_drop(c);
    return NULL;
}

void sg_net_client_counts(struct sg_net_client *c, struct sg_net_counts *ret)
{
    (void)pthread_mutex_lock(&c->net->lock);
    *ret = c->counts;
    ret->max_concurrent = c->max_concurrent;
    (void)pthread_mutex_unlock(&c->net->lock);
}

/* ---- calls ---- */

static void cancelled(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct sg_net_call *c = sg_container_of(h, struct sg_net_call, hook);
    (void)why;
    enum sg_call_stop go = SG_CALL_GO;
    (void)atomic_compare_exchange_strong(&c->stop, &go, SG_CALL_CANCELLED);
    sg_call_poke(c);
    sg_call_unref(c);
}

static int admit(struct sg_net_client *client, struct sg_net_call *c, struct sg_error *err)
{
    struct sg_net *n = client->net;
    int rc = 0;
    (void)pthread_mutex_lock(&n->lock);
    if (client->closing) {
        rc = sg_error_set(err, SG_SHUTTING_DOWN, "calls to %s are being shut down", client->shown);
        sg_error_retry_after(err, 5);
    } else if (client->counts.waiting >= client->max_waiting) {
        client->counts.refused++;
        rc = sg_error_set(err, SG_OVERLOADED, "%u calls to %s wait already", client->counts.waiting, client->shown);
        sg_error_retry_after(err, 1);
    } else {
        c->starting = true; /* nobody looks at it until it is complete */
        client->counts.calls++;
        client->counts.waiting++;
        DL_APPEND2(client->alive, c, alive_prev, alive_next);
    }
    (void)pthread_mutex_unlock(&n->lock);
    return rc;
}

int sg_net_call(struct sg_net_client *client, const struct sg_net_request *q, struct sg_error *err)
{
    struct sg_net_call *c = NULL;
    if (sg_cancel_fired(q->cancel) != SG_CANCEL_NONE) {
        return sg_error_set(err, SG_CANCELLED, "cancelled before the call");
    }
    if (sg_call_new(client, q, &c, err) < 0) {
        return -1;
    }
    if (admit(client, c, err) < 0) {
        sg_call_unref(c);
        return -1;
    }
    if (c->cancel != NULL) {
        c->hook.fired = cancelled;
        (void)sg_cancel_hook(c->cancel, &sg_call_ref(c)->hook); /* fired already: the hook has run, and dropped its reference */
    }
    struct sg_net *n = c->net;
    (void)pthread_mutex_lock(&n->lock);
    c->starting = false;
    poke_locked(n, c);
    (void)curl_multi_wakeup(n->multi);
    (void)pthread_mutex_unlock(&n->lock);
    return 0;
}
