#include "backends/egress/lease.h"

#include "backends/egress/proxy.h"

int sg_egress_settings_check(enum sg_egress has, const char *const *list, struct sg_error *err)
{
    struct sg_egress_rules *rules = NULL;
    if (sg_egress_rules_new(list, &rules, err) < 0) {
        return -1;
    }
    bool empty = sg_egress_rules_empty(rules);
    sg_egress_rules_free(rules);
    return empty && has == SG_EGRESS_RESTRICTED ? sg_error_field(err, SG_INVALID_REQUEST, "egress", "restricted needs egress_allow") : 0;
}

enum sg_egress sg_egress_of(const struct sg_sandbox_spec *spec, enum sg_egress has)
{
    return spec != NULL && spec->egress_given ? spec->egress : has;
}

static int cannot_reach(const struct sg_sandbox_spec *spec, enum sg_egress has, const char *place, struct sg_error *err)
{
    if (spec->egress_given) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "network_egress_class", "egress %s is without the capability network, which the policy requires",
                              sg_egress_name(spec->egress));
    }
    return sg_error_field(err, SG_NOT_SUPPORTED, "policy.required_capabilities", "the egress of %s is %s, which is without the capability network",
                          place, sg_egress_name(has));
}

int sg_egress_check(const struct sg_sandbox_spec *spec, enum sg_egress has, const struct sg_egress_rules *rules, const char *place,
                    struct sg_error *err)
{
    enum sg_egress e = sg_egress_of(spec, has);
    if (e > SG_EGRESS_LOOPBACK && e > has) {
        sg_error_field(err, SG_POOL_REFUSED, "network_egress_class", "egress %s is wider than that of %s, which is %s", sg_egress_name(e), place,
                       sg_egress_name(has));
        return sg_error_reason(err, "egress_widened");
    }
    if (e == SG_EGRESS_RESTRICTED && sg_egress_rules_empty(rules)) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "network_egress_class", "%s: there is no egress_allow that a restricted lease could use", place);
    }
    if ((spec->required_caps & SG_CAP_NETWORK) != 0 && !sg_egress_reaches_out(e)) {
        return cannot_reach(spec, has, place, err);
    }
    return 0;
}

int sg_egress_env(struct sg_env *env, struct sg_error *err)
{
    static const char *const proxies[] = {"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"};
    static const char *const none[] = {"NO_PROXY", "no_proxy"};
    for (size_t i = 0; i < SG_COUNT_OF(proxies); i++) {
        if (sg_env_set(env, proxies[i], SG_EGRESS_URL, err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < SG_COUNT_OF(none); i++) {
        if (sg_env_set(env, none[i], "localhost,127.0.0.1,::1", err) < 0) {
            return -1;
        }
    }
    return 0;
}
