/* The facts of all backends, what a token may see of them, and GET /backends. */
#include "support.h"

#include "backends/facts.h"

#define RW_EXEC (SG_CAP_FILE_RW | SG_CAP_EXEC)

Test(backends, the_table_has_every_backend_in_the_default_order)
{
    size_t n = 0;
    for (; sg_precedence_default[n]; n++) {
        struct sg_driver_facts f = sg_facts_at(n, NULL);
        cr_assert_str_eq(f.name, sg_precedence_default[n]);
        cr_assert(sg_backend_name_valid(f.name));
        cr_assert_eq(f.free, sg_free_by_default(f.name), "%s", f.name);
        cr_assert_eq(f.caps & RW_EXEC, RW_EXEC, "%s", f.name);
        cr_assert_eq(f.free, f.credentials == NULL, "%s", f.name);
        for (size_t i = 0; f.credentials && f.credentials[i]; i++)
            cr_assert(sg_credential_name_valid(f.credentials[i]));
    }
    cr_assert_eq(sg_facts_count(), n);
}

Test(backends, settings_decide_some_capabilities)
{
    struct sg_facts_settings s = {.local_bwrap_egress = SG_EGRESS_LOOPBACK, .docker_egress = SG_EGRESS_NONE};
    struct sg_driver_facts f;
    cr_assert(sg_facts_get("local_bwrap", &s, &f) && !(f.caps & SG_CAP_NETWORK));
    cr_assert(sg_facts_get("docker", &s, &f) && !(f.caps & SG_CAP_NETWORK));
    cr_assert(sg_facts_get("modal", &s, &f) && !(f.caps & SG_CAP_PERSISTENT_VOLUMES));
    s = (struct sg_facts_settings){.local_bwrap_egress = SG_EGRESS_RESTRICTED, .docker_egress = SG_EGRESS_OPEN, .modal_volumes = true};
    cr_assert(sg_facts_get("local_bwrap", &s, &f) && (f.caps & SG_CAP_NETWORK));
    cr_assert(sg_facts_get("docker", &s, &f) && (f.caps & SG_CAP_NETWORK));
    cr_assert(sg_facts_get("modal", &s, &f) && (f.caps & SG_CAP_PERSISTENT_VOLUMES));
    cr_assert(!sg_facts_get("nowhere", &s, &f));
}

Test(backends, the_value_shows_names_and_never_values)
{
    const char *const needs[] = {"MODAL_TOKEN_SECRET", "MODAL_TOKEN_ID", NULL};
    const char *const has[] = {"MODAL_TOKEN_ID", NULL};
    struct sg_names held;
    struct sg_error sick = {0};
    struct sg_backend_view v[] = {
        {.facts = {.name = "local_bwrap", .caps = RW_EXEC, .free = true}, .tty = true, .built = true, .registered = true},
        {.facts = {.name = "modal", .caps = RW_EXEC}, .built = true, .registered = true, .health = &sick},
        {.facts = {.name = "e2b", .caps = RW_EXEC}},
    };
    sg_error_set(&sick, SG_UNAVAILABLE, "no answer");
    cr_assert_eq(sg_names_set(&held, has, NULL), 0);
    cr_assert_eq(sg_names_set(&v[1].facts.credentials, needs, NULL), 0);
    sg_cleanup(sg_json_p) json_t *value = sg_backends_json(v, 3, &held);
    sg_cleanup(sg_json_p) json_t *wanted = test_json_q(
        "[{'name':'local_bwrap','capabilities':['exec','file_rw'],'tty':true,'free':true,'credentials':[],'"
        "built':true,"
        "'registered':true,'healthy':true,'detail':null},"
        "{'name':'modal','capabilities':['exec','file_rw'],'tty':false,'free':false,'credentials':[{'name':'MODAL_TOKEN_"
        "ID',"
        "'held':true},{'name':'MODAL_TOKEN_SECRET','held':false}],'built':true,'registered':true,'healthy':"
        "false,"
        "'detail':'no answer'},"
        "{'name':'e2b','capabilities':['exec','file_rw'],'tty':false,'free':false,'credentials':[],'built':false,"
        "'registered':false,'healthy':null,'detail':null}]");
    sg_cleanup(sg_free_p) char *text = sg_json_dump(value, NULL);
    cr_assert(json_equal(value, wanted), "%s", text);
    sg_names_finish(&held);
    sg_names_finish(&v[1].facts.credentials);
}

/* A server with three backends, two credentials and five dollars. */
struct server {
    struct sg_candidates registered;
    struct sg_environment env;
};

static struct server make_server(void)
{
    static const char *const e2b[] = {"E2B_API_KEY", NULL};
    static const char *const modal[] = {"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", NULL};
    static const char *const held[] = {"MODAL_TOKEN_ID", "E2B_API_KEY", "GH_TOKEN", NULL};
    struct server s = {.env = {.budget_set = true, .budget_microusd = 5000000}};
    cr_assert_eq(sg_candidates_add(&s.registered, "local_bwrap", RW_EXEC, true, NULL, NULL), 0);
    cr_assert_eq(sg_candidates_add(&s.registered, "e2b", RW_EXEC, false, e2b, NULL), 0);
    cr_assert_eq(sg_candidates_add(&s.registered, "modal", RW_EXEC, false, modal, NULL), 0);
    cr_assert_eq(sg_names_set(&s.env.available_credentials, held, NULL), 0);
    return s;
}

static void expect_view(const struct server *s, const struct sg_principal *who, size_t backends,
                        size_t credentials, int64_t budget)
{
    struct sg_candidates c;
    struct sg_environment e;
    cr_assert_eq(sg_selection_cut(who, &s->registered, &s->env, &c, &e, NULL), 0);
    cr_assert_eq(c.n, backends);
    cr_assert_eq(e.available_credentials.n, credentials);
    cr_assert(e.budget_set);
    cr_assert_eq(e.budget_microusd, budget);
    sg_candidates_finish(&c);
    sg_environment_finish(&e);
}

Test(backends, a_token_sees_what_it_may_use)
{
    static const char *const only_e2b[] = {"e2b", "nowhere", NULL};
    struct server s = make_server();
    expect_view(&s, &(struct sg_principal){.allow_paid = true}, 3, 2, 5000000);
    expect_view(&s, &(struct sg_principal){.allow_paid = false}, 1, 0, 5000000);
    expect_view(&s, &(struct sg_principal){.allow_paid = true, .backends = only_e2b}, 1, 1, 5000000);
    expect_view(&s, &(struct sg_principal){.backends = only_e2b}, 0, 0, 5000000);
    expect_view(&s, &(struct sg_principal){.allow_paid = true, .budget_set = true, .budget_microusd = 7}, 3,
                2, 7);
    expect_view(&s,
                &(struct sg_principal){.allow_paid = true, .budget_set = true, .budget_microusd = 9000000}, 3,
                2, 5000000);
    sg_candidates_finish(&s.registered);
    sg_environment_finish(&s.env);
}
