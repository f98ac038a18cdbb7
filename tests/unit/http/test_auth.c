#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>

#include "base/hash.h"
#include "http/auth.h"

static struct sg_error err;
static struct sg_auth *auth;
static char hex[3][SG_SHA256_HEX];
static const char *const backends[] = {"local_bwrap", "e2b", NULL};

static void setup(void)
{
    sg_sha256_hex("one", 3, hex[0]);
    sg_sha256_hex("two", 3, hex[1]);
    sg_sha256_hex("three", 5, hex[2]);
}

static void teardown(void)
{
    auth = sg_auth_free(auth);
    sg_error_clear(&err);
}

TestSuite(auth, .init = setup, .fini = teardown);

static const char *who(const char *token)
{
    static char name[64];
    const struct sg_principal *p = NULL;
    sg_error_clear(&err);
    if (sg_auth_check(auth, token, token ? strlen(token) : 0, &p, &err) < 0)
        return sg_code_name(err.code);
    snprintf(name, sizeof name, "%s", p->name);
    sg_principal_unref(p);
    return name;
}

Test(auth, nobody_configured)
{
    const struct sg_principal *p = NULL;
    cr_assert_eq(sg_auth_new(NULL, 0, &auth, &err), 0);
    cr_assert(!sg_auth_has_tokens(auth));
    cr_assert_eq(sg_auth_check(auth, NULL, 0, &p, &err), 0);
    cr_assert_eq(p->role, SG_ROLE_ADMIN);
    cr_assert_str_eq(p->tenant, "default");
    cr_assert(p->allow_paid && !p->backends && !p->budget_set);
    sg_principal_unref(p);
    cr_assert_str_eq(who("whatever"), "local");
}

Test(auth, tokens)
{
    struct sg_token_config list[] = {
        {.name = "a", .tenant = "acme", .sha256 = hex[0], .max_leases = 3, .backends = backends, .budget_set = true, .budget_microusd = 5},
        {.name = "b", .tenant = "default", .sha256 = hex[1], .role = SG_ROLE_ADMIN, .allow_paid = true},
    };
    const struct sg_principal *p = NULL;
    cr_assert_eq(sg_auth_new(list, 2, &auth, &err), 0);
    cr_assert_str_eq(who("one"), "a");
    cr_assert_str_eq(who("two"), "b");
    cr_assert_str_eq(who("three"), "unauthorized");
    cr_assert_str_eq(who(""), "unauthorized");
    cr_assert_str_eq(who(NULL), "unauthorized");
    cr_assert_str_eq(who(hex[0]), "unauthorized"); /* the hash is not the token */
    cr_assert_eq(sg_auth_check(auth, "one", 3, &p, &err), 0);
    cr_assert_eq(p->max_leases, 3);
    cr_assert_str_eq(p->backends[1], "e2b");
    cr_assert(p->budget_set && p->budget_microusd == 5 && !p->allow_paid && p->role == SG_ROLE_TENANT);
    sg_principal_unref(p);
}

Test(auth, malformed)
{
    char longer[80];
    memset(longer, 'x', sizeof longer - 1);
    longer[79] = '\0';
    struct sg_token_config good = {.name = "a", .tenant = "t", .sha256 = hex[0]};
    struct sg_token_config bad[] = {good, good, good, good, good, good};
    bad[0].sha256 = "abc";
    bad[1].sha256 = NULL;
    bad[2].name = "";
    bad[3].tenant = NULL;
    bad[4].name = longer;
    bad[5].tenant = longer;
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_assert_eq(sg_auth_new(&bad[i], 1, &auth, &err), -1, "%zu", i);
        cr_assert_eq(err.code, SG_INVALID_REQUEST);
        sg_error_clear(&err);
    }
    struct sg_token_config same[] = {good, good};
    cr_assert_eq(sg_auth_new(same, 2, &auth, &err), -1);
}

Test(auth, replaced)
{
    struct sg_token_config first = {.name = "a", .tenant = "t", .sha256 = hex[0]};
    struct sg_token_config second = {.name = "b", .tenant = "t", .sha256 = hex[1]};
    struct sg_token_config broken = {.name = "c", .tenant = "t", .sha256 = "?"};
    const struct sg_principal *p = NULL;
    cr_assert_eq(sg_auth_new(&first, 1, &auth, &err), 0);
    cr_assert_eq(sg_auth_check(auth, "one", 3, &p, &err), 0);
    cr_assert_eq(sg_auth_replace(auth, &broken, 1, &err), -1);
    cr_assert_str_eq(who("one"), "a");
    cr_assert_eq(sg_auth_replace(auth, NULL, 0, &err), -1);
    cr_assert_str_eq(who("one"), "a");
    cr_assert_eq(sg_auth_replace(auth, &second, 1, &err), 0);
    cr_assert_str_eq(who("one"), "unauthorized");
    cr_assert_str_eq(who("two"), "b");
    auth = sg_auth_free(auth);
    cr_assert_str_eq(p->name, "a"); /* what was handed out outlives its set and the whole of it */
    sg_principal_unref(sg_principal_ref(p));
    sg_principal_unref(p);
}

static void *hammer(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        const struct sg_principal *p = NULL;
        if (sg_auth_check(arg, "one", 3, &p, NULL) < 0 || !sg_streq(p->tenant, "t"))
            return arg;
        sg_principal_unref(p);
    }
    return NULL;
}

Test(auth, replaced_while_used)
{
    struct sg_token_config list = {.name = "a", .tenant = "t", .sha256 = hex[0], .backends = backends};
    pthread_t t[2];
    void *failed;
    cr_assert_eq(sg_auth_new(&list, 1, &auth, &err), 0);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, hammer, auth), 0);
    for (int i = 0; i < 2000; i++)
        cr_assert_eq(sg_auth_replace(auth, &list, 1, &err), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &failed);
        cr_assert_null(failed);
    }
}
