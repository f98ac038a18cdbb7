#include "service/endpoints.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "service/service_priv.h"

#include <pthread.h>
#include <stdio.h>
#include <uthash.h>

#define MAC_HEX 64U

/* ---- what has been issued ---- */

struct issued {
    struct issued *next;
    char id[SG_ID_MAX];
    int64_t expires_us;
    bool revoked;
};

/* The tokens of one lease; gone when the lease begins to end. */
struct lease_tokens {
    char lease[SG_ID_MAX];
    struct sg_endpoints *table; /* one reference */
    struct sg_cancel *end;
    struct sg_cancel_hook hook;
    bool listed; /* table lock, these three */
    struct issued *list;
    size_t n;
    UT_hash_handle hh;
};

struct sg_endpoints {
    _Atomic int refs;
    pthread_mutex_t lock; /* a leaf */
    struct lease_tokens *leases;
};

static void table_unref(struct sg_endpoints *t)
{
    if (--t->refs > 0)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t);
}

struct sg_endpoints *sg_endpoints_new(void)
{
    struct sg_endpoints *t = sg_xcalloc(1, sizeof *t);

    t->refs = 1;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void tokens_free(struct lease_tokens *l)
{
    while (l->list) {
        struct issued *next = l->list->next;
        free(l->list);
        l->list = next;
    }
    sg_cancel_unref(l->end);
    table_unref(l->table);
    free(l);
}

static void unlist(struct lease_tokens *l)
{
    if (l->listed)
        HASH_DEL(l->table->leases, l);
    l->listed = false;
}

static void lease_ended(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct lease_tokens *l = sg_container_of(h, struct lease_tokens, hook);

    pthread_mutex_lock(&l->table->lock);
    unlist(l);
    pthread_mutex_unlock(&l->table->lock);
    tokens_free(l);
}

struct sg_endpoints *sg_endpoints_free(struct sg_endpoints *t)
{
    if (!t)
        return NULL;
    for (;;) {
        pthread_mutex_lock(&t->lock);
        struct lease_tokens *l = t->leases;
        if (l)
            unlist(l);
        pthread_mutex_unlock(&t->lock);
        if (!l)
            break;
        if (sg_cancel_unhook(l->end, &l->hook))
            tokens_free(l);
    }
    table_unref(t);
    return NULL;
}

static struct lease_tokens *find_lease(struct sg_endpoints *t, const char *lease_id)
{
    struct lease_tokens *l = NULL;

    HASH_FIND_STR(t->leases, lease_id, l);
    return l;
}

static struct lease_tokens *add_lease(struct sg_endpoints *t, struct sg_entry *e)
{
    struct lease_tokens *l = sg_xcalloc(1, sizeof *l);

    snprintf(l->lease, sizeof l->lease, "%s", sg_entry_id(e));
    t->refs++;
    l->table = t;
    l->end = sg_cancel_ref(sg_entry_cancel(e));
    l->hook.fired = lease_ended;
    l->listed = true;
    HASH_ADD_STR(t->leases, lease, l);
    return l;
}

static void drop_expired(struct lease_tokens *l, int64_t now_us)
{
    for (struct issued **at = &l->list; *at;) {
        struct issued *i = *at;
        if (i->expires_us > now_us) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        free(i);
        l->n--;
    }
}

static int too_many(size_t n, struct sg_error *err)
{
    sg_error_set(err, SG_QUOTA_EXCEEDED, "the lease has %zu endpoint tokens of at most %u", n, SG_ENDPOINT_TOKENS_MAX);
    sg_error_member(err, "limit", json_integer(SG_ENDPOINT_TOKENS_MAX));
    sg_error_member(err, "use", json_integer((json_int_t)n));
    return sg_error_retry_after(err, 60);
}

static int remember(struct sg_endpoints *t, struct sg_entry *e, const struct sg_endpoint_grant *g, struct sg_error *err)
{
    pthread_mutex_lock(&t->lock);
    struct lease_tokens *l = find_lease(t, sg_entry_id(e));
    bool fresh = !l;
    if (fresh)
        l = add_lease(t, e);
    drop_expired(l, sg_wall_us());
    size_t n = l->n;
    if (n < SG_ENDPOINT_TOKENS_MAX) {
        struct issued *i = sg_xcalloc(1, sizeof *i);
        snprintf(i->id, sizeof i->id, "%s", g->token_id);
        i->expires_us = g->expires_us;
        i->next = l->list;
        l->list = i;
        l->n++;
    }
    pthread_mutex_unlock(&t->lock);
    if (fresh)
        (void)sg_cancel_hook(l->end, &l->hook); /* of a lease that ends at this moment: frees l at once */
    return n < SG_ENDPOINT_TOKENS_MAX ? 0 : too_many(n, err);
}

static struct issued *find_issued(struct sg_endpoints *t, const char *lease_id, const char *token_id)
{
    struct lease_tokens *l = find_lease(t, lease_id);
    struct issued *i = l ? l->list : NULL;

    while (i && !sg_streq(i->id, token_id))
        i = i->next;
    return i && i->expires_us > sg_wall_us() ? i : NULL;
}

/* ---- the tokens themselves ---- */

static void mac_hex(struct sg_service *s, const char *what, const char *text, char out[MAC_HEX + 1])
{
    sg_cleanup(sg_free_p) char *message = sg_xasprintf("%s:%s", what, text);
    uint8_t mac[SG_SHA256_LEN];
    size_t key_len;
    const char *key = sg_secret_expose(sg_store_endpoint_key(s->parts.store), &key_len);

    sg_hmac_sha256(key, key_len, message, strlen(message), mac);
    sg_hex(mac, sizeof mac, out);
}

void sg_service_endpoint_token(struct sg_service *s, const char *lease_id, char out[SG_ENDPOINT_TOKEN_MAX])
{
    memcpy(out, "ept_", 4);
    mac_hex(s, "lease-endpoint", lease_id, out + 4);
}

/* "eps_LEASE.PORT.EXPIRY.ID.MAC", the expiry in seconds: what is claimed can be read, and is what the MAC is of. */
static void sign(struct sg_service *s, const char *lease_id, uint16_t port, struct sg_endpoint_grant *g)
{
    char mac[MAC_HEX + 1];

    int n = snprintf(g->token, sizeof g->token, "eps_%s.%u.%lld.%s", lease_id, (unsigned)port,
                     (long long)(g->expires_us / 1000000), g->token_id);
    mac_hex(s, "issued-endpoint", g->token, mac);
    snprintf(g->token + n, sizeof g->token - (size_t)n, ".%s", mac);
}

int sg_service_endpoint_issue(struct sg_service *s, struct sg_entry *e, uint16_t port, int64_t ttl_ms,
                              struct sg_endpoint_grant *ret, struct sg_error *err)
{
    if (ttl_ms > s->cfg.lease_timeout_max_ms)
        return sg_error_field(err, SG_TIMEOUT_ABOVE_MAXIMUM, "ttl", "is above this server's maximum of %lld seconds",
                              (long long)(s->cfg.lease_timeout_max_ms / 1000));
    if (sg_entry_use_begin(e, NULL, err) < 0)
        return -1;
    sg_entry_use_end(e, false); /* asking is not using */
    sg_id_new("token", ret->token_id);
    ret->expires_us = (sg_wall_us() + ttl_ms * 1000 + 999999) / 1000000 * 1000000;
    sign(s, sg_entry_id(e), port, ret);
    return remember(s->endpoints, e, ret, err);
}

int sg_service_endpoint_revoke(struct sg_service *s, struct sg_entry *e, const char *token_id, struct sg_error *err)
{
    pthread_mutex_lock(&s->endpoints->lock);
    struct issued *i = find_issued(s->endpoints, sg_entry_id(e), token_id);
    if (i)
        i->revoked = true;
    pthread_mutex_unlock(&s->endpoints->lock);
    return i ? 0 : sg_error_set(err, SG_NOT_FOUND, "the lease has no endpoint token of that id");
}

int sg_service_endpoint_admit(struct sg_service *s, struct sg_entry *e, const struct sg_endpoint_pass *pass, struct sg_error *err)
{
    if (!pass->token_id[0])
        return 0;
    pthread_mutex_lock(&s->endpoints->lock);
    const struct issued *i = find_issued(s->endpoints, sg_entry_id(e), pass->token_id);
    bool good = i && !i->revoked;
    pthread_mutex_unlock(&s->endpoints->lock);
    if (good)
        return 0;
    sg_error_set(err, SG_UNAUTHORIZED, "the endpoint token has been revoked");
    return sg_error_reason(err, "token_revoked");
}

static bool same(const char *a, const char *b)
{
    size_t n = strlen(a);

    return n == strlen(b) && sg_equal_const_time(a, b, n);
}

/* Takes the next member of a token, up to '.', into out. */
static const char *member(const char *p, char *out, size_t size)
{
    size_t n = strcspn(p, ".");

    if (p[n] != '.' || n >= size)
        return NULL;
    memcpy(out, p, n);
    out[n] = '\0';
    return p + n + 1;
}

/* The claims of a token whose MAC is right. */
static bool read_claims(const char *token, char lease[SG_ID_MAX], int64_t *ret_port, struct sg_endpoint_pass *ret)
{
    char port[8], expiry[24];
    int64_t seconds = 0;
    const char *p = token + 4;

    p = member(p, lease, SG_ID_MAX);
    p = p ? member(p, port, sizeof port) : NULL;
    p = p ? member(p, expiry, sizeof expiry) : NULL;
    p = p ? member(p, ret->token_id, sizeof ret->token_id) : NULL;
    if (!p || !sg_parse_int(port, 1, 65535, ret_port) || !sg_parse_int(expiry, 0, INT64_MAX / 1000000, &seconds))
        return false;
    ret->expires_us = seconds * 1000000;
    return true;
}

static bool mac_right(struct sg_service *s, const char *token)
{
    const char *dot = strrchr(token, '.');
    char mac[MAC_HEX + 1];

    if (!dot || strlen(token) >= SG_ENDPOINT_TOKEN_MAX)
        return false;
    sg_cleanup(sg_free_p) char *claims = sg_xstrndup(token, (size_t)(dot - token));
    mac_hex(s, "issued-endpoint", claims, mac);
    return same(dot + 1, mac);
}

int sg_service_endpoint_check(struct sg_service *s, const char *lease_id, uint16_t port, const char *token,
                              struct sg_endpoint_pass *ret, struct sg_error *err)
{
    char own[SG_ENDPOINT_TOKEN_MAX], lease[SG_ID_MAX];
    int64_t claimed;

    *ret = (struct sg_endpoint_pass){0};
    sg_service_endpoint_token(s, lease_id, own);
    if (same(token, own))
        return 0;
    if (strncmp(token, "eps_", 4) != 0 || !mac_right(s, token) || !read_claims(token, lease, &claimed, ret) ||
        !sg_streq(lease, lease_id) || claimed != port)
        return sg_error_set(err, SG_UNAUTHORIZED, "the endpoint token is not one for this port of this lease");
    if (ret->expires_us > sg_wall_us())
        return 0;
    sg_error_set(err, SG_UNAUTHORIZED, "the endpoint token has expired");
    return sg_error_reason(err, "token_expired");
}
