#include "base/budget.h"

#include <stdatomic.h>

struct sg_budget {
    _Atomic int refs;
    _Atomic size_t used;
    size_t max;
};

struct sg_budget *sg_budget_new(size_t max)
{
    struct sg_budget *b = sg_xcalloc(1, sizeof *b);
    b->refs = 1;
    b->max = max;
    return b;
}

struct sg_budget *sg_budget_ref(struct sg_budget *b)
{
    b->refs++;
    return b;
}

struct sg_budget *sg_budget_unref(struct sg_budget *b)
{
    if (b != NULL && --b->refs == 0) {
        free(b);
    }
    return NULL;
}

bool sg_budget_take(struct sg_budget *b, size_t n)
{
    size_t used = atomic_load(&b->used);
    do {
        if (n > b->max - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&b->used, &used, used + n));
    return true;
}

void sg_budget_give(struct sg_budget *b, size_t n)
{
    atomic_fetch_sub(&b->used, n);
}

size_t sg_budget_used(const struct sg_budget *b)
{
    return atomic_load(&b->used);
}
