/* The life of a sandbox: made, found again, extended, ended. */
#include "backends/e2b/e2b_priv.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

#define LOOKS 4U           /* for what an answer that did not come may have made */
#define LOOK_FIRST_MS 500
#define LOOK_MAX_MS 8000
#define PAGES_MAX 100U
#define PREPARE_MS 30000
#define ADOPT_RETRY_MAX_MS 15000
#define CHECK_MS 20000

int64_t e2b_deadline(const struct e2b *d)
{
    return sg_now_ms() + d->timeout_ms;
}

/* ---- the struct ---- */

size_t e2b_headers(const struct e2b_sandbox *sb, const char *user, struct sg_net_header out[4])
{
    size_t n = 0;

    out[n++] = (struct sg_net_header){.name = "E2b-Sandbox-Id", .value = sb->base.id};
    out[n++] = (struct sg_net_header){.name = "E2b-Sandbox-Port", .value = E2B_PORT};
    out[n++] = (struct sg_net_header){.name = "X-Access-Token", .secret = sb->token};
    if (user) /* "NAME:" in base64 */
        out[n++] = (struct sg_net_header){.name = "Authorization", .value = sg_streq(user, "root") ? "Basic cm9vdDo=" : "Basic dXNlcjo="};
    return n;
}

void e2b_sandbox_free(struct sg_sandbox *base)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;

    sg_fleet_take_out(sb->d->fleet, &sb->member);
    sg_secret_free(sb->token);
    sg_secret_free(sb->traffic);
    sg_env_finish(&sb->env);
    free(sb->root);
    struct e2b *d = sb->d;
    free(sb);
    e2b_unref(d);
}

static bool id_ok(const char *id)
{
    return id && id[0] && strlen(id) < sizeof((struct sg_sandbox *)0)->id &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == strlen(id);
}

/* From the answer of a create or connect. */
static struct e2b_sandbox *sandbox_new(struct e2b *d, const json_t *told, const char *lease, const char *root, struct sg_error *err)
{
    const char *id = json_string_value(json_object_get(told, "sandboxID"));
    const char *token = json_string_value(json_object_get(told, "envdAccessToken"));
    const char *traffic = json_string_value(json_object_get(told, "trafficAccessToken"));
    const char *domain = json_string_value(json_object_get(told, "domain"));

    if (!id_ok(id) || !token || !token[0]) {
        sg_error_set(err, SG_PROVIDER_FAILED, "e2b answers with a sandbox that has no id or no token");
        return NULL;
    }
    if (domain && domain[0] && !sg_streq(domain, d->domain)) {
        sg_error_set(err, SG_PROVIDER_FAILED, "e2b puts the sandbox into domain %.64s, which is not the configured one (e2b.domain)", domain);
        return NULL;
    }
    struct e2b_sandbox *sb = sg_xcalloc(1, sizeof *sb);
    sb->base.driver = &d->base;
    sb->base.refs = 1;
    snprintf(sb->base.id, sizeof sb->base.id, "%s", id);
    atomic_fetch_add(&d->refs, 1);
    sb->d = d;
    sb->token = sg_secret_new(token, strlen(token));
    sb->traffic = traffic && traffic[0] ? sg_secret_new(traffic, strlen(traffic)) : NULL;
    sb->root = sg_xstrdup(root ? root : "/workspace");
    (void)sg_env_set(&sb->env, "HOME", "/home/user", NULL);
    (void)sg_env_set(&sb->env, "USER", "user", NULL);
    sb->base.env = &sb->env;
    sg_fleet_add(d->fleet, &sb->member, &sb->base, lease);
    return sb;
}

/* ---- lost ---- */

void e2b_lost(struct e2b_sandbox *sb)
{
    struct sg_error why = {0};

    if (atomic_exchange(&sb->gone, true))
        return;
    sg_error_set(&why, SG_SANDBOX_LOST, "e2b does not have sandbox %s any more", sb->base.id);
    sg_error_reason(&why, "sandbox_lost");
    if (sb->base.lost)
        sb->base.lost(sb->base.lost_arg, &sb->base, &why);
    sg_error_clear(&why);
}

static char *sandbox_path(const char *id, const char *what)
{
    return sg_xasprintf("/sandboxes/%s%s", id, what);
}

static void checked(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct e2b_sandbox *sb = arg;

    atomic_store(&sb->checking, false);
    if (a && err && err->code == SG_NOT_FOUND)
        e2b_lost(sb);
    sg_sandbox_unref(&sb->base);
}

void e2b_check(struct e2b_sandbox *sb)
{
    if (atomic_load(&sb->gone) || atomic_exchange(&sb->checking, true))
        return;
    sg_cleanup(sg_free_p) char *path = sandbox_path(sb->base.id, "");
    (void)sg_sandbox_ref(&sb->base);
    sg_origin_call(sb->d->api, &(struct sg_origin_call){.method = "GET", .path = path, .repeatable = true, .insist = true,
                                                        .deadline_ms = sg_now_ms() + CHECK_MS, .done = checked, .arg = sb});
}

void e2b_missing(void *arg, struct sg_sandbox *sb)
{
    (void)arg;
    e2b_check((struct e2b_sandbox *)sb);
}

struct blame {
    struct e2b_sandbox *sb;
    struct sg_error err;
    void (*fn)(void *arg, const struct sg_error *err);
    void *arg;
};

static void blamed(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct blame *b = arg;

    if (a && err && err->code == SG_NOT_FOUND)
        e2b_lost(b->sb);
    if (atomic_load(&b->sb->gone)) {
        sg_error_clear(&b->err);
        sg_error_set(&b->err, SG_SANDBOX_LOST, "e2b does not have sandbox %s any more", b->sb->base.id);
        sg_error_reason(&b->err, "lost");
    }
    b->fn(b->arg, &b->err);
    sg_error_clear(&b->err);
    sg_sandbox_unref(&b->sb->base);
    free(b);
}

void e2b_blame(struct e2b_sandbox *sb, const struct sg_error *err, void (*fn)(void *arg, const struct sg_error *err), void *arg)
{
    json_int_t status = json_integer_value(json_object_get(err->members, "provider_status"));
    bool ask = (status == 502 || status == 404 || sg_streq(err->reason, "connection_lost") || err->code == SG_PROVIDER_TIMEOUT) &&
               !atomic_load(&sb->gone) && !sb->d->closing;
    struct blame *b = sg_xcalloc(1, sizeof *b);
    sg_cleanup(sg_free_p) char *path = sandbox_path(sb->base.id, "");

    b->sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base);
    sg_error_copy(&b->err, err);
    b->fn = fn;
    b->arg = arg;
    if (ask)
        sg_origin_call(sb->d->api, &(struct sg_origin_call){.method = "GET", .path = path, .repeatable = true, .insist = true,
                                                            .deadline_ms = sg_now_ms() + CHECK_MS, .done = blamed, .arg = b});
    else
        blamed(b, NULL, NULL);
}

/* ---- what the provider has ---- */

struct listing {
    struct e2b *d;
    char *filter;
    struct sg_fleet_item *items;
    size_t n;
    unsigned pages;
    struct sg_fleet_listed done;
};

static void listing_end(struct listing *l, const struct sg_error *err)
{
    l->done.fn(l->done.arg, err ? NULL : l->items, err ? 0 : l->n, err);
    free(l->items);
    free(l->filter);
    free(l);
}

/* Seconds since the epoch of an RFC 3339 time in UTC; 0 when it is none. */
static int64_t parse_time(const char *s)
{
    struct tm tm = {0};

    if (!s || sscanf(s, "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)timegm(&tm);
}

/* Only what has our label, whatever the provider makes of the filter. */
static void take_item(struct listing *l, const json_t *v)
{
    const json_t *labels = json_object_get(v, "metadata");
    const char *server = json_string_value(json_object_get(labels, "sandgate"));
    const char *lease = json_string_value(json_object_get(labels, "lease"));
    const char *id = json_string_value(json_object_get(v, "sandboxID"));
    int64_t started = parse_time(json_string_value(json_object_get(v, "startedAt")));

    if (!id_ok(id) || !server || !sg_streq(server, l->d->server))
        return;
    struct sg_fleet_item *item = &l->items[l->n++];
    *item = (struct sg_fleet_item){.age_ms = started > 0 ? sg_wall_us() / 1000 - started * 1000 : 0};
    snprintf(item->id, sizeof item->id, "%s", id);
    if (lease && strlen(lease) < sizeof item->lease)
        snprintf(item->lease, sizeof item->lease, "%s", lease);
}

static void list_page(struct listing *l, const char *token);

static void listed(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct listing *l = arg;
    struct sg_error why = {0};

    if (err) {
        listing_end(l, err);
        return;
    }
    size_t n = json_array_size(a->body);
    if (!json_is_array(a->body) || ++l->pages > PAGES_MAX || n > 1000) {
        sg_error_set(&why, SG_PROVIDER_FAILED, "e2b answers with a list that is none, or does not end");
        listing_end(l, &why);
        sg_error_clear(&why);
        return;
    }
    struct sg_fleet_item *more = realloc(l->items, (l->n + n + 1) * sizeof *more);
    if (!more)
        abort(); /* bounded by the pages: some megabytes */
    l->items = more;
    for (size_t i = 0; i < n; i++)
        take_item(l, json_array_get(a->body, i));
    if (a->next && a->next[0])
        list_page(l, a->next);
    else
        listing_end(l, NULL);
}

static void list_page(struct listing *l, const char *token)
{
    sg_cleanup(sg_free_p) char *next = token ? sg_net_escape(token) : NULL;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v2/sandboxes?metadata=%s&limit=100%s%s", l->filter, next ? "&nextToken=" : "",
                                                    next ? next : "");

    sg_origin_call(l->d->api, &(struct sg_origin_call){.method = "GET", .path = path, .repeatable = true, .insist = true,
                                                       .deadline_ms = e2b_deadline(l->d), .done = listed, .arg = l});
}

void e2b_list(void *arg, const char *lease, const struct sg_fleet_listed *done)
{
    struct listing *l = sg_xcalloc(1, sizeof *l);

    l->d = arg;
    l->done = *done;
    l->filter = lease ? sg_xasprintf("sandgate%%3D%s%%26lease%%3D%s", l->d->server, lease) : sg_xasprintf("sandgate%%3D%s", l->d->server);
    list_page(l, NULL);
}

/* ---- removal ---- */

struct removal {
    struct sg_done done;
};

static void removed(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct removal *r = arg;
    bool gone = !err || (a && a->status == 404);

    r->done.fn(r->done.arg, gone ? NULL : err);
    free(r);
}

void e2b_remove(void *arg, const char *id, const struct sg_done *done)
{
    struct e2b *d = arg;
    struct removal *r = sg_xcalloc(1, sizeof *r);
    sg_cleanup(sg_free_p) char *path = sandbox_path(id, "");

    r->done = *done;
    sg_origin_call(d->api, &(struct sg_origin_call){.method = "DELETE", .path = path, .repeatable = true, .insist = true,
                                                    .deadline_ms = e2b_deadline(d), .done = removed, .arg = r});
}

void e2b_terminate(struct sg_sandbox *base, const struct sg_done *done)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;

    if (atomic_exchange(&sb->gone, true) && done->fn) {
        done->fn(done->arg, NULL); /* the provider has said so, or is being asked already: the fleet repeats that */
        return;
    }
    sg_fleet_remove(sb->d->fleet, base->id, done);
}

/* ---- extending ---- */

struct extending {
    struct e2b_sandbox *sb;
    struct sg_done done;
};

static void extension_over(void *arg, const struct sg_error *err)
{
    struct extending *x = arg;

    x->done.fn(x->done.arg, err);
    sg_sandbox_unref(&x->sb->base);
    free(x);
}

static void extended(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct extending *x = arg;
    struct sg_error why = {0};

    if (!err) {
        extension_over(x, NULL);
        return;
    }
    if (a && a->status == 400)
        sg_error_set(&why, SG_LIMIT_EXCEEDED, "e2b does not let the sandbox live so long: %.300s", err->message);
    else
        sg_error_copy(&why, err);
    e2b_blame(x->sb, &why, extension_over, x);
    sg_error_clear(&why);
}

/* connect only ever lengthens, so that a late repetition takes nothing away. */
int e2b_extend(struct sg_sandbox *base, int64_t left_ms, const struct sg_done *done, struct sg_error *err SG_UNUSED)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;
    struct extending *x = sg_xcalloc(1, sizeof *x);
    sg_cleanup(sg_free_p) char *path = sandbox_path(base->id, "/connect");
    sg_cleanup(sg_json_p) json_t *body = json_pack("{s:I}", "timeout", (json_int_t)(left_ms / 1000 + E2B_MARGIN_S));

    x->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    x->done = *done;
    e2b_post(sb->d, path, body, true, false, extended, x);
    return 0;
}

/* ---- making and finding ---- */

struct making {
    struct e2b *d;
    char lease[SG_ID_MAX];
    char id[64]; /* that was found or is known */
    char *root;
    int64_t timeout_s;
    bool adopting; /* does not give up, and cannot be cancelled */
    bool resuming; /* is made of a snapshot */
    struct sg_cancel *cancel;
    struct e2b_sandbox *sb;
    unsigned looks;
    struct sg_error why;
    struct sg_sandbox_done done;
};

static void making_end(struct making *m, const struct sg_error *err)
{
    struct e2b_sandbox *sb = m->sb;

    m->done.fn(m->done.arg, err ? NULL : &sb->base, err);
    if (err && sb)
        sg_sandbox_unref(&sb->base);
    sg_error_clear(&m->why);
    sg_cancel_unref(m->cancel);
    free(m->root);
    free(m);
}

static void undone(void *arg, const struct sg_error *err SG_UNUSED)
{
    struct making *m = arg;

    making_end(m, &m->why);
}

/* It is there, and must not be: m->why says why. What the fleet cannot finish now is an orphan for the next sweep. */
static void undo(struct making *m, const char *id)
{
    const struct sg_done done = {.fn = undone, .arg = m};

    if (m->sb)
        atomic_store(&m->sb->gone, true);
    sg_fleet_remove(m->d->fleet, id, &done);
}

static void prepared(void *arg, const struct e2b_ran *r, const struct sg_error *err)
{
    struct making *m = arg;

    if (err) {
        sg_error_copy(&m->why, err);
    } else if (sg_cancel_fired(m->cancel) != SG_CANCEL_NONE) {
        sg_error_set(&m->why, SG_CANCELLED, "cancelled while the sandbox was being made");
    } else if (r->code != 0) {
        sg_error_set(&m->why, SG_NOT_SUPPORTED, "the template cannot be used: %.200s",
                     r->code == 7 ? "it has no perl" : "its directory for commands cannot be made");
        sg_error_reason(&m->why, "template_unusable");
    } else {
        making_end(m, NULL);
        return;
    }
    undo(m, m->sb->base.id);
}

/* The directory in which commands start is the user's. */
static void prepare(struct making *m)
{
    static const char script[] = "command -v perl >/dev/null || exit 7; mkdir -p \"$1\" && chown user: \"$1\" 2>/dev/null || "
                                 "chown \"$(id -u user)\" \"$1\"";
    const char *const argv[] = {"/bin/sh", "-c", script, "sh", m->root, NULL};

    e2b_run(m->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = PREPARE_MS, .done = prepared, .arg = m});
}

static void take(struct making *m, const json_t *told)
{
    m->sb = sandbox_new(m->d, told, m->lease, m->root, &m->why);
    const char *id = json_string_value(json_object_get(told, "sandboxID"));
    if (!m->sb && id_ok(id)) {
        undo(m, id);
    } else if (!m->sb) {
        making_end(m, &m->why);
    } else if (m->adopting) {
        making_end(m, NULL);
    } else if (sg_cancel_fired(m->cancel) != SG_CANCEL_NONE) {
        sg_error_set(&m->why, SG_CANCELLED, "cancelled while the sandbox was being made");
        undo(m, m->sb->base.id);
    } else {
        prepare(m);
    }
}

static void look(void *arg, bool over);

static void look_later(struct making *m)
{
    int64_t max_ms = m->adopting ? ADOPT_RETRY_MAX_MS : LOOK_MAX_MS;

    sg_alarm(m->d->alarms, sg_backoff_ms(m->looks++, LOOK_FIRST_MS, max_ms), look, m);
}

static void connected(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct making *m = arg;

    if (!err) {
        take(m, a->body);
    } else if (a && a->status == 404) {
        sg_error_clear(&m->why);
        sg_error_set(&m->why, SG_SANDBOX_LOST, "e2b does not have sandbox %s any more", m->id);
        sg_error_reason(&m->why, "sandbox_lost");
        making_end(m, &m->why);
    } else if (!m->adopting && m->looks >= LOOKS) {
        undo(m, m->id); /* with the first failure as the reason */
    } else {
        look_later(m);
    }
}

/* Tells its tokens; repeating it does no harm, as it only ever lengthens. */
static void connect_known(struct making *m)
{
    sg_cleanup(sg_free_p) char *path = sandbox_path(m->id, "/connect");
    sg_cleanup(sg_json_p) json_t *body = json_pack("{s:I}", "timeout", (json_int_t)m->timeout_s);

    e2b_post(m->d, path, body, true, true, connected, m);
}

static void not_there(struct making *m)
{
    if (!m->adopting && m->looks < LOOKS) {
        look_later(m); /* it may still be starting, and is not listed then */
    } else if (!m->adopting) {
        making_end(m, &m->why);
    } else {
        sg_error_set(&m->why, SG_SANDBOX_LOST, "e2b has no sandbox of lease %s", m->lease);
        sg_error_reason(&m->why, "sandbox_lost");
        making_end(m, &m->why);
    }
}

static void looked(void *arg, const struct sg_fleet_item *items, size_t n, const struct sg_error *err)
{
    struct making *m = arg;

    if (err && err->code == SG_SHUTTING_DOWN) {
        making_end(m, err);
    } else if (err && (m->adopting || m->looks < LOOKS)) {
        look_later(m);
    } else if (err || n == 0) {
        not_there(m);
    } else {
        for (size_t i = 1; i < n; i++) /* one create, more than one sandbox */
            sg_fleet_remove(m->d->fleet, items[i].id, NULL);
        snprintf(m->id, sizeof m->id, "%s", items[0].id);
        connect_known(m);
    }
}

static void look(void *arg, bool over)
{
    struct making *m = arg;
    const struct sg_fleet_listed done = {.fn = looked, .arg = m};
    struct sg_error err = {0};

    if (over) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
        making_end(m, &err);
        sg_error_clear(&err);
    } else if (m->id[0]) {
        connect_known(m);
    } else {
        e2b_list(m->d, m->lease, &done);
    }
}

/* What the provider says no to is nobody's fault but the request's. */
static void explain_refusal(struct making *m, int status)
{
    if (status != 400 && status != 404)
        return;
    struct sg_error err = {0};
    if (status == 404 && m->resuming)
        sg_error_field(&err, SG_SNAPSHOT_NOT_FOUND, "manifest.snapshot", "e2b does not have the snapshot any more");
    else if (status == 404)
        sg_error_field(&err, SG_NOT_SUPPORTED, "image", "e2b has no template of that name");
    else
        sg_error_set(&err, SG_NOT_SUPPORTED, "%.400s", m->why.message);
    sg_error_reason(&err, "provider_refused");
    sg_error_member(&err, "provider", json_string("e2b"));
    sg_error_member(&err, "provider_status", json_integer(status));
    sg_error_clear(&m->why);
    m->why = err;
}

static void created(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct making *m = arg;

    if (!err && json_is_object(a->body)) {
        take(m, a->body);
        return;
    }
    if (err)
        sg_error_copy(&m->why, err);
    else
        sg_error_set(&m->why, SG_PROVIDER_FAILED, "e2b answers with what is no sandbox");
    if (!a || a->status >= 408)
        sg_error_member(&m->why, "provider", json_string("e2b"));
    if (!sg_origin_unknown(&m->why) || (a && a->status >= 400 && a->status < 500 && a->status != 408 && a->status != 499)) {
        explain_refusal(m, a ? a->status : 0);
        making_end(m, &m->why);
    } else if (m->why.code == SG_SHUTTING_DOWN) {
        making_end(m, &m->why);
    } else {
        look(m, false); /* it may have been made */
    }
}

static json_t *create_body(const struct e2b *d, const struct sg_sandbox_spec *spec, int64_t timeout_s)
{
    const char *of = spec->snapshot_ref ? spec->snapshot_ref : spec->image ? spec->image : d->template_name;
    json_t *env = json_object();

    for (size_t i = 0; spec->env && i < spec->env->n; i++)
        json_object_set_new(env, spec->env->vars[i].name, json_string(spec->env->vars[i].value));
    json_t *body = json_pack("{s:s, s:I, s:{s:s, s:s}, s:o, s:{s:b}}", "templateID", of, "timeout",
                             (json_int_t)timeout_s, "metadata", "sandgate", d->server, "lease", spec->lease_id, "envVars", env, "network", "allowPublicTraffic", 0);
    if (body && spec->egress_given && spec->egress != SG_EGRESS_OPEN)
        json_object_set_new(body, "allow_internet_access", json_false());
    return body;
}

static struct making *making_new(struct e2b *d, const char *lease, const char *root, const struct sg_sandbox_done *done)
{
    struct making *m = sg_xcalloc(1, sizeof *m);

    m->d = d;
    snprintf(m->lease, sizeof m->lease, "%s", lease);
    m->root = sg_xstrdup(root ? root : "/workspace");
    m->done = *done;
    return m;
}

int e2b_create(struct sg_driver *base, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel, const struct sg_sandbox_done *done,
               struct sg_error *err)
{
    struct e2b *d = (struct e2b *)base;
    int64_t timeout_s = (spec->timeout_ms + spec->setup_ms) / 1000 + E2B_MARGIN_S;
    sg_cleanup(sg_json_p) json_t *body = create_body(d, spec, timeout_s);

    if (!body)
        return sg_error_set(err, SG_INVALID_REQUEST, "the environment is not valid UTF-8");
    struct making *m = making_new(d, spec->lease_id, spec->root, done);
    m->timeout_s = timeout_s;
    m->resuming = spec->snapshot_ref != NULL;
    m->cancel = cancel ? sg_cancel_ref(cancel) : NULL;
    e2b_post(d, "/sandboxes", body, false, false, created, m);
    return 0;
}

int e2b_adopt(struct sg_driver *base, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err SG_UNUSED)
{
    struct e2b *d = (struct e2b *)base;
    struct sg_sandbox *known = sg_fleet_find(d->fleet, a->sandbox_id, a->lease_id);

    if (known) {
        done->fn(done->arg, known, NULL);
        return 0;
    }
    struct making *m = making_new(d, a->lease_id, a->root, done);
    m->adopting = true;
    m->timeout_s = (a->left_ms > 0 ? a->left_ms / 1000 : 0) + E2B_MARGIN_S;
    snprintf(m->id, sizeof m->id, "%s", id_ok(a->sandbox_id) ? a->sandbox_id : "");
    look(m, false);
    return 0;
}
