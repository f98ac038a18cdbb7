#include <unistd.h>

#include "world.h"

#include "service/endpoints.h"

static struct world w;
static struct sg_entry *lease;
static struct sg_error err;

static void begin(void)
{
    world_prepare(&w);
    world_start(&w, NULL);
    lease = world_lease(&w);
}

static void end(void)
{
    sg_error_clear(&err);
    world_finish(&w);
}

TestSuite(endpoints, .init = begin, .fini = end);

/* 0, or the reason it was refused for. */
static const char *check(const char *lease_id, uint16_t port, const char *token)
{
    struct sg_endpoint_pass pass;
    sg_error_clear(&err);
    if (sg_service_endpoint_check(w.service, lease_id, port, token, &pass, &err) == 0 &&
        sg_service_endpoint_admit(w.service, lease, &pass, &err) == 0)
        return NULL;
    cr_assert_eq(err.code, SG_UNAUTHORIZED);
    return err.reason;
}

static struct sg_endpoint_grant issue(uint16_t port, int64_t ttl_ms)
{
    struct sg_endpoint_grant g;
    cr_assert_eq(sg_service_endpoint_issue(w.service, lease, port, ttl_ms, &g, &err), 0, "%s", err.message);
    return g;
}

Test(endpoints, the_leases_own_token_opens_its_ports_only)
{
    char own[SG_ENDPOINT_TOKEN_MAX];
    struct sg_entry *other = world_lease(&w);
    sg_service_endpoint_token(w.service, sg_entry_id(lease), own);
    cr_assert_null(check(sg_entry_id(lease), 80, own));
    cr_assert_null(check(sg_entry_id(lease), 65535, own));
    cr_assert_str_eq(check(sg_entry_id(other), 80, own), "");
    own[10] = own[10] == 'a' ? 'b' : 'a';
    cr_assert_str_eq(check(sg_entry_id(lease), 80, own), "");
    cr_assert_str_eq(check(sg_entry_id(lease), 80, ""), "");
    world_end(&w, other);
    world_end(&w, lease);
}

Test(endpoints, an_issued_token_is_for_one_port_and_cannot_be_altered)
{
    struct sg_endpoint_grant g = issue(8000, 60000);
    cr_assert_null(check(sg_entry_id(lease), 8000, g.token));
    cr_assert_str_eq(check(sg_entry_id(lease), 8001, g.token), "");
    for (size_t i = 0; i < strlen(g.token); i++) {
        struct sg_endpoint_grant bad = g;
        bad.token[i] = bad.token[i] == '1' ? '2' : '1';
        cr_assert_not_null(check(sg_entry_id(lease), 8000, bad.token), "%zu of %s", i, g.token);
        bad = g;
        bad.token[i] = '\0';
        cr_assert_not_null(check(sg_entry_id(lease), 8000, bad.token), "cut at %zu", i);
    }
    char longer[400];
    snprintf(longer, sizeof longer, "%s%0200d", g.token, 0);
    cr_assert_not_null(check(sg_entry_id(lease), 8000, longer));
    cr_assert_not_null(check(sg_entry_id(lease), 8000, "eps_...."));
    cr_assert_not_null(check(sg_entry_id(lease), 8000, "eps_"));
    world_end(&w, lease);
}

Test(endpoints, tokens_expire)
{
    struct sg_endpoint_grant g = issue(80, 1);
    cr_assert_leq(g.expires_us - sg_wall_us(), 1001000);
    while (sg_wall_us() < g.expires_us)
        usleep(10000);
    cr_assert_str_eq(check(sg_entry_id(lease), 80, g.token), "token_expired");
    cr_assert_eq(sg_service_endpoint_revoke(w.service, lease, g.token_id, &err), -1);
    cr_assert_eq(err.code, SG_NOT_FOUND);
    cr_assert_eq(sg_service_endpoint_issue(w.service, lease, 80, w.cfg.lease_timeout_max_ms + 1, &g, &err), -1);
    cr_assert_eq(err.code, SG_TIMEOUT_ABOVE_MAXIMUM);
    cr_assert_str_eq(err.field, "ttl");
    world_end(&w, lease);
}

Test(endpoints, tokens_can_be_revoked)
{
    struct sg_endpoint_grant g = issue(80, 60000);
    struct sg_endpoint_grant stays = issue(80, 60000);
    struct sg_entry *other = world_lease(&w);
    cr_assert_eq(sg_service_endpoint_revoke(w.service, other, g.token_id, &err), -1);
    cr_assert_eq(err.code, SG_NOT_FOUND);
    sg_error_clear(&err);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(sg_service_endpoint_revoke(w.service, lease, g.token_id, &err), 0);
        cr_assert_str_eq(check(sg_entry_id(lease), 80, g.token), "token_revoked");
    }
    cr_assert_null(check(sg_entry_id(lease), 80, stays.token));
    cr_assert_eq(sg_service_endpoint_revoke(w.service, lease, "token_x", &err), -1);
    cr_assert_eq(err.code, SG_NOT_FOUND);
    world_end(&w, other);
    world_end(&w, lease);
}

Test(endpoints, tokens_are_counted_and_end_with_their_lease)
{
    struct sg_endpoint_grant g;
    struct sg_entry *kept = sg_entry_ref(lease);
    for (unsigned i = 0; i < SG_ENDPOINT_TOKENS_MAX; i++)
        g = issue(80, 60000);
    cr_assert_eq(sg_service_endpoint_issue(w.service, lease, 80, 60000, &g, &err), -1);
    cr_assert_eq(err.code, SG_QUOTA_EXCEEDED);
    sg_error_clear(&err);
    world_end(&w, lease);
    lease = kept;
    cr_assert_eq(sg_service_endpoint_issue(w.service, lease, 80, 60000, &g, &err), -1);
    cr_assert_eq(err.code, SG_LEASE_GONE);
    sg_error_clear(&err);
    cr_assert_eq(sg_service_endpoint_revoke(w.service, lease, g.token_id, &err), -1);
    sg_entry_unref(kept);
}

Test(endpoints, a_service_may_end_with_tokens_in_it)
{
    issue(80, 60000);
    sg_entry_unref(lease);
}
