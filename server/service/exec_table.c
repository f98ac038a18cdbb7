/* Which commands a lease has, and which results are kept. */
#include "service/execs_priv.h"

#include "base/clock.h"

#include <stdio.h>

/* Finished results kept per lease, besides the cap on their bytes. */
#define HISTORY_ENTRIES_MAX 256U

struct sg_lease_commands *sg_commands_of(struct sg_execs *x, const char *lease_id)
{
    struct sg_lease_commands *l;

    HASH_FIND_STR(x->leases, lease_id, l);
    return l;
}

void sg_commands_add(struct sg_execs *x, struct sg_command *c)
{
    struct sg_lease_commands *l = sg_commands_of(x, sg_entry_id(c->lease));

    if (!l) {
        l = sg_xcalloc(1, sizeof *l);
        snprintf(l->lease_id, sizeof l->lease_id, "%s", sg_entry_id(c->lease));
        HASH_ADD_STR(x->leases, lease_id, l);
    }
    c->seq = ++x->last_seq;
    DL_APPEND(l->list, c);
    c->listed = true;
    c->refs++;
}

static size_t bytes_of(const struct sg_command *c)
{
    return c->weight + c->log_weight + (c->run ? sg_run_bytes(c->run) : 0);
}

void sg_commands_remove(struct sg_execs *x, struct sg_command *c)
{
    struct sg_lease_commands *l = sg_commands_of(x, sg_entry_id(c->lease));

    if (c->state != SG_EXEC_RUNNING) {
        l->kept--;
        l->kept_bytes -= bytes_of(c);
    }
    if (l->newest == c)
        l->newest = NULL;
    DL_DELETE(l->list, c);
    c->listed = false;
    if (!l->list) {
        HASH_DEL(x->leases, l);
        free(l);
    }
}

void sg_commands_keep(struct sg_execs *x, struct sg_command *c)
{
    struct sg_lease_commands *l = sg_commands_of(x, sg_entry_id(c->lease));

    c->log_weight = c->log ? sg_exec_log_bytes(c->log) : 0;
    l->newest = c;
    l->kept++;
    l->kept_bytes += bytes_of(c);
}

bool sg_commands_too_old(const struct sg_execs *x, const struct sg_command *c)
{
    return c->state != SG_EXEC_RUNNING && c->ended_ms + x->s->cfg.exec_history_ttl_ms <= sg_now_ms();
}

struct sg_command *sg_commands_find(struct sg_execs *x, struct sg_entry *lease, const char *id)
{
    struct sg_lease_commands *l = sg_commands_of(x, sg_entry_id(lease));
    struct sg_command *c = NULL;

    if (l)
        DL_FOREACH(l->list, c) if (sg_streq(c->id, id)) break;
    return c && !sg_commands_too_old(x, c) ? c : NULL;
}

/* What the newest one holds does not count: it is bounded by itself, and would else be gone before anybody could ask for it. */
static bool too_much(const struct sg_execs *x, const struct sg_lease_commands *l)
{
    return l->kept_bytes - (l->newest ? bytes_of(l->newest) : 0) > x->s->cfg.exec_history_max;
}

/* A repetition of a command whose output is gone must still not run it again, so the rest of the result stays. */
static void drop_outputs(const struct sg_execs *x, struct sg_lease_commands *l)
{
    struct sg_command *c;

    DL_FOREACH(l->list, c)
    {
        if (!too_much(x, l))
            return;
        if (c->state == SG_EXEC_RUNNING || !c->run || c == l->newest)
            continue;
        l->kept_bytes -= sg_run_bytes(c->run) + c->log_weight;
        c->log_weight = 0;
        sg_run_drop_output(c->run);
        if (c->log)
            sg_exec_log_drop(c->log);
    }
}

void sg_commands_prune(struct sg_execs *x, const char *lease_id, struct sg_command **ret)
{
    struct sg_lease_commands *l = sg_commands_of(x, lease_id);
    struct sg_command *c, *tmp;

    if (!l)
        return;
    drop_outputs(x, l);
    DL_FOREACH_SAFE(l->list, c, tmp)
    {
        bool over = l->kept > HISTORY_ENTRIES_MAX || (c != l->newest && too_much(x, l));
        if (c->state == SG_EXEC_RUNNING || (!over && !sg_commands_too_old(x, c)))
            continue;
        bool last = l->list == c && c->next == NULL;
        sg_commands_remove(x, c);
        DL_APPEND(*ret, c);
        if (last)
            return;
    }
}

void sg_commands_let_go(struct sg_command *dropped)
{
    struct sg_command *c, *tmp;

    DL_FOREACH_SAFE(dropped, c, tmp)
    {
        DL_DELETE(dropped, c);
        if (sg_cancel_unhook(sg_entry_cancel(c->lease), &c->lease_end))
            sg_command_unref(c);
        sg_command_unref(c);
    }
}
