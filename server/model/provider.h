/* What an operator sees of a provider that a backend asks: plain values. */
#ifndef SG_PROVIDER_H
#define SG_PROVIDER_H

#include <jansson.h>

#include "base/base.h"

enum sg_provider_kind {
    SG_PROVIDER_API,     /* its API: lives of sandboxes */
    SG_PROVIDER_SANDBOX, /* short calls to what runs inside a sandbox */
    SG_PROVIDER_STREAM,  /* as long as a command runs, or the bytes of a file take */
    SG_PROVIDER_KINDS,
};
/* Static, also a label of metrics. */
const char *sg_provider_kind_name(enum sg_provider_kind k);

/* Since the start, but for the first three. Repetitions count as calls of their own. */
struct sg_provider_calls {
    unsigned running, waiting, max_concurrent;
    uint64_t answered;  /* whatever the status */
    uint64_t failed;    /* without an answer, those that timed out included */
    uint64_t timed_out;
    uint64_t cancelled; /* by us */
    uint64_t refused;   /* too many waited */
    uint64_t repeated;  /* calls that were made again */
    uint64_t bytes_in, bytes_out; /* of bodies */
};

enum sg_breaker {
    SG_BREAKER_CLOSED,    /* all is well */
    SG_BREAKER_HALF_OPEN, /* the next call is let through, to see */
    SG_BREAKER_OPEN,      /* nothing is asked */
};

struct sg_provider_report {
    struct sg_provider_calls calls[SG_PROVIDER_KINDS];
    enum sg_breaker breaker; /* the worst of all that the backend has */
    uint64_t breaker_opened;
    unsigned sandboxes;        /* that somebody has */
    unsigned removals_pending; /* not confirmed by the provider yet */
    uint64_t sweeps, sweeps_failed; /* looks at what the provider has of ours */
    uint64_t orphans;          /* found there, had by nobody */
};

/* A new object. */
json_t *sg_provider_json(const struct sg_provider_report *r);

#endif
