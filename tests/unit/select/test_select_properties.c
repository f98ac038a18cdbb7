/* What must hold for any input: thousands of random ones, from a fixed seed. */
#include <criterion/criterion.h>

#include "base/base.h"
#include "select/select.h"

#define ROUNDS 20000
#define CANDIDATES 9
#define LIST 6

static const char *const backend_names[] = {"worktree", "docker", "local_bwrap", "e2b",   "modal",
                                            "daytona",  "zeta",   "alpha",       "Alpha", "x-1",
                                            "x.1",      "x_1",    "Zeta",        "a"};
static const char *const credential_names[] = {"A", "B", "C", "D_KEY", "E2B_API_KEY"};

/* An input and everything it points to. */
struct world {
    struct sg_select_candidate candidates[CANDIDATES + 1];
    const char *credentials[CANDIDATES + 1][LIST];
    const char *required[LIST];
    const char *available[LIST];
    const char *precedence[LIST];
    struct sg_select_input in;
};

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static size_t below(uint64_t *s, size_t n)
{
    return (size_t)(next(s) % n);
}

static struct sg_select_names pick_names(uint64_t *s, const char **out, const char *const *from,
                                         size_t n_from, size_t max)
{
    size_t n = below(s, max + 1);
    for (size_t i = 0; i < n; i++)
        out[i] = from[below(s, n_from)];
    return (struct sg_select_names){out, n};
}

static void fill_candidate(uint64_t *s, struct world *w, size_t i, const char *name)
{
    w->candidates[i] = (struct sg_select_candidate){
        .name = name,
        .capabilities = (unsigned)(next(s) | next(s)) & 0x7fU,
        .free = below(s, 2) == 0,
        .credentials = pick_names(s, w->credentials[i], credential_names, SG_COUNT_OF(credential_names), 2),
    };
}

static bool taken(const struct world *w, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (sg_streq(w->candidates[i].name, name))
            return true;
    }
    return false;
}

static void make_world(uint64_t *s, struct world *w)
{
    size_t n = below(s, CANDIDATES + 1);
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < n; i++) {
        const char *name;
        do {
            name = backend_names[below(s, SG_COUNT_OF(backend_names))];
        } while (taken(w, i, name));
        fill_candidate(s, w, i, name);
    }
    w->in.candidates = w->candidates;
    w->in.n_candidates = n;
    w->in.policy.override = below(s, 3) == 0 ? backend_names[below(s, SG_COUNT_OF(backend_names))] : NULL;
    w->in.policy.allow_paid = below(s, 2) == 0;
    w->in.policy.required_capabilities = (unsigned)(next(s) & next(s) & next(s)) & 0x7fU;
    w->in.policy.required_credentials =
        pick_names(s, w->required, credential_names, SG_COUNT_OF(credential_names), 1);
    w->in.policy.precedence = pick_names(s, w->precedence, backend_names, SG_COUNT_OF(backend_names), LIST);
    w->in.environment.available_credentials =
        pick_names(s, w->available, credential_names, SG_COUNT_OF(credential_names), LIST);
    w->in.environment.budget_set = below(s, 2) == 0;
    w->in.environment.budget_microusd = (int64_t)below(s, 3) - 1;
}

static struct sg_select_result run(const struct sg_select_input *in)
{
    struct sg_select_result r;
    memset(&r, 0, sizeof r);
    cr_assert_eq(sg_select(in, &r), SG_SELECT_OK);
    return r;
}

/* The same decision with the same explanation? Compares names, since the candidates may lie elsewhere. */
static bool same(const struct sg_select_result *a, const struct sg_select_result *b)
{
    if (a->verdict != b->verdict || a->n_considered != b->n_considered || !a->pick != !b->pick ||
        (a->pick && !sg_streq(a->pick->name, b->pick->name)))
        return false;
    for (size_t i = 0; i < a->n_considered; i++) {
        const struct sg_select_considered *x = &a->considered[i];
        const struct sg_select_considered *y = &b->considered[i];
        if (!sg_streq(x->candidate->name, y->candidate->name) || x->reasons != y->reasons ||
            x->missing_capabilities != y->missing_capabilities)
            return false;
    }
    return true;
}

/* ---- a second, slower reading of the rules ---- */

static bool listed(const struct sg_select_names *l, const char *name)
{
    for (size_t i = l->n; i-- > 0;) {
        if (sg_streq(l->v[i], name))
            return true;
    }
    return false;
}

static size_t place(const struct sg_select_input *in, const char *name)
{
    for (size_t i = 0; i < in->policy.precedence.n; i++) {
        if (sg_streq(in->policy.precedence.v[i], name))
            return i;
    }
    return SIZE_MAX;
}

static bool ranks_before(const struct sg_select_input *in, const char *a, const char *b)
{
    size_t x = place(in, a);
    size_t y = place(in, b);
    return x < y || (x == y && strcmp(a, b) < 0);
}

static bool credentials_there(const struct sg_select_input *in, const struct sg_select_candidate *c)
{
    for (size_t i = 0; i < c->credentials.n; i++) {
        if (!listed(&in->environment.available_credentials, c->credentials.v[i]))
            return false;
    }
    for (size_t i = 0; i < in->policy.required_credentials.n; i++) {
        if (!listed(&in->environment.available_credentials, in->policy.required_credentials.v[i]))
            return false;
    }
    return true;
}

static bool can(const struct sg_select_input *in, const struct sg_select_candidate *c)
{
    return (c->capabilities & in->policy.required_capabilities) == in->policy.required_capabilities;
}

static bool affordable(const struct sg_select_input *in, const struct sg_select_candidate *c)
{
    if (c->free)
        return true;
    return in->policy.allow_paid && !(in->environment.budget_set && in->environment.budget_microusd <= 0);
}

static enum sg_select_verdict expected_override(const struct sg_select_input *in, const char **pick)
{
    for (size_t i = 0; i < in->n_candidates; i++) {
        const struct sg_select_candidate *c = &in->candidates[i];
        if (!sg_streq(c->name, in->policy.override))
            continue;
        if (!can(in, c))
            return SG_SELECT_OVERRIDE_MISSING_CAPABILITIES;
        if (!credentials_there(in, c))
            return SG_SELECT_OVERRIDE_MISSING_CREDENTIALS;
        *pick = c->name;
        return SG_SELECT_PICKED;
    }
    return SG_SELECT_OVERRIDE_NOT_REGISTERED;
}

static enum sg_select_verdict expected(const struct sg_select_input *in, const char **pick)
{
    *pick = NULL;
    if (in->n_candidates == 0)
        return SG_SELECT_NO_BACKENDS_REGISTERED;
    if (in->policy.override)
        return expected_override(in, pick);
    for (size_t i = 0; i < in->n_candidates; i++) {
        const struct sg_select_candidate *c = &in->candidates[i];
        if (affordable(in, c) && can(in, c) && credentials_there(in, c) &&
            (!*pick || ranks_before(in, c->name, *pick)))
            *pick = c->name;
    }
    return *pick ? SG_SELECT_PICKED : SG_SELECT_NO_BACKEND_SATISFIES_POLICY;
}

Test(select_properties, agrees_with_a_second_reading_of_the_rules)
{
    uint64_t s = 0x9e3779b97f4a7c15U;
    size_t verdicts[SG_SELECT_NO_BACKEND_SATISFIES_POLICY + 1] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        struct world w;
        const char *pick;
        make_world(&s, &w);
        struct sg_select_result r = run(&w.in);
        cr_assert(r.verdict == expected(&w.in, &pick), "round %d", i);
        cr_assert(!r.pick == !pick && (!pick || sg_streq(pick, r.pick->name)), "round %d", i);
        for (size_t k = 1; k < r.n_considered; k++)
            cr_assert(
                ranks_before(&w.in, r.considered[k - 1].candidate->name, r.considered[k].candidate->name));
        verdicts[r.verdict]++;
    }
    for (size_t v = 0; v < SG_COUNT_OF(verdicts); v++)
        cr_assert(verdicts[v] > 200, "verdict %zu came up too rarely to be tested", v);
}

Test(select_properties, the_order_of_candidates_and_sets_never_matters)
{
    uint64_t s = 0x2545f4914f6cdd1dU;
    for (int i = 0; i < ROUNDS; i++) {
        struct world w;
        make_world(&s, &w);
        struct sg_select_result before = run(&w.in);
        struct sg_select_candidate shuffled[CANDIDATES + 1];
        memcpy(shuffled, w.candidates, sizeof shuffled);
        for (size_t k = w.in.n_candidates; k > 1; k--) {
            size_t j = below(&s, k);
            struct sg_select_candidate t = shuffled[k - 1];
            shuffled[k - 1] = shuffled[j];
            shuffled[j] = t;
        }
        struct sg_select_input in = w.in;
        in.candidates = shuffled;
        size_t held = w.in.environment.available_credentials.n;
        for (size_t k = 0; k < held / 2; k++) {
            const char *t = w.available[k];
            w.available[k] = w.available[held - 1 - k];
            w.available[held - 1 - k] = t;
        }
        struct sg_select_result after = run(&in);
        cr_assert(same(&before, &after), "round %d", i);
    }
}

Test(select_properties, an_override_is_never_swapped)
{
    uint64_t s = 77;
    for (int i = 0; i < ROUNDS; i++) {
        struct world w;
        make_world(&s, &w);
        w.in.policy.override = backend_names[below(&s, SG_COUNT_OF(backend_names))];
        struct sg_select_result r = run(&w.in);
        cr_assert(!r.pick || sg_streq(r.pick->name, w.in.policy.override), "round %d", i);
    }
}

Test(select_properties, a_worse_ranked_backend_never_changes_the_pick)
{
    uint64_t s = 4711;
    size_t tried = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct world w;
        make_world(&s, &w);
        struct sg_select_result before = run(&w.in);
        const char *name = backend_names[below(&s, SG_COUNT_OF(backend_names))];
        if (!before.pick || taken(&w, w.in.n_candidates, name) ||
            ranks_before(&w.in, name, before.pick->name))
            continue;
        fill_candidate(&s, &w, w.in.n_candidates, name);
        w.in.n_candidates++;
        struct sg_select_result after = run(&w.in);
        cr_assert(after.pick && sg_streq(after.pick->name, before.pick->name), "round %d", i);
        tried++;
    }
    cr_assert(tried > 1000);
}

Test(select_properties, losing_a_credential_never_makes_a_backend_eligible)
{
    uint64_t s = 31337;
    size_t tried = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct world w;
        make_world(&s, &w);
        w.in.policy.override = NULL;
        struct sg_select_names *held = &w.in.environment.available_credentials;
        if (held->n == 0)
            continue;
        struct sg_select_result before = run(&w.in);
        w.available[below(&s, held->n)] = w.available[held->n - 1];
        held->n--;
        struct sg_select_result after = run(&w.in);
        for (size_t k = 0; k < after.n_considered; k++)
            cr_assert(after.considered[k].reasons != 0 || before.considered[k].reasons == 0, "round %d", i);
        tried++;
    }
    cr_assert(tried > 1000);
}
