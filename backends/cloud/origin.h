/* Calls to a provider's API, JSON in and out: repeated where that is safe, and only there; failures in the words of ours; and a breaker
 * that stops asking a provider that does not work. Any thread; nothing blocks but sg_origin_free().
 *
 * What a provider says is shown only when nothing of a secret that was sent is in it.
 */
#ifndef SG_ORIGIN_H
#define SG_ORIGIN_H

#include <jansson.h>

#include "backends/cloud/alarms.h"
#include "backends/net/http.h"
#include "model/provider.h"

struct sg_origin;

#define SG_ORIGIN_ATTEMPTS 4U
#define SG_ORIGIN_BREAK_AFTER 5U     /* failures in a row */
#define SG_ORIGIN_BREAK_MS 10000     /* and then one attempt after so long */
#define SG_ORIGIN_ANSWER_MAX ((size_t)8 * 1024 * 1024)

struct sg_origin_config {
    const char *provider; /* static: named in errors */
    struct sg_net *net;
    struct sg_alarms *alarms; /* closed before the origin is freed */
    struct sg_net_client_config client;
    const char *key_header;  /* static, or NULL: there is no key */
    struct sg_secret *key;   /* the origin's from here on, also when it fails */
};

int sg_origin_new(const struct sg_origin_config *c, struct sg_origin **ret, struct sg_error *err);
/* Ends all calls with SG_SHUTTING_DOWN. Blocks for their callbacks; not on the net thread. NULL-safe, returns NULL. */
struct sg_origin *sg_origin_free(struct sg_origin *o);
/* The key for calls from now on. */
void sg_origin_set_key(struct sg_origin *o, struct sg_secret *key);
/* 0, or -1 SG_UNAVAILABLE while the breaker is open, with why as of the last failure. */
int sg_origin_health(struct sg_origin *o, struct sg_error *err);
/* Adds what its calls came to, and its breaker. */
void sg_origin_report(struct sg_origin *o, enum sg_provider_kind kind, struct sg_provider_report *r);
/* The same of a client that has no origin. */
void sg_client_report(struct sg_net_client *c, enum sg_provider_kind kind, struct sg_provider_report *r);
/* For calls that are made otherwise, such as streams. */
struct sg_net_client *sg_origin_client(struct sg_origin *o);

struct sg_origin_answer {
    int status;
    const json_t *body; /* NULL: there was none, or it was no JSON */
    const char *next;   /* of X-Next-Token, or NULL */
};

struct sg_origin_call {
    const char *method, *path;
    const json_t *body;             /* borrowed, or NULL: none */
    const struct sg_net_header *headers; /* further ones */
    size_t n_headers;
    /* It may be made again when it is not known what became of it. Otherwise only when it is certain that nothing did. */
    bool repeatable;
    bool insist;         /* the breaker does not stop it: for what has to be done some time */
    int64_t deadline_ms; /* of all attempts together */
    /* Exactly once. a: of an answer that came, whatever its status; NULL when none did. err: unless the status is 2xx. Borrowed. */
    void (*done)(void *arg, const struct sg_origin_answer *a, const struct sg_error *err);
    void *arg;
};
/* done comes on any thread, maybe before this returns. */
void sg_origin_call(struct sg_origin *o, const struct sg_origin_call *c);

/* Is it not known whether what was asked for has happened? */
bool sg_origin_unknown(const struct sg_error *err);
/* What an answer that is no success means: SG_NOT_FOUND (404), SG_CONFLICT (409), SG_UNAVAILABLE (nothing happened; reasons
 * provider_credentials, provider_limit, provider_capacity), SG_PROVIDER_TIMEOUT, SG_PROVIDER_FAILED; with the members provider and
 * provider_status. text, len: its body; secret: what must not be told (MAY be NULL). Returns -1. */
int sg_origin_refused(const char *provider, int status, int retry_after, const char *text, size_t len, const char *secret,
                      struct sg_error *err);

#endif
