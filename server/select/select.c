#include "select/select.h"

#include <stdlib.h>
#include <string.h>

/* A candidate with its place: position in the precedence, or behind all of it. */
struct ranked {
    size_t rank;
    const struct sg_select_candidate *c;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a;
    const struct ranked *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return strcmp(x->c->name, y->c->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Position of name in the list, or its length. */
static size_t find(const struct sg_select_names *l, const char *name)
{
    size_t i = 0;
    while (i < l->n && strcmp(l->v[i], name) != 0)
        i++;
    return i;
}

static bool have(const struct sg_select_names *l, const char *name)
{
    return find(l, name) < l->n;
}

static bool have_all(const struct sg_select_names *l, const struct sg_select_names *wanted)
{
    for (size_t i = 0; i < wanted->n; i++) {
        if (!have(l, wanted->v[i]))
            return false;
    }
    return true;
}

static enum sg_select_fault check_names(const struct sg_select_names *l)
{
    if (l->n > SG_SELECT_NAMES_MAX)
        return SG_SELECT_TOO_MANY;
    for (size_t i = 0; i < l->n; i++) {
        if (!l->v[i])
            return SG_SELECT_BAD_NAME;
    }
    return SG_SELECT_OK;
}

static enum sg_select_fault check_input(const struct sg_select_input *in)
{
    const struct sg_select_names *lists[] = {&in->policy.required_credentials, &in->policy.precedence,
                                             &in->environment.available_credentials};
    enum sg_select_fault f = SG_SELECT_OK;
    for (size_t i = 0; !f && i < sizeof lists / sizeof lists[0]; i++)
        f = check_names(lists[i]);
    if (!f && in->n_candidates > SG_SELECT_CANDIDATES_MAX)
        f = SG_SELECT_TOO_MANY;
    for (size_t i = 0; !f && i < in->n_candidates; i++) {
        const struct sg_select_candidate *c = &in->candidates[i];
        f = !c->name || !*c->name ? SG_SELECT_BAD_NAME : check_names(&c->credentials);
    }
    return f;
}

/* Fills order[] by rank. Names are unique, so the order is total and the candidates' own order cannot show.
 */
static enum sg_select_fault rank(const struct sg_select_input *in, struct ranked *order)
{
    for (size_t i = 0; i < in->n_candidates; i++) {
        const struct sg_select_candidate *c = &in->candidates[i];
        order[i] = (struct ranked){find(&in->policy.precedence, c->name), c};
    }
    if (in->n_candidates > 1)
        qsort(order, in->n_candidates, sizeof *order, compare_ranked);
    for (size_t i = 1; i < in->n_candidates; i++) {
        if (strcmp(order[i - 1].c->name, order[i].c->name) == 0)
            return SG_SELECT_DUPLICATE_NAME;
    }
    return SG_SELECT_OK;
}

/* What speaks against c for reasons that also bind an override. */
static struct sg_select_considered weigh(const struct sg_select_input *in, bool required_held,
                                         const struct sg_select_candidate *c)
{
    struct sg_select_considered r = {.candidate = c};
    r.missing_capabilities = in->policy.required_capabilities & ~c->capabilities;
    if (r.missing_capabilities)
        r.reasons |= SG_SELECT_MISSING_CAPABILITIES;
    if (!required_held || !have_all(&in->environment.available_credentials, &c->credentials))
        r.reasons |= SG_SELECT_MISSING_CREDENTIALS;
    return r;
}

static void decide_override(const struct sg_select_input *in, bool required_held, const struct ranked *order,
                            struct sg_select_result *ret)
{
    for (size_t i = 0; i < in->n_candidates; i++) {
        if (strcmp(order[i].c->name, in->policy.override) != 0)
            continue;
        struct sg_select_considered r = weigh(in, required_held, order[i].c);
        ret->considered[0] = r;
        ret->n_considered = 1;
        if (r.reasons & SG_SELECT_MISSING_CAPABILITIES) {
            ret->verdict = SG_SELECT_OVERRIDE_MISSING_CAPABILITIES;
        } else if (r.reasons & SG_SELECT_MISSING_CREDENTIALS) {
            ret->verdict = SG_SELECT_OVERRIDE_MISSING_CREDENTIALS;
        } else {
            ret->verdict = SG_SELECT_PICKED;
            ret->pick = order[i].c;
        }
        return;
    }
    ret->verdict = SG_SELECT_OVERRIDE_NOT_REGISTERED;
    ret->n_considered = in->n_candidates;
    for (size_t i = 0; i < in->n_candidates; i++) {
        ret->considered[i] =
            (struct sg_select_considered){.candidate = order[i].c, .reasons = SG_SELECT_NOT_THE_OVERRIDE};
    }
}

static void decide_ranked(const struct sg_select_input *in, bool required_held, const struct ranked *order,
                          struct sg_select_result *ret)
{
    bool spent = in->environment.budget_set && in->environment.budget_microusd <= 0;
    ret->verdict = SG_SELECT_NO_BACKEND_SATISFIES_POLICY;
    ret->n_considered = in->n_candidates;
    for (size_t i = 0; i < in->n_candidates; i++) {
        struct sg_select_considered r = weigh(in, required_held, order[i].c);
        if (!order[i].c->free && !in->policy.allow_paid)
            r.reasons |= SG_SELECT_PAID_NOT_ALLOWED;
        if (!order[i].c->free && spent)
            r.reasons |= SG_SELECT_BUDGET_EXHAUSTED;
        ret->considered[i] = r;
        if (r.reasons == 0 && !ret->pick) {
            ret->pick = order[i].c;
            ret->verdict = SG_SELECT_PICKED;
        }
    }
}

enum sg_select_fault sg_select(const struct sg_select_input *in, struct sg_select_result *ret)
{
    struct ranked order[SG_SELECT_CANDIDATES_MAX];
    enum sg_select_fault f = check_input(in);
    if (!f)
        f = rank(in, order);
    if (f)
        return f;
    ret->pick = NULL;
    ret->n_considered = 0;
    bool required_held = have_all(&in->environment.available_credentials, &in->policy.required_credentials);
    if (in->n_candidates == 0)
        ret->verdict = SG_SELECT_NO_BACKENDS_REGISTERED;
    else if (in->policy.override)
        decide_override(in, required_held, order, ret);
    else
        decide_ranked(in, required_held, order, ret);
    return SG_SELECT_OK;
}

size_t sg_select_missing_credentials(const struct sg_select_input *in, const struct sg_select_candidate *c,
                                     const char **out)
{
    const struct sg_select_names *lists[] = {&c->credentials, &in->policy.required_credentials};
    size_t n = 0;
    for (size_t l = 0; l < 2; l++) {
        for (size_t i = 0; i < lists[l]->n && i < SG_SELECT_NAMES_MAX; i++) {
            if (!have(&in->environment.available_credentials, lists[l]->v[i]))
                out[n++] = lists[l]->v[i];
        }
    }
    if (n > 1)
        qsort(out, n, sizeof *out, compare_names);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || strcmp(out[kept - 1], out[i]) != 0)
            out[kept++] = out[i];
    }
    return kept;
}

const char *sg_select_verdict_name(enum sg_select_verdict v)
{
    switch (v) {
    case SG_SELECT_PICKED:
        return "picked";
    case SG_SELECT_NO_BACKENDS_REGISTERED:
        return "no_backends_registered";
    case SG_SELECT_OVERRIDE_NOT_REGISTERED:
        return "override_not_registered";
    case SG_SELECT_OVERRIDE_MISSING_CAPABILITIES:
        return "override_missing_capabilities";
    case SG_SELECT_OVERRIDE_MISSING_CREDENTIALS:
        return "override_missing_credentials";
    case SG_SELECT_NO_BACKEND_SATISFIES_POLICY:
        return "no_backend_satisfies_policy";
    }
    return "?";
}

const char *sg_select_reason_name(enum sg_select_reason r)
{
    switch (r) {
    case SG_SELECT_NOT_THE_OVERRIDE:
        return "not_the_override";
    case SG_SELECT_PAID_NOT_ALLOWED:
        return "paid_not_allowed";
    case SG_SELECT_BUDGET_EXHAUSTED:
        return "budget_exhausted";
    case SG_SELECT_MISSING_CAPABILITIES:
        return "missing_capabilities";
    case SG_SELECT_MISSING_CREDENTIALS:
        return "missing_credentials";
    }
    return "?";
}
