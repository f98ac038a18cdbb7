/* Subcommands that ask a running server. */
#include <stdio.h>

#include "base/hash.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

static bool want_json(const struct sg_cli_args *a)
{
    return sg_cli_value(a, "json") != NULL;
}

/* A column of a table of items. */
struct column {
    const char *heading;
    const char *member;
};

static int print_items(const json_t *items, const struct column *columns, size_t n)
{
    struct sg_cli_table t = {.columns = n};
    size_t i;
    json_t *item;
    for (size_t c = 0; c < n; c++) {
        sg_cli_table_add(&t, columns[c].heading);
    }
    json_array_foreach(items, i, item) {
        for (size_t c = 0; c < n; c++) {
            sg_cleanup(sg_free_p) char *text = sg_cli_text(item, columns[c].member);
            sg_cli_table_add(&t, text);
        }
    }
    return sg_cli_table_print(&t);
}

/* One line per member. */
static int print_object(const json_t *v)
{
    struct sg_cli_table t = {.columns = 2};
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        sg_cleanup(sg_free_p) char *text = sg_cli_text(v, key);
        sg_cli_table_add(&t, key);
        sg_cli_table_add(&t, text);
    }
    return sg_cli_table_print(&t);
}

static int list(const struct sg_cli_args *a, const char *path, const struct column *columns, size_t n)
{
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *items = NULL;
    if (sg_cli_list(a, path, &items, &err) < 0) {
        return sg_cli_fail(&err);
    }
    return want_json(a) ? sg_cli_print_json(items) : print_items(items, columns, n);
}

/* ---- status ---- */

static int get_into(const struct sg_cli_args *a, const char *path, json_t *into, const char *member, int *ret_status,
                    struct sg_error *err)
{
    json_t *v = NULL;
    if (sg_cli_request(a, "GET", path, ret_status, &v, err) < 0) {
        return -1;
    }
    return json_object_set_new(into, member, v != NULL ? v : json_null());
}

static int print_status(const json_t *all, bool is_ready)
{
    static const struct column columns[] = {{"BACKEND", "name"}, {"REGISTERED", "registered"}, {"HEALTHY", "healthy"},
                                            {"FREE", "free"},    {"DETAIL", "detail"}};
    sg_cleanup(sg_free_p) char *version = sg_cli_text(json_object_get(all, "version"), "version");
    sg_cleanup(sg_free_p) char *detail = sg_cli_text(json_object_get(all, "ready"), "detail");
    const json_t *items = json_object_get(json_object_get(all, "backends"), "items");
    (void)printf("sandgate %s: %s%s%s\n", version, is_ready ? "ready" : "not ready", *detail != '\0' ? ": " : "", detail);
    if (items == NULL) { /* being ready is for everybody to know, backends are not */
        sg_cleanup(sg_free_p) char *why = sg_cli_text(json_object_get(all, "backends"), "detail");
        (void)printf("backends: %s (SANDGATE_TOKEN)\n", why);
        return SG_CLI_OK;
    }
    return print_items(items, columns, SG_COUNT_OF(columns));
}

int sg_cli_status(const struct sg_cli_args *a)
{
    struct sg_error err = {0};
    int version = 0, ready = 0, backends = 0;
    sg_cleanup(sg_json_p) json_t *all = json_object();
    if (get_into(a, "/version", all, "version", &version, &err) < 0 || get_into(a, "/readyz", all, "ready", &ready, &err) < 0 ||
        get_into(a, "/backends", all, "backends", &backends, &err) < 0) {
        return sg_cli_fail(&err);
    }
    int r = want_json(a) ? sg_cli_print_json(all) : print_status(all, ready < 400);
    return r != SG_CLI_OK ? r : ready < 400 ? SG_CLI_OK : SG_CLI_FAILED;
}

/* ---- slots ---- */

/* Whatever answers with one local pool. */
static int slots_of(const struct sg_cli_args *a, const char *method, const char *path)
{
    static const struct column columns[] = {{"SLOT", "slot"},   {"STATE", "state"},   {"DRAINING", "draining"}, {"GENERATION", "generation"},
                                            {"LEASE", "lease"}, {"UPTIME", "uptime"}, {"LAST ERROR", "last_error"}};
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *v = NULL;
    if (sg_cli_call(a, method, path, &v, &err) < 0) {
        return sg_cli_fail(&err);
    }
    return want_json(a) ? sg_cli_print_json(v) : print_items(json_object_get(v, "items"), columns, SG_COUNT_OF(columns));
}

int sg_cli_slots_status(const struct sg_cli_args *a)
{
    static const struct column columns[] = {{"POOL", "pool"},     {"MODE", "mode"},       {"SIZE", "size"},        {"READY", "ready"},
                                            {"LEASED", "leased"}, {"WAITERS", "waiters"}, {"DRAINING", "draining"}};
    if (a->n == 0) {
        return list(a, "/slots", columns, SG_COUNT_OF(columns));
    }
    sg_cleanup(sg_free_p) char *pool = sg_cli_quote(a->args[0]);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/slots/%s", pool);
    return slots_of(a, "GET", path);
}

int sg_cli_slots_change(const struct sg_cli_args *a)
{
    const char *slot = sg_cli_value(a, "slot");
    const char *verb = strchr(a->command->name, ' ') + 1;
    sg_cleanup(sg_free_p) char *pool = sg_cli_quote(a->args[0]);
    sg_cleanup(sg_free_p) char *quoted = sg_cli_quote(slot != NULL ? slot : "");
    const char *reset = sg_cli_value(a, "hard") == NULL ? "" : slot != NULL ? "&reset=hard" : "?reset=hard";
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/slots/%s/%s%s%s%s", pool, verb, slot != NULL ? "?slot=" : "", quoted, reset);
    return slots_of(a, "POST", path);
}

/* It is a sandbox's: nothing but text and line breaks goes to a terminal. */
static int print_log(const json_t *v, struct sg_error *err)
{
    sg_cleanup(sg_free_p) uint8_t *bytes = NULL;
    const char *data = json_string_value(json_object_get(v, "data"));
    data = data != NULL ? data : "";
    bool binary = sg_streq(json_string_value(json_object_get(v, "encoding")), "base64");
    size_t len = strlen(data);
    if (binary && sg_base64_decode(data, len, (size_t)1 << 20, &bytes, &len, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = binary ? bytes[i] : (unsigned char)data[i];
        bool plain = (c >= 0x20 && c != 0x7f && (c < 0x80 || !binary)) || c == '\n' || c == '\t';
        (void)putchar(plain ? c : '?');
    }
    return 0;
}

int sg_cli_slots_log(const struct sg_cli_args *a)
{
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *v = NULL;
    const char *bytes = sg_cli_value(a, "bytes");
    sg_cleanup(sg_free_p) char *pool = sg_cli_quote(a->args[0]);
    sg_cleanup(sg_free_p) char *slot = sg_cli_quote(a->args[1]);
    sg_cleanup(sg_free_p) char *quoted = sg_cli_quote(bytes != NULL ? bytes : "16384");
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/slots/%s/%s/log?bytes=%s", pool, slot, quoted);
    if (sg_cli_call(a, "GET", path, &v, &err) < 0) {
        return sg_cli_fail(&err);
    }
    if (want_json(a)) {
        return sg_cli_print_json(v);
    }
    return print_log(v, &err) < 0 ? sg_cli_fail(&err) : SG_CLI_OK;
}

/* ---- pools and leases ---- */

/* One thing by its id or name. */
static int one(const struct sg_cli_args *a, const char *method, const char *collection)
{
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *v = NULL;
    sg_cleanup(sg_free_p) char *id = sg_cli_quote(a->args[0]);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/%s", collection, id);
    if (sg_cli_call(a, method, path, &v, &err) < 0) {
        return sg_cli_fail(&err);
    }
    if (v == NULL) {
        return SG_CLI_OK;
    }
    return want_json(a) || !json_is_object(v) ? sg_cli_print_json(v) : print_object(v);
}

int sg_cli_pool_ls(const struct sg_cli_args *a)
{
    static const struct column columns[] = {{"NAME", "name"}, {"BACKENDS", "backend_allowlist"}, {"EGRESS", "network_egress_class"},
                                            {"MAX CONCURRENCY", "max_concurrency"}, {"HASH", "pool_hash"}};
    return list(a, "/pools", columns, SG_COUNT_OF(columns));
}

int sg_cli_pool_show(const struct sg_cli_args *a)
{
    return one(a, "GET", "/pools");
}

int sg_cli_lease_show(const struct sg_cli_args *a)
{
    return one(a, "GET", "/leases");
}

int sg_cli_lease_rm(const struct sg_cli_args *a)
{
    return one(a, "DELETE", "/leases");
}

int sg_cli_lease_ls(const struct sg_cli_args *a)
{
    static const struct column columns[] = {{"ID", "id"}, {"STATE", "state"}, {"PROVIDER", "provider"},
                                            {"TRAJECTORY", "trajectory_id"}, {"CREATED", "created_at"}, {"EXPIRES", "expires_at"}};
    static const char *const filters[] = {"state", "provider", "tenant"};
    sg_cleanup(sg_free_p) char *path = sg_xstrdup("/leases?limit=100");
    for (size_t i = 0; i < SG_COUNT_OF(filters); i++) {
        const char *value = sg_cli_value(a, filters[i]);
        if (value != NULL) {
            sg_cleanup(sg_free_p) char *quoted = sg_cli_quote(value);
            char *longer = sg_xasprintf("%s&%s=%s", path, filters[i], quoted);
            free(path);
            path = longer;
        }
    }
    return list(a, path, columns, SG_COUNT_OF(columns));
}
