/* Blackbox pools: placeholders, and the service of a slot from its start to its end. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/local_bwrap/world.h"

#define PORT 8080
/* Answers every connection with 200 until the file /tmp/sick is there; ends when /tmp/end is. */
#define SERVICE                                                                                              \
    "$| = 1; use Socket; socket(S, PF_INET, SOCK_STREAM, 0) or die; setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1);"  \
    "bind(S, sockaddr_in($ARGV[0], INADDR_LOOPBACK)) or die; listen(S, 50) or die; print \"up $ARGV[1]\\n\";"    \
    "while (accept(C, S)) { sysread(C, $_, 4096); exit 9 if -e '/tmp/end';"                                  \
    " syswrite(C, -e '/tmp/sick' ? \"HTTP/1.1 500 No\\r\\n\\r\\n\" : \"HTTP/1.1 200 OK\\r\\n\\r\\n\"); close C }"

static const char *const good_service[] = {"perl", "-e", SERVICE, "{port}", "{slot}", NULL};

static struct sg_local_pool_config service_pool(unsigned n, const char *const *command)
{
    struct sg_local_pool_config c = world_pool(n);
    c.mode = SG_POOL_BLACKBOX;
    c.service_command = command;
    c.service_port = PORT;
    c.service_health_path = "/";
    c.service_start_ms = CALL_MS;
    return c;
}

Test(local_service, placeholders)
{
    static const struct {
        const char *text;
        const char *becomes; /* NULL: refused */
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"{port}", "65535"},
        {"--port={port},{slot}", "--port=65535,pool-3"},
        {"{work} {home} {tmp} {runtime}", "/workspace /home/sandbox /tmp /run"},
        {"{{port}", "{port}"},
        {"{{port}}", "{port}}"},
        {"${port}", "${port}"},
        {"$ {port}", "$ 65535"},
        {"{{{port}}}", "{{port}}}"},
        {"{}", "{}"},
        {"{ port}", "{ port}"},
        {"{port", "{port"},
        {"{PORT} {1} {a-b}", "{PORT} {1} {a-b}"},
        {"awk '{print $1}'", "awk '{print $1}'"},
        {"{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"},
        {"{prot}", NULL},
        {"x{port}{slot_id}", NULL},
        {"{{prot}", "{prot}"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_error err = {0};
        char *text = sg_service_text(cases[i].text, "pool-3", 65535, &err);
        if (cases[i].becomes == NULL) {
            cr_expect_null(text, "%s: %s", cases[i].text, text);
            cr_expect_eq(err.code, SG_INVALID_REQUEST);
        } else {
            cr_expect_str_eq(text, cases[i].becomes, "%s: %s", cases[i].text, text);
        }
        free(text);
    }
}

static bool variants[] = {false, true};
#define VARIANTS (cr_make_param_array(bool, variants, world_is_root() ? 2 : 1))

static struct sg_sandbox *lease(struct world *w, const char *id)
{
    struct sg_sandbox_spec spec = call_spec(id);
    struct sg_error err = {0};
    spec.mode = SG_MODE_BLACKBOX;
    struct sg_sandbox *sb = call_create(w->d, &spec, &err);
    cr_assert_not_null(sb, "%s", err.message);
    return sb;
}

ParameterizedTestParameters(local_service, it_runs_before_the_lease_and_ends_with_it)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_service, it_runs_before_the_lease_and_ends_with_it)
{
    struct world w;
    struct sg_error err = {0};
    const struct sg_local_pool_config c = service_pool(1, good_service);
    world_open(&w, *user, &c, 1);
    for (int i = 0; i < 3; i++) {
        struct sg_hold *hold = NULL;
        struct sg_sandbox *sb = lease(&w, "lse_1");
        int fd = call_dial(sb, PORT, &hold, &err);
        cr_expect_geq(fd, 0, "%s", err.message);
        sg_close(fd);
        sg_hold_unref(hold);
        json_t *m = sg_sandbox_metadata(sb);
        cr_expect_eq(json_integer_value(json_object_get(json_object_get(m, "service"), "port")), PORT);
        cr_expect_str_eq(json_string_value(json_object_get(m, "mode")), "blackbox");
        json_decref(m);
        cr_expect_eq(world_processes(&w, "perl", NULL, 0), 1);
        cr_expect_eq(call_terminate(sb, NULL), 0);
        cr_expect_eq(world_processes(&w, "perl", NULL, 0), 0, "done means that nothing runs");
        sg_sandbox_unref(sb);
    }
    world_close(&w);
    cr_expect_eq(world_groups(&w), 0);
}

/* ---- ends ---- */

struct told {
    struct flag flag;
    char reason[64];
    char message[512];
};

static void lost(void *arg, struct sg_sandbox *sb, const struct sg_error *why)
{
    struct told *t = arg;
    (void)sb;
    (void)snprintf(t->reason, sizeof t->reason, "%s", why->reason);
    (void)snprintf(t->message, sizeof t->message, "%s", why->message);
    flag_raise(&t->flag);
}

Test(local_service, one_that_ends_under_a_lease_loses_it)
{
    struct world w;
    struct told told = {.flag = FLAG_INIT};
    struct sg_hold *hold = NULL;
    struct run late;
    const struct sg_local_pool_config c = service_pool(1, good_service);
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = lease(&w, "lse_1");
    sg_sandbox_on_lost(sb, lost, &told);
    free(call_output(sb, "touch /tmp/end"));
    int fd = call_dial(sb, PORT, &hold, NULL);
    cr_expect_eq(write(fd, "x", 1), 1);
    cr_assert(flag_wait(&told.flag, 1, CALL_MS));
    cr_expect_str_eq(told.reason, "service_ended");
    cr_expect_str_eq(told.message, "the service ended with exit code 9");
    cr_expect_not(call_exec_begin(sb, "true", false, CALL_MS, &late));
    cr_expect_eq(late.err.code, SG_SANDBOX_LOST);
    call_exec_finish(&late);
    cr_expect_eq(world_slot(&w, 0, 0).state, SG_SLOT_LOST);
    sg_close(fd);
    sg_hold_unref(hold);
    call_end(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    cr_expect_eq(world_slot(&w, 0, 0).generation, 2);
    world_close(&w);
}

Test(local_service, a_sick_one_is_left_to_its_lease)
{
    struct world w;
    struct told told = {.flag = FLAG_INIT};
    struct sg_local_pool_config c = service_pool(1, good_service);
    c.health_interval_ms = 20;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = lease(&w, "lse_1");
    sg_sandbox_on_lost(sb, lost, &told);
    free(call_output(sb, "touch /tmp/sick"));
    cr_expect_not(flag_wait(&told.flag, 1, 300), "its lease may have told it to be busy: %s", told.message);
    call_end(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

static void expect_failing(const char *const *command, int64_t start_ms, const char *says)
{
    struct world w;
    struct sg_error err = {0};
    struct sg_local_pool_config c = service_pool(1, command);
    struct sg_sandbox_spec spec = call_spec("lse_1");
    c.service_start_ms = start_ms;
    spec.mode = SG_MODE_BLACKBOX;
    world_open(&w, false, &c, 1);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_FAILED));
    cr_expect_not_null(strstr(world_slot(&w, 0, 0).last_error, says), "%s", world_slot(&w, 0, 0).last_error);
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect(err.code == SG_UNAVAILABLE && strstr(err.message, says) != NULL, "%s", err.message);
    cr_expect_eq(sg_driver_health(w.d, NULL), -1);
    sg_error_clear(&err);
    world_close(&w);
}

Test(local_service, one_that_cannot_start_says_why)
{
    static const char *const ends[] = {"sh", "-c", "echo first; echo 'no licence: {slot}' >&2; exit 5", NULL};
    static const char *const missing[] = {"/no/such/program", NULL};
    static const char *const deaf[] = {"sleep", "1000", NULL};
    expect_failing(ends, CALL_MS, "exit code 5 before it was ready: no licence: default-0");
    expect_failing(missing, CALL_MS, "exit code 127 before it was ready");
    expect_failing(deaf, 100, "port 8080: GET /: nothing listens");
}

/* ---- log ---- */

static char *tail(struct world *w, size_t max, uint64_t *total)
{
    char *text = NULL;
    size_t len = 0;
    struct sg_error err = {0};
    cr_assert_eq(w->d->ops->slots->log(w->d, NULL, "default-0", max, &text, &len, total, &err), 0, "%s", err.message);
    cr_expect(len <= max && strlen(text) == len);
    return text;
}

Test(local_service, the_log_goes_on_over_generations)
{
    struct world w;
    struct sg_error err = {0};
    uint64_t total = 0;
    const struct sg_local_pool_config c = service_pool(1, good_service);
    world_open(&w, false, &c, 1);
    call_end(lease(&w, "lse_1"));
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    char *text = tail(&w, 65536, &total);
    static const char expected[] = "[sandgate] generation 1: the service starts\nup default-0\n"
                                   "[sandgate] generation 2: the service starts\nup default-0\n";
    cr_expect_str_eq(text, expected);
    cr_expect_eq(total, sizeof expected - 1);
    free(text);
    text = tail(&w, 6, &total);
    cr_expect_str_eq(text, "ult-0\n");
    free(text);
    size_t len = 0;
    cr_expect_eq(w.d->ops->slots->log(w.d, NULL, "default-1", 10, &text, &len, &total, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_eq(w.d->ops->slots->log(w.d, "nowhere", "default-0", 10, &text, &len, &total, &err), -1);
    cr_expect_eq(err.code, SG_POOL_NOT_FOUND);
    world_close(&w);
}

Test(local_service, a_pool_without_services_has_no_log)
{
    struct world w;
    struct sg_error err = {0};
    char *text = NULL;
    size_t len = 0;
    uint64_t total = 0;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, false, &c, 1);
    cr_expect_eq(w.d->ops->slots->log(w.d, NULL, "default-0", 10, &text, &len, &total, &err), -1);
    cr_expect_eq(err.code, SG_NOT_SUPPORTED);
    world_close(&w);
}
