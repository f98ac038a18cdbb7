#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "config.h"

#define SHA_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SHA_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static char file[64];

static void setup(void)
{
    (void)snprintf(file, sizeof file, "/tmp/sg-test-config-XXXXXX");
    int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    close(fd);
    unsetenv("SANDGATE_CONFIG");
}

static void teardown(void)
{
    unlink(file);
}

TestSuite(config, .init = setup, .fini = teardown);

static struct sg_config *load(const char *yaml, struct sg_error *err)
{
    struct sg_config_args args = {.file = file};
    struct sg_config *c = NULL;
    cr_assert_eq(sg_write_file(file, yaml, strlen(yaml), 0600, NULL), 0);
    int r = sg_config_load(&args, &c, err);
    cr_assert_eq(r == 0, c != NULL);
    return c;
}

static struct sg_config *good(const char *yaml)
{
    struct sg_error err = {0};
    struct sg_config *c = load(yaml, &err);
    cr_assert_not_null(c, "%s", err.message);
    return c;
}

Test(config, defaults)
{
    struct sg_config *c = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_config_load(NULL, &c, &err), 0, "%s", err.message);
    cr_assert_str_eq(c->server.listen, "127.0.0.1:8080");
    cr_assert_not_null(c->server.state_dir);
    cr_assert_str_eq(c->backends.enabled[0], "local_bwrap");
    cr_assert_eq(sg_config_count(c->backends.enabled), 1);
    cr_assert_eq(c->local_bwrap.pool.size, 4);
    cr_assert_eq(c->local_bwrap.pool.mode, SG_POOL_COMMAND_ONLY);
    cr_assert_eq(c->local_bwrap.pool.egress, SG_EGRESS_NONE);
    cr_assert_str_eq(c->local_bwrap.pool.name, "default");
    cr_assert_eq(c->uid_base, 200000);
    cr_assert_eq(c->leases.retention_ms, 24 * 3600 * 1000);
    cr_assert_eq(c->auth.n, 0);
    cr_assert(json_is_array(c->pools) && json_array_size(c->pools) == 0);
    cr_assert_null(sg_config_free(c));
    cr_assert_null(sg_config_free(NULL));
    c = good("");
    sg_config_free(c);
    c = good("server:\nlog: ~\n");
    sg_config_free(c);
}

Test(config, every_kind_of_value)
{
    setenv("SG_TEST_REMOTE", "tok", 1);
    struct sg_config *c = good(
        "server: {listen: '[::1]:9', state_dir: /s, drain_timeout: 1.5s, max_body: 2MiB, workers_max: 7}\n"
        "backends:\n  enabled: [fake, local_bwrap]\n"
        "auth:\n  tokens:\n"
        "    - {name: a, sha256: " SHA_A ", tenant: t1, role: admin}\n"
        "    - name: b\n      sha256: " SHA_B "\n      tenant: t2\n      max_leases: 3\n      backends: [docker]\n"
        "      budget_usd: 1.25\n"
        "leases: {timeout_default: 2m, idle_timeout: 250ms}\n"
        "local_bwrap: {size: 2, memory_max: 64KiB, cpu_max: 1.5, disk: dir, egress: loopback, service_command: [a, 'b c']}\n"
        "local_pools:\n  - {name: big, size: 3, memory_max: 0}\n"
        "worktree: {repos: {main: /srv/main}}\n"
        "remotes: [{name: other, url: 'https://x.example/', token: SG_TEST_REMOTE, free: true}]\n"
        "pools: [{name: p, template: {env: {A: '1'}, timeout_seconds: 5}, exposed_fields: [], max_concurrency: null}]\n"
        "prices: {e2b: 0.05, other: 1}\n"
        "log: {level: debug}\n");
    cr_assert_str_eq(c->server.listen, "[::1]:9");
    cr_assert_eq(c->server.drain_timeout_ms, 1500);
    cr_assert_eq(c->server.max_body, 2 << 20);
    cr_assert_eq(c->server.workers_max, 7);
    cr_assert_eq(c->server.daemons, 1);
    cr_assert_eq(c->auth.n, 2);
    cr_assert_eq(c->auth.tokens[0].role, SG_ROLE_ADMIN);
    cr_assert_not(c->auth.tokens[0].budget_set);
    cr_assert_null(c->auth.tokens[0].backends);
    cr_assert(c->auth.tokens[1].budget_set && c->auth.tokens[1].budget_microusd == 1250000);
    cr_assert_str_eq(c->auth.tokens[1].backends[0], "docker");
    cr_assert_eq(c->leases.timeout_default_ms, 120000);
    cr_assert_eq(c->leases.idle_timeout_ms, 250);
    cr_assert_eq(c->local_bwrap.pool.memory_max, 65536);
    cr_assert_eq(c->local_bwrap.pool.cpu_milli, 1500);
    cr_assert_str_eq(c->local_bwrap.pool.service_command[1], "b c");
    cr_assert_str_eq(c->backends.enabled[1], "local_bwrap");
    size_t n = 0;
    struct sg_local_pool_config *pools = sg_config_local_pools(c, &n);
    cr_assert(n == 2 && pools[0].size == 2 && pools[1].size == 3 && pools[1].memory_max == 0);
    cr_assert_str_eq(pools[1].name, "big");
    free(pools);
    cr_assert_str_eq(c->worktree.repos[0].value, "/srv/main");
    cr_assert_str_eq(sg_secret_expose(c->remotes[0].token, NULL), "tok");
    cr_assert_eq(c->prices[0].microusd, 50000);
    cr_assert_eq(c->log.level, SG_LOG_DEBUG);
    const json_t *t = json_object_get(json_array_get(c->pools, 0), "template");
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(t, "env"), "A")), "1");
    cr_assert_eq(json_integer_value(json_object_get(t, "timeout_seconds")), 5);
    sg_config_free(c);
}

Test(config, json_is_yaml_too)
{
    struct sg_config *c = good("{\"server\": {\"listen\": \"127.0.0.1:1\"}, \"local_bwrap\": {\"size\": 1, \"require_limits\": true}}");
    cr_assert_str_eq(c->server.listen, "127.0.0.1:1");
    cr_assert(c->local_bwrap.pool.require_limits);
    sg_config_free(c);
}

Test(config, mistakes_name_file_line_and_key)
{
    static const struct {
        const char *yaml;
        const char *where; /* after the file's name */
        const char *key;
    } cases[] = {
        {"nope: 1\n", ":1: nope: unknown key", "nope"},
        {"server:\n  listen: 127.0.0.1:1\n  lisen: x\n", ":3: server.lisen: unknown key", "server.lisen"},
        {"server: 5\n", ":1: server: a map is expected", "server"},
        {"server:\n\n  workers_max: 0\n", ":3: server.workers_max: must be from 1 to 64", "server.workers_max"},
        {"server:\n  workers_max: 1e3\n", ":2: server.workers_max: a whole number", "server.workers_max"},
        {"server:\n  workers_max: [1]\n", ":2: server.workers_max: a single value", "server.workers_max"},
        {"server:\n  drain_timeout: 5d\n", ":2: server.drain_timeout: a duration", "server.drain_timeout"},
        {"server:\n  max_body: 1MB\n", ":2: server.max_body: a size", "server.max_body"},
        {"server:\n  listen: example.org:80\n", ":2: server.listen: HOST:PORT", "server.listen"},
        {"server:\n  public_url: ftp://x\n", ":2: server.public_url: an http", "server.public_url"},
        {"server:\n  public_domain: -x.org\n", ":2: server.public_domain: a domain", "server.public_domain"},
        {"server:\n  listen: 127.0.0.1:1\n  listen: 127.0.0.1:2\n", ":3: listen: given twice", "listen"},
        {"local_bwrap:\n  mode: commands\n", ":2: local_bwrap.mode: must be one of command_only, blackbox", "local_bwrap.mode"},
        {"local_bwrap:\n  require_limits: yes\n", ":2: local_bwrap.require_limits: true or false", "local_bwrap.require_limits"},
        {"local_bwrap:\n  archive_dirs:\n    - home\n    - etc\n", ":4: local_bwrap.archive_dirs: must be one of", "local_bwrap.archive_dirs"},
        {"local_bwrap:\n  service_command: sh -c x\n", ":2: local_bwrap.service_command: a list", "local_bwrap.service_command"},
        {"auth:\n  tokens:\n    - name: a\n      tenant: t\n", ":3: auth.tokens[0].sha256: is missing", "auth.tokens[0].sha256"},
        {"auth:\n  tokens:\n    - name: a\n      tenant: t\n      sha256: " SHA_A "\n      rol: admin\n", ":6: auth.tokens[0].rol: unknown key", "auth.tokens[0].rol"},
        {"auth:\n  tokens:\n    - {name: a, tenant: t, sha256: abc}\n", ":3: auth.tokens[0].sha256: the SHA-256", "auth.tokens[0].sha256"},
        {"remotes:\n - {name: r, url: http://x, token: SG_TEST_NOT_SET}\n", ":2: remotes[0].token: the variable", "remotes[0].token"},
        {"prices:\n  e2b: cheap\n", ":2: prices: e2b: an amount", "prices"},
        {"pools: {}\n", ":1: pools: a list", "pools"},
        {"server:\n\tlisten: x\n", ":2: ", ""},
        {"- a\n", ":1: a map of sections", ""},
        {"a: &a [*a]\n", ":1: ", NULL},
        {"log: {level: info}\n---\nlog: {}\n", ": more than one document", ""},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_error err = {0};
        struct sg_config *c = load(cases[i].yaml, &err);
        cr_expect_null(c, "%s", cases[i].yaml);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
        cr_expect(strncmp(err.message, file, strlen(file)) == 0 && strstr(err.message, cases[i].where) != NULL, "%s: %s",
                  cases[i].yaml, err.message);
        cr_expect(cases[i].key == NULL || sg_streq(err.field, cases[i].key), "%s: field %s", cases[i].yaml, err.field);
        sg_config_free(c);
    }
}

Test(config, aliases_cannot_unfold_without_end)
{
    static const char bomb[] = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                               "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    struct sg_error err = {0};
    cr_assert_null(load(bomb, &err));
    cr_assert_not_null(strstr(err.message, "too large"), "%s", err.message);
}

Test(config, checks_between_keys)
{
    static const struct {
        const char *yaml;
        const char *key;
    } cases[] = {
        {"server: {listen: '0.0.0.0:80'}", "server.listen"},
        {"server: {listen: ':80'}", "server.listen"},
        {"server: {listen: '[::]:80'}", "server.listen"},
        {"server: {public_url: 'https://api.example.org', public_domain: api.example.org}", "server.public_domain"},
        {"server: {public_url: 'https://api.example.org:444/x', public_domain: Example.ORG}", "server.public_domain"},
        {"leases: {timeout_default: 2h, timeout_max: 1h}", "leases.timeout_default"},
        {"exec: {timeout_default: 2h, timeout_max: 1h}", "exec.timeout_default"},
        {"local_pools: [{name: a}, {name: a}]", "local_pools"},
        {"local_pools: [{name: default}]", "local_pools"},
        {"local_pools: [{name: b, mode: blackbox}]", "local_pools"},
        {"local_bwrap: {mode: blackbox, service_port: 80}", "local_bwrap.mode"},
        {"local_bwrap: {mode: blackbox, service_command: [x]}", "local_bwrap.mode"},
        {"local_bwrap: {mode: blackbox, service_port: 80, service_command: ['{prot}']}", "local_bwrap.service_command"},
        {"local_bwrap: {mode: blackbox, service_port: 80, service_command: [x], service_health_path: '/a b'}", "local_bwrap.service_health_path"},
        {"auth: {tokens: [{name: a, tenant: t, sha256: " SHA_A "}, {name: a, tenant: t, sha256: " SHA_B "}]}", "auth.tokens"},
        {"auth: {tokens: [{name: a, tenant: t, sha256: " SHA_A "}, {name: b, tenant: t, sha256: " SHA_A "}]}", "auth.tokens"},
        {"remotes: [{name: docker, url: 'http://x'}]", "remotes"},
        {"remotes: [{name: x, url: 'http://x'}, {name: x, url: 'http://y'}]", "remotes"},
        {"backends: {enabled: [local_bwrap, local_bwrap]}", "backends.enabled"},
        {"backends: {enabled: [moon]}", "backends.enabled"},
        {"backends: {enabled: [vercel]}", "backends.enabled"},
        {"local_bwrap: {egress: restricted}", "local_bwrap.egress"},
        {"prices: {moon: 1}", "prices"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_error err = {0};
        struct sg_config *c = load(cases[i].yaml, &err);
        cr_expect_null(c, "%s", cases[i].yaml);
        cr_expect_str_eq(err.field, cases[i].key, "%s: %s", cases[i].yaml, err.message);
        cr_expect(strncmp(err.message, file, strlen(file)) == 0, "names the file: %s", err.message);
        sg_config_free(c);
    }
    sg_config_free(good("server: {public_url: 'https://api.example.org', public_domain: sandboxes.example.org}"));
    sg_config_free(good("server: {public_url: 'https://myexample.org', public_domain: example.org}"));
    sg_config_free(good("server: {listen: '0.0.0.0:80'}\nauth: {tokens: [{name: a, tenant: t, sha256: " SHA_A "}]}"));
    cr_assert(sg_config_is_loopback("127.8.0.1:1") && sg_config_is_loopback("localhost:1") && sg_config_is_loopback("[::1]:1"));
    cr_assert_not(sg_config_is_loopback("127.0.0.1.example.org:1"));
}

Test(config, variables_win_over_the_file_and_arguments_over_both)
{
    setenv("SANDGATE_SERVER_LISTEN", "127.0.0.1:2", 1);
    setenv("SANDGATE_SERVER_STATE_DIR", "/from/variable", 1);
    setenv("SANDGATE_BACKENDS_ENABLED", "local_bwrap, fake", 1);
    setenv("SANDGATE_LOCAL_BWRAP_SIZE", "", 1);
    setenv("SANDGATE_LOCAL_POOLS", "[{\"name\":\"x\",\"size\":9}]", 1);
    setenv("SANDGATE_PRICES", "{\"e2b\": 2}", 1);
    setenv("SANDGATE_PORT", "tcp://10.0.0.1:80", 1); /* what Kubernetes sets for a service of that name */
    setenv("SANDGATE_SERVICE_HOST", "10.0.0.1", 1);
    static const char yaml[] = "server: {listen: '127.0.0.1:1', state_dir: /from/file}\nlocal_bwrap: {size: 8}\nlocal_pools: [{name: y}]\n";
    cr_assert_eq(sg_write_file(file, yaml, strlen(yaml), 0600, NULL), 0);
    struct sg_config_args args = {.file = file, .state_dir = "/from/argument"};
    struct sg_config *c = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_config_load(&args, &c, &err), 0, "%s", err.message);
    cr_assert_str_eq(c->server.listen, "127.0.0.1:2");
    cr_assert_str_eq(c->server.state_dir, "/from/argument");
    cr_assert_str_eq(c->backends.enabled[1], "fake");
    cr_assert_eq(c->local_bwrap.pool.size, 8, "an empty variable is none");
    cr_assert(c->n_local_pools == 1 && c->local_pools[0].pool.size == 9);
    cr_assert_eq(c->prices[0].microusd, 2000000);

    json_t *rows = sg_config_explain(c);
    bool seen = false;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        if (sg_streq(json_string_value(json_object_get(row, "key")), "local_bwrap.size")) {
            char where[96];
            (void)snprintf(where, sizeof where, "%s:2", file);
            cr_assert_str_eq(json_string_value(json_object_get(row, "origin")), where);
            cr_assert_str_eq(json_string_value(json_object_get(row, "variable")), "SANDGATE_LOCAL_BWRAP_SIZE");
            cr_assert_eq(json_integer_value(json_object_get(row, "value")), 8);
            seen = true;
        }
    }
    cr_assert(seen);
    json_decref(rows);
    sg_config_free(c);
}

Test(config, mistakes_in_variables_name_the_variable)
{
    static const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"SANDGATE_SERVER_LISTNE", "x", "SANDGATE_SERVER_LISTNE: there is no such setting"},
        {"SANDGATE_SERVER_DAEMONS", "many", "SANDGATE_SERVER_DAEMONS: server.daemons: a whole number"},
        {"SANDGATE_AUTH_TOKENS", "[{\"name\":\"a\"}]", "auth.tokens[0].sha256: is missing"},
        {"SANDGATE_AUTH_TOKENS", "name", "auth.tokens: a list"},
        {"SANDGATE_REMOTES", "[{", "SANDGATE_REMOTES:"},
        {"SANDGATE_SERVER_LISTEN", "0.0.0.0:1", "SANDGATE_SERVER_LISTEN: server.listen: 0.0.0.0:1 is not a loopback"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_error err = {0};
        setenv(cases[i].name, cases[i].value, 1);
        cr_expect_null(load("", &err), "%s", cases[i].name);
        cr_expect_not_null(strstr(err.message, cases[i].says), "%s", err.message);
        unsetenv(cases[i].name);
    }
}

Test(config, secrets_and_hashes_are_not_shown)
{
    setenv("SG_TEST_REMOTE", "hush-hush", 1);
    struct sg_config *c = good("auth: {tokens: [{name: a, tenant: t, sha256: " SHA_A "}]}\n"
                               "remotes: [{name: r, url: 'http://x', token: SG_TEST_REMOTE}]");
    json_t *rows = sg_config_explain(c);
    char *text = json_dumps(rows, 0);
    cr_assert_null(strstr(text, "hush"));
    cr_assert_null(strstr(text, "aaaaaaaa"));
    cr_assert_not_null(strstr(text, "\"name\": \"r\""));
    free(text);
    json_decref(rows);
    sg_config_free(c);
}

Test(config, the_table_has_every_key_once)
{
    char *table = sg_config_table();
    cr_assert_not_null(strstr(table, "| `local_bwrap.archive_max_bytes` | size | `256MiB` |"));
    cr_assert_not_null(strstr(table, "| `remotes` |"));
    const char *first = strstr(table, "`server.listen`");
    cr_assert_not_null(first);
    cr_assert_null(strstr(first + 1, "`server.listen`"));
    free(table);
}

Test(config, the_readme_has_the_table)
{
    char *table = sg_config_table();
    char *readme = NULL;
    size_t len = 0;
    cr_assert_eq(sg_read_file(README, 1 << 20, &readme, &len, NULL), 0);
    cr_assert_not_null(strstr(readme, table), "run tests/lint/readme.py build/sandgate");
    free(table);
    free(readme);
}

Test(config, a_missing_file_is_an_error)
{
    struct sg_config_args args = {.file = "/nonexistent/sandgate.yaml"};
    struct sg_config *c = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_config_load(&args, &c, &err), -1);
    cr_assert_not_null(strstr(err.message, "/nonexistent/sandgate.yaml"));
    setenv("SANDGATE_CONFIG", "/nonexistent/other.yaml", 1);
    cr_assert_eq(sg_config_load(NULL, &c, &err), -1);
    cr_assert_not_null(strstr(err.message, "other.yaml"));
}
