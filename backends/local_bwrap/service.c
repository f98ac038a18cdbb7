/* The service of a blackbox slot: started before the slot is READY, watched for as long as the sandbox lives. Reactor only, but
 * for service_log_tail().
 *
 * What it writes goes into the slot's log, a ring that the slot's later sandboxes go on writing to: why one died can still be
 * read when the next one runs. A service that writes without end is slowed down, as by any slow reader of its pipes.
 */
#include <stdio.h>

#include "backends/local_bwrap/pool_priv.h"
#include "base/clock.h"

#define PIPE_BYTES ((size_t)16 * 1024)
/* At most so much of each stream in a turn, then a pause: 3 MB/s. */
#define TURN_BYTES ((size_t)64 * 1024)
#define PAUSE_MS 20
/* Of a check of one that is READY. */
#define CHECK_MS 5000
#define FOR_EVER_MS (INT64_MAX / 4)

/* ---- log ---- */

static void log_add(struct slot *s, const char *data, size_t len)
{
    struct service_log *log = &s->log;
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    if (log->data == NULL) {
        log->data = sg_xcalloc(1, SERVICE_LOG_BYTES);
    }
    for (size_t done = 0; done < len;) {
        size_t at = (size_t)(log->total % SERVICE_LOG_BYTES);
        size_t n = len - done < SERVICE_LOG_BYTES - at ? len - done : SERVICE_LOG_BYTES - at;
        memcpy(log->data + at, data + done, n);
        log->total += n;
        done += n;
    }
    (void)pthread_mutex_unlock(&l->lock);
}

char *service_log_tail(struct slot *s, size_t max, size_t *ret_len, uint64_t *ret_total)
{
    struct service_log *log = &s->log;
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    size_t n = log->total < SERVICE_LOG_BYTES ? (size_t)log->total : SERVICE_LOG_BYTES;
    n = n < max ? n : max;
    char *text = sg_xcalloc(1, n + 1);
    for (size_t i = 0; i < n; i++) {
        text[i] = log->data[(log->total - n + i) % SERVICE_LOG_BYTES];
    }
    *ret_total = log->total;
    (void)pthread_mutex_unlock(&l->lock);
    *ret_len = n;
    return text;
}

static void log_note(struct gen *g, const char *what)
{
    char line[160];
    int n = snprintf(line, sizeof line, "[sandgate] generation %llu: %s\n", (unsigned long long)g->slot->generation, what);
    log_add(g->slot, line, n > 0 && (size_t)n < sizeof line ? (size_t)n : 0);
}

/* What it wrote last, for people: its last line that is not ours. */
static void last_line(struct slot *s, char *out, size_t size)
{
    size_t n;
    uint64_t total;
    sg_cleanup(sg_free_p) char *text = service_log_tail(s, 400, &n, &total);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == '\0')) {
        text[--n] = '\0';
    }
    const char *line = memrchr(text, '\n', n);
    line = line != NULL ? line + 1 : text;
    bool ours = strncmp(line, "[sandgate]", 10) == 0 || *line == '\0';
    (void)snprintf(out, size, "%s%.150s", ours ? "" : ": ", ours ? "" : line);
}

/* ---- output ---- */

/* True: nothing is left to read now. */
static bool read_some(struct service_out *o, size_t max)
{
    char data[8192];
    for (size_t got = 0; got < max;) {
        ssize_t n = sg_pipe_read(o->pipe, data, sizeof data);
        if (n <= 0) {
            return true;
        }
        log_add(o->g->slot, data, (size_t)n);
        got += (size_t)n;
    }
    return false;
}

static void pause_over(struct sg_timer *t)
{
    struct service_out *o = sg_container_of(t, struct service_out, pause);
    if (!read_some(o, TURN_BYTES)) {
        sg_timer_set(o->g->l->parts.reactor, t, sg_now_ms() + PAUSE_MS);
    }
}

/* The writing side of the pipe is the agent's client on the reactor. */
static void wake(void *arg)
{
    struct service_out *o = arg;
    if (o->pause.slot == 0) {
        pause_over(&o->pause);
    }
}

static void out_open(struct service_out *o, struct gen *g, struct sg_pipe *pipe)
{
    o->g = g;
    o->pipe = sg_pipe_ref(pipe);
    o->pause.fire = pause_over;
    sg_pipe_set_reader(pipe, &(struct sg_waker){.wake = wake, .arg = o});
}

static void out_close(struct service_out *o)
{
    if (o->pipe == NULL) {
        return;
    }
    sg_pipe_set_reader(o->pipe, NULL);
    sg_timer_cancel(o->g->l->parts.reactor, &o->pause);
    (void)read_some(o, PIPE_BYTES);
    o->pipe = sg_pipe_unref(o->pipe);
}

/* ---- health ---- */

static int dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done, struct sg_error *err)
{
    struct gen *g = arg;
    return sg_agent_dial(g->base.agent, port, deadline_ms, done, err);
}

static void probed(void *arg, const struct sg_error *err)
{
    struct gen *g = arg;
    struct sg_error why = {0};
    g->service.probe = NULL;
    if (err == NULL) {
        if (!g->ready) {
            gen_offer(g);
        }
        return;
    }
    if (err->code == SG_SANDBOX_LOST || err->code == SG_LEASE_GONE) {
        return; /* the pool hears of that by itself */
    }
    sg_error_set(&why, SG_SANDBOX_LOST, "the service %s: %.300s", g->ready ? "is not well any more" : "did not become ready", err->message);
    sg_error_reason(&why, "service_unhealthy");
    gen_died(g, &why, true);
    sg_error_clear(&why);
}

static void probe(struct gen *g, int64_t deadline_ms)
{
    const struct sg_local_pool_config *c = &g->slot->pool->cfg;
    const struct sg_probe_args a = {.reactor = g->l->parts.reactor,
                                    .dial = dial,
                                    .done = probed,
                                    .arg = g,
                                    .port = c->service_port,
                                    .path = c->service_health_path,
                                    .deadline_ms = deadline_ms};
    g->service.probe = sg_probe_start(&a);
}

void service_check(struct gen *g)
{
    if (g->service.x != NULL && g->service.probe == NULL) {
        probe(g, sg_now_ms() + CHECK_MS);
    }
}

void service_uncheck(struct gen *g)
{
    g->service.probe = sg_probe_cancel(g->service.probe);
}

/* ---- start and end ---- */

static void over(struct gen *g, const char *how)
{
    struct sg_error why = {0};
    char line[160];
    if (g->ending) {
        return;
    }
    out_close(&g->service.out);
    out_close(&g->service.err);
    line[0] = '\0';
    if (!g->ready) {
        last_line(g->slot, line, sizeof line);
    }
    log_note(g, how);
    sg_error_set(&why, SG_SANDBOX_LOST, "%s%s%s", how, g->ready ? "" : " before it was ready", line);
    sg_error_reason(&why, "service_ended");
    gen_died(g, &why, true);
    sg_error_clear(&why);
}

static void started(void *arg)
{
    struct gen *g = arg;
    if (!g->ending) {
        probe(g, sg_now_ms() + g->slot->pool->cfg.service_start_ms);
    }
}

static void failed(void *arg, const struct sg_error *err)
{
    char how[256];
    if (err->code != SG_SANDBOX_LOST && err->code != SG_LEASE_GONE) { /* else the pool hears of it by itself */
        (void)snprintf(how, sizeof how, "the service could not be run: %.200s", err->message);
        over(arg, how);
    }
}

static void exited(void *arg, const struct sg_exit *e)
{
    char how[96];
    if (e->signal != 0) {
        (void)snprintf(how, sizeof how, "the service was ended by %s%s", sg_signal_name(e->signal),
                       e->killed_by == SG_KILLED_OOM ? " for want of memory" : "");
    } else {
        (void)snprintf(how, sizeof how, "the service ended with exit code %d", e->returncode);
    }
    over(arg, how);
}

static char **arguments(const struct gen *g)
{
    const struct sg_local_pool_config *c = &g->slot->pool->cfg;
    size_t n = 0;
    while (c->service_command[n] != NULL) {
        n++;
    }
    char **argv = sg_xcalloc(n + 1, sizeof *argv);
    for (size_t i = 0; i < n; i++) {
        argv[i] = sg_service_text(c->service_command[i], g->slot->name, c->service_port, NULL);
    }
    return argv;
}

int service_start(struct gen *g, struct sg_error *err)
{
    const struct sg_exec_sink sink = {.started = started, .failed = failed, .exited = exited, .arg = g};
    struct sg_agent_tree tree = {0};
    struct sg_env env = {0};
    char port[8];
    (void)snprintf(port, sizeof port, "%u", (unsigned)g->slot->pool->cfg.service_port);
    if (sg_env_base(&env, err) < 0 || sg_env_set(&env, "PORT", port, err) < 0 ||
        (g->proxy != NULL && sg_env_merge(&env, &g->l->proxy_env, err) < 0) || gen_group(g, &tree, err) < 0) {
        sg_env_finish(&env);
        return -1;
    }
    char **argv = arguments(g);
    const struct sg_exec_spec spec = {
        .argv = (const char *const *)argv, .env = &env, .timeout_ms = FOR_EVER_MS, .pipe_bytes = PIPE_BYTES};
    log_note(g, "the service starts");
    int rc = sg_agent_exec_start(g->base.agent, &spec, &tree, &sink, &g->service.x, err);
    if (rc < 0) {
        tree.free(tree.arg);
    } else {
        out_open(&g->service.out, g, g->service.x->out);
        out_open(&g->service.err, g, g->service.x->err);
    }
    for (size_t i = 0; argv[i] != NULL; i++) {
        free(argv[i]);
    }
    free(argv);
    sg_env_finish(&env);
    return rc;
}

void service_end(struct gen *g)
{
    service_uncheck(g);
    out_close(&g->service.out);
    out_close(&g->service.err);
    if (g->service.x != NULL) {
        g->service.x->ops->release(g->service.x);
        g->service.x = NULL;
    }
}
