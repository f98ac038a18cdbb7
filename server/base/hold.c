#include "base/hold.h"

struct sg_hold {
    _Atomic unsigned refs;
    void (*gone)(void *arg);
    void *arg;
};

struct sg_hold *sg_hold_new(void (*gone)(void *arg), void *arg)
{
    struct sg_hold *h = sg_xcalloc(1, sizeof *h);

    h->refs = 1;
    h->gone = gone;
    h->arg = arg;
    return h;
}

struct sg_hold *sg_hold_ref(struct sg_hold *h)
{
    if (h)
        h->refs++;
    return h;
}

struct sg_hold *sg_hold_unref(struct sg_hold *h)
{
    if (h && --h->refs == 0) {
        if (h->gone)
            h->gone(h->arg);
        free(h);
    }
    return NULL;
}

unsigned sg_hold_count(const struct sg_hold *h)
{
    unsigned refs = h->refs;

    return refs > 0 ? refs - 1 : 0;
}
