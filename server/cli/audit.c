/* sandgate audit verify: is the audit log what the server wrote? Exit code 1 when it is not. */
#include <stdio.h>

#include "base/json.h"
#include "cli/commands.h"
#include "config.h"
#include "lease/store.h"

static void config_p(struct sg_config **c)
{
    *c = sg_config_free(*c);
}

static json_t *report_json(const struct sg_audit_report *r)
{
    return json_pack("{s:b, s:I, s:I, s:o, s:s*, s:s*}", "ok", r->ok, "records", (json_int_t)r->records, "dropped",
                     (json_int_t)r->dropped, "at_seq",
                     r->ok ? json_null() : json_integer(r->at_seq), "problem", r->ok ? NULL : r->problem,
                     "detail", r->ok ? NULL : r->detail);
}

int sg_cli_audit_verify(const struct sg_cli_args *a)
{
    struct sg_error err = {0};
    struct sg_audit_report r;
    struct sg_config_args args = {.file = sg_cli_value(a, "config"),
                                  .state_dir = sg_cli_value(a, "state-dir")};
    sg_cleanup(config_p) struct sg_config *c = NULL;
    if (sg_config_load(&args, &c, &err) < 0 ||
        sg_audit_verify(c->server.state_dir, c->keys.audit_file, &r, &err) < 0) {
        return sg_cli_fail(&err);
    }
    if (sg_cli_value(a, "json") != NULL) {
        sg_cleanup(sg_json_p) json_t *v = report_json(&r);
        int rc = sg_cli_print_json(v);
        return r.ok ? rc : SG_CLI_FAILED;
    }
    if (r.ok) {
        (void)printf("the audit log is sound: %lld records", (long long)r.records);
        if (r.dropped > 0) {
            (void)printf(", after %lld that were kept for their time", (long long)r.dropped);
        }
        (void)printf("\n");
        return SG_CLI_OK;
    }
    (void)printf("the audit log is damaged at record %lld (%s): %s\n%lld records before it are sound\n",
                 (long long)r.at_seq, r.problem, r.detail, (long long)r.records);
    return SG_CLI_FAILED;
}
