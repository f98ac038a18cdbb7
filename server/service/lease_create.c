/* Creating a lease: select -> reserve -> create -> seal -> answer.
 *
 * One `struct sg_creation` walks through the steps; each step that takes time continues in a callback. Whatever fails ends in
 * give_up(), after which nothing of the attempt is left outside the store.
 */
#include "service/manifest.h"
#include "service/lease_create_priv.h"

#include "base/clock.h"
#include "base/fd.h"
#include "select/receipt.h"
#include "service/restore.h"
#include "service/setup.h"

#include <stdio.h>

static void creation_unref(struct sg_creation *c)
{
    if (--c->refs > 0)
        return;
    sg_cancel_unref(c->cancel);
    sg_decision_finish(&c->decision);
    sg_lease_terms_unref(c->terms);
    sg_lease_request_finish(&c->request);
    sg_sandbox_unref(c->sandbox);
    sg_entry_unref(c->entry);
    sg_json_unref(c->commands);
    sg_error_clear(&c->why);
    sg_close(c->snapshot_fd);
    free(c);
}

/* Answers, unless somebody has. */
static void answer_once(struct sg_creation *c, const struct sg_created *made, const struct sg_error *err)
{
    if (atomic_exchange(&c->answered, true))
        return;
    if (c->hooked && sg_cancel_unhook(c->cancel, &c->hangup))
        creation_unref(c);
    c->done(c->arg, made, err);
}

/* Answers and ends the walk. */
static void answer(struct sg_creation *c, const struct sg_created *made, const struct sg_error *err)
{
    answer_once(c, made, err);
    creation_unref(c);
}

static void answer_entry(struct sg_creation *c, bool fresh)
{
    struct sg_created made = {.entry = c->entry, .fresh = fresh};

    answer(c, &made, NULL);
}

/* ---- failure ---- */

/* A receipt as rows to write; NULL when it has no text (memory is out). */
static struct sg_store_op *receipt_op(const struct sg_creation *c, const json_t *receipt)
{
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len;
    const char *id = json_string_value(json_object_get(receipt, "id"));

    if (!id || sg_json_canonical(receipt, &text, &len, NULL) < 0)
        return NULL;
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_receipt(op, c->terms->tenant, id, text);
    return op;
}

/* The receipt of a placement that did not come about for the reason in err. */
static struct sg_store_op *refusal_op(const struct sg_creation *c, const struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *receipt = NULL;

    if (sg_receipt_refused(c->decision.receipt, err, &receipt, NULL) < 0)
        return NULL;
    return receipt_op(c, receipt);
}

static void refusal_sealed(void *arg, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    answer(c, NULL, err ? err : &c->why);
}

/* A refusal before anything was touched: its receipt is sealed, then c->why is the answer. */
static void refuse(struct sg_creation *c)
{
    struct sg_store_op *op = c->decision.code != SG_OK ? receipt_op(c, c->decision.receipt) : refusal_op(c, &c->why);
    struct sg_store_done done = {.fn = refusal_sealed, .arg = c};
    struct sg_error err = {0};

    if (!op)
        sg_error_set(&err, SG_NO_MEMORY, "no memory for the receipt");
    else if (sg_store_submit(c->s->parts.store, op, SG_STORE_DURABLE, &done, &err) == 0)
        return;
    answer(c, NULL, &err);
    sg_error_clear(&err);
}

/* A lease that was ended before anybody had it: why, as its creator is told. Nothing happened that repeating would double, unless
 * somebody wanted the end. */
static void explain_end(struct sg_creation *c)
{
    enum sg_end why;

    if ((c->why.code != SG_LEASE_GONE && c->why.code != SG_CANCELLED) || !sg_entry_end_cause(c->entry, &why))
        return;
    sg_error_clear(&c->why);
    if (why == SG_END_SHUTDOWN) {
        sg_error_set(&c->why, SG_SHUTTING_DOWN, "the server is shutting down");
        sg_error_retry_after(&c->why, 5);
    } else if (why == SG_END_LOST) {
        sg_error_set(&c->why, SG_UNAVAILABLE, "the sandbox died before the lease was ready");
        sg_error_reason(&c->why, "sandbox_lost");
        sg_error_retry_after(&c->why, 1);
    } else {
        sg_error_set(&c->why, SG_LEASE_GONE, "the lease was ended while it was being created");
    }
}

/* The reservation ends without a sandbox. */
static void give_up(struct sg_creation *c)
{
    struct sg_store_done done = {.fn = refusal_sealed, .arg = c};

    explain_end(c);

    sg_registry_failed(c->s->leases, c->entry, refusal_op(c, &c->why), &c->why, &done);
}

static void unsealed_sandbox_gone(void *arg, const struct sg_error *err SG_UNUSED)
{
    give_up(arg);
}

/* The same with a sandbox, which goes first. */
static void give_up_sandbox(struct sg_creation *c, const struct sg_error *err)
{
    sg_error_copy(&c->why, err);
    sg_sandbox_terminate(c->sandbox, &(struct sg_done){unsealed_sandbox_gone, c});
}

/* ---- create and seal ---- */

static void sealed(void *arg, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    if (err)
        give_up_sandbox(c, err);
    else
        answer_entry(c, true);
}

static const char *repo_ref(const struct sg_creation *c)
{
    return c->request.manifest.repo_ref ? c->request.manifest.repo_ref : "HEAD";
}

static json_t *lease_metadata(const struct sg_creation *c)
{
    json_t *all = json_object();
    sg_cleanup(sg_json_p) json_t *facts = sg_sandbox_metadata(c->sandbox);

    if (c->request.metadata)
        json_object_update(all, c->request.metadata);
    json_object_update(all, facts);
    if (c->repo)
        json_object_set_new(all, "repo", json_pack("{s:s, s:s, s:s}", "name", c->repo, "ref", repo_ref(c), "commit", c->commit));
    if (c->commands)
        json_object_set(all, "sandbox_cmd", c->commands);
    json_object_set_new(all, "paddock_mode", json_string(sg_mode_name(c->request.mode)));
    return all;
}

static char *render_answer(void *arg, const struct sg_lease *l)
{
    struct sg_creation *c = arg;

    return c->render(c->arg, l);
}

static void seal(struct sg_creation *c)
{
    sg_cleanup(sg_json_p) json_t *metadata = lease_metadata(c);
    struct sg_store_done done = {.fn = sealed, .arg = c};
    struct sg_error err = {0};
    struct sg_grant grant = {.sandbox = c->sandbox,
                             .provider = c->driver->facts.name,
                             .sandbox_id = c->sandbox->id,
                             .caps = c->driver->facts.caps & ~c->sandbox->lacks,
                             .metadata = metadata,
                             .receipt_id = json_string_value(json_object_get(c->decision.receipt, "id")),
                             .outlives_server = c->driver->facts.outlives_server,
                             .answer = render_answer,
                             .arg = c,
                             .answer_status = 200};

    struct sg_store_op *op = receipt_op(c, c->decision.receipt);
    if (!op)
        sg_error_set(&err, SG_NO_MEMORY, "no memory for the receipt");
    else if (sg_registry_ready(c->s->leases, c->entry, &grant, op, &done, &err) == 0)
        return;
    sealed(c, &err);
    sg_error_clear(&err);
}

/* ---- what runs inside before the lease is ready ---- */

/* Nobody has had the sandbox yet, so its death is worth a repetition and no more. */
static void give_up_unready(struct sg_creation *c, const struct sg_error *err)
{
    struct sg_error lost = {0};

    if (err->code != SG_SANDBOX_LOST) {
        give_up_sandbox(c, err);
        return;
    }
    sg_error_set(&lost, SG_UNAVAILABLE, "the sandbox died before the lease was ready");
    sg_error_reason(&lost, "sandbox_lost");
    sg_error_retry_after(&lost, 1);
    give_up_sandbox(c, &lost);
    sg_error_clear(&lost);
}

static void set_up(void *arg, json_t *report, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    if (err) {
        give_up_unready(c, err);
        return;
    }
    c->commands = sg_json_ref(report);
    seal(c);
}

static void manifest_applied(void *arg, const struct sg_error *err)
{
    struct sg_creation *c = arg;
    struct sg_setup_args a = {.service = c->s,
                              .sandbox = c->sandbox,
                              .terms = c->terms,
                              .commands = c->request.commands,
                              .n_commands = c->request.n_commands,
                              .cancel = sg_entry_cancel(c->entry),
                              .commands_timeout_ms = sg_creation_commands_ms(c),
                              .services_timeout_ms = sg_creation_services_ms(c),
                              .done = set_up,
                              .arg = c};

    if (err)
        give_up_unready(c, err);
    else
        sg_setup(&a);
}

/* ---- the manifest ---- */

static void apply_manifest(struct sg_creation *c)
{
    struct sg_manifest_args args = {.sb = c->sandbox,
                                    .manifest = &c->request.manifest,
                                    .cancel = sg_entry_cancel(c->entry),
                                    .workq = c->s->parts.workq,
                                    .repos = c->s->parts.repos,
                                    .repo = c->driver->facts.checks_out ? NULL : c->repo,
                                    .commit = c->commit,
                                    .env = &c->terms->env,
                                    .memory = sg_execs_memory(c->s->execs),
                                    .timeout_ms = c->s->cfg.exec_timeout_max_ms < c->terms->timeout_ms ? c->s->cfg.exec_timeout_max_ms : c->terms->timeout_ms,
                                    .done = manifest_applied,
                                    .arg = c};

    sg_manifest_apply(&args);
}

/* ---- the snapshot, before the rest of the manifest ---- */

static void snapshot_restored(void *arg, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    c->snapshot_fd = sg_close(c->snapshot_fd);
    if (err)
        manifest_applied(c, err);
    else
        apply_manifest(c);
}

static void restore_snapshot(struct sg_creation *c);

static void snapshot_fetched(void *arg, int fd, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    c->snapshot_fd = fd;
    if (err)
        manifest_applied(c, err);
    else
        restore_snapshot(c);
}

static void restore_snapshot(struct sg_creation *c)
{
    struct sg_restore_args args = {.sb = c->sandbox,
                                   .snapshot = &c->snapshot,
                                   .fd = c->snapshot_fd,
                                   .cancel = sg_entry_cancel(c->entry),
                                   .workq = c->s->parts.workq,
                                   .done = snapshot_restored,
                                   .arg = c};

    if (c->snapshot_fd >= 0)
        sg_restore(&args);
    else if (c->snapshot.ref[0] && sg_sandbox_snapshot_reads(c->sandbox))
        sg_service_held_fetch(c->s, c->sandbox, &c->snapshot, &(struct sg_held_fetched){snapshot_fetched, c});
    else
        apply_manifest(c);
}

/* Whose fault it was, unless the driver has said more about it. */
static void name_provider(struct sg_creation *c)
{
    enum sg_code code = c->why.code;

    if (!c->why.members && (code == SG_PROVIDER_FAILED || code == SG_PROVIDER_TIMEOUT || code == SG_OUTCOME_UNKNOWN))
        sg_error_member(&c->why, "provider", json_string(c->driver->facts.name));
}

static void sandbox_created(void *arg, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    if (!sb) {
        sg_error_copy(&c->why, err);
        name_provider(c);
        give_up(c);
        return;
    }
    c->sandbox = sb;
    sg_service_watch_sandbox(c->s, c->entry, sb);
    restore_snapshot(c);
}

static void sandbox_comes(void *arg, json_t *what)
{
    struct sg_creation *c = arg;

    sg_registry_progress(c->s->leases, c->entry, what);
}

static void create_sandbox(struct sg_creation *c)
{
    struct sg_sandbox_spec spec = sg_creation_spec(c);
    struct sg_sandbox_done done = {.fn = sandbox_created, .arg = c, .progress = sandbox_comes};

    if (sg_driver_create(c->driver, &spec, sg_entry_cancel(c->entry), &done, &c->why) < 0)
        give_up(c);
}

/* ---- reserve ---- */

/* A caller that hung up can find its lease again by trajectory or key; without either nobody ever would. */
static void caller_hung_up(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct sg_creation *c = sg_container_of(h, struct sg_creation, hangup);

    sg_registry_end(c->s->leases, c->entry, why == SG_CANCEL_SHUTDOWN ? SG_END_SHUTDOWN : SG_END_DELETED, NULL);
    creation_unref(c);
}

static void watch_caller(struct sg_creation *c)
{
    if (!c->cancel || (c->async && c->wait_ms == 0) || c->terms->trajectory_id || c->terms->idempotency_key)
        return;
    c->hangup.fired = caller_hung_up;
    c->hooked = true;
    c->refs++;
    sg_cancel_hook(c->cancel, &c->hangup);
}

/* What takes longer than its caller waits is answered as it is. */
static void waited(void *arg, bool reached)
{
    struct sg_creation *c = arg;
    struct sg_created made = {.entry = c->entry, .fresh = true};

    if (!reached)
        answer_once(c, &made, NULL); /* else the walk answers, which knows more */
    creation_unref(c);
}

static void answer_later(struct sg_creation *c)
{
    struct sg_wait_args w = {.lease = c->entry,
                             .what = SG_WAIT_SETTLED,
                             .wait_ms = c->wait_ms,
                             .cancel = c->cancel,
                             .done = waited,
                             .arg = c};

    c->refs++;
    if (c->wait_ms == 0)
        waited(c, false);
    else
        sg_service_wait_for(c->s, &w);
}

static void intent_written(void *arg, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    if (err) {
        sg_error_copy(&c->why, err);
        give_up(c);
        return;
    }
    if (c->async)
        answer_later(c);
    create_sandbox(c);
}

static void go_on_reserved(struct sg_creation *c)
{
    struct sg_store_done done = {.fn = intent_written, .arg = c};

    watch_caller(c);
    if (!c->async && !c->driver->facts.outlives_server)
        create_sandbox(c);
    else if (sg_registry_intent(c->s->leases, c->entry, c->driver->facts.name, c->driver->facts.outlives_server, NULL, &done,
                                &c->why) < 0)
        give_up(c);
}

static void settled(struct sg_creation *c)
{
    struct sg_lease l;

    sg_entry_lease(c->entry, &l);
    if (l.state == SG_LEASE_FAILED)
        sg_entry_failure(c->entry, &c->why);
    else if (l.state != SG_LEASE_READY && l.state != SG_LEASE_CREATING)
        sg_error_set(&c->why, SG_LEASE_GONE, "the lease of the same request was ended while it was being created");
    sg_lease_finish(&l);
    explain_end(c);
    if (c->why.code != SG_OK)
        answer(c, NULL, &c->why);
    else
        answer_entry(c, false);
}

static void joined(void *arg, bool reached SG_UNUSED)
{
    settled(arg);
}

/* The same request is being, or was, served: its lease is the answer. */
static void join_other(struct sg_creation *c)
{
    struct sg_wait_args w = {.lease = c->entry,
                             .what = SG_WAIT_SETTLED,
                             .wait_ms = c->async ? c->wait_ms : c->s->cfg.lease_timeout_max_ms,
                             .cancel = c->cancel,
                             .done = joined,
                             .arg = c};

    if (w.wait_ms == 0)
        settled(c);
    else
        sg_service_wait_for(c->s, &w);
}

static void reserve(struct sg_creation *c)
{
    struct sg_reserve q = {.terms = c->terms, .max_leases = c->max_leases, .budget = c->budget};
    struct sg_stored_answer stored = {0};
    enum sg_reserved how;

    if (sg_registry_reserve(c->s->leases, &q, &how, &c->entry, &stored, &c->why) < 0) {
        answer(c, NULL, &c->why);
    } else if (how == SG_RESERVED_NEW) {
        go_on_reserved(c);
    } else if (how == SG_RESERVED_SAME) {
        join_other(c);
    } else {
        struct sg_created made = {.entry = c->entry, .answer = &stored};
        answer(c, &made, NULL);
    }
    sg_stored_answer_finish(&stored);
}

static void reserve_on_worker(struct sg_work *w)
{
    reserve(sg_container_of(w, struct sg_creation, work));
}

static void begin(struct sg_creation *c)
{
    if (!c->terms->idempotency_key) {
        reserve(c);
        return;
    }
    c->work.run = reserve_on_worker;
    if (sg_workq_submit(c->s->parts.workq, &c->work, &c->why) < 0)
        answer(c, NULL, &c->why);
}

/* What the ref is now holds for the whole create; one that is not there is refused like anything else that cannot be. */
static void ref_resolved(void *arg, const char *commit, const struct sg_error *err)
{
    struct sg_creation *c = arg;

    if (commit) {
        snprintf(c->commit, sizeof c->commit, "%s", commit);
        begin(c);
        return;
    }
    sg_error_copy(&c->why, err);
    refuse(c);
}

static void take_args(struct sg_creation *c, struct sg_service *s, const struct sg_create_args *a)
{
    c->refs = 1;
    c->snapshot_fd = -1;
    c->s = s;
    c->request = *a->request;
    *a->request = (struct sg_lease_request){0};
    c->max_leases = a->who->max_leases;
    c->budget = (struct sg_spend_limit){.set = a->who->budget_set, .microusd = a->who->budget_microusd};
    c->async = a->async;
    c->wait_ms = a->wait_ms;
    c->cancel = a->cancel ? sg_cancel_ref(a->cancel) : NULL;
    c->render = a->render;
    c->done = a->done;
    c->arg = a->arg;
}

void sg_service_create(struct sg_service *s, const struct sg_create_args *a)
{
    struct sg_creation *c = sg_xcalloc(1, sizeof *c);

    take_args(c, s, a);
    int rc = sg_creation_plan(c, a->who, a->idempotency_key);
    if (rc > 0) {
        refuse(c);
    } else if (rc < 0) {
        answer(c, NULL, &c->why);
    } else if (!c->repo) {
        begin(c);
    } else {
        struct sg_repos_resolved done = {.fn = ref_resolved, .arg = c};
        if (sg_repos_resolve(s->parts.repos, c->repo, c->request.manifest.repo_ref, &done, &c->why) < 0)
            answer(c, NULL, &c->why);
    }
}
