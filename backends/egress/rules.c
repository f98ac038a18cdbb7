#include "backends/egress/rules.h"

#include <stdlib.h>
#include <string.h>

struct rule {
    struct sg_host host;
    bool below; /* the names below it */
    uint16_t port;
};

struct sg_egress_rules {
    struct rule *rules;
    size_t n;
};

static int parse_rule(const char *text, struct rule *r, struct sg_error *err)
{
    const char *host = text;
    r->below = strncmp(text, "*.", 2) == 0;
    host += r->below ? 2 : 0;
    if (!sg_host_port_parse(host, strlen(host), &r->host, &r->port) || r->port == 0 || (r->below && r->host.is_address)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "egress_allow",
                              "\"%.200s\" is not HOST:PORT, where HOST is a name, *.NAME, or an address (IPv6 in brackets)", text);
    }
    return 0;
}

int sg_egress_rules_new(const char *const *list, struct sg_egress_rules **ret, struct sg_error *err)
{
    size_t n = 0;
    while (list != NULL && list[n] != NULL) {
        n++;
    }
    if (n > SG_EGRESS_RULES_MAX) {
        return sg_error_field(err, SG_INVALID_REQUEST, "egress_allow", "has more than %u entries", SG_EGRESS_RULES_MAX);
    }
    struct sg_egress_rules *r = sg_xcalloc(1, sizeof *r);
    r->rules = sg_xcalloc(n + 1, sizeof *r->rules);
    for (; r->n < n; r->n++) {
        if (parse_rule(list[r->n], &r->rules[r->n], err) < 0) {
            sg_egress_rules_free(r);
            return -1;
        }
    }
    *ret = r;
    return 0;
}

struct sg_egress_rules *sg_egress_rules_free(struct sg_egress_rules *r)
{
    if (r != NULL) {
        free(r->rules);
        free(r);
    }
    return NULL;
}

bool sg_egress_rules_empty(const struct sg_egress_rules *r)
{
    return r->n == 0;
}

static bool is_below(const char *name, const char *domain)
{
    size_t n = strlen(name), d = strlen(domain);
    return n > d + 1 && name[n - d - 1] == '.' && strcmp(name + n - d, domain) == 0;
}

static bool covers(const struct rule *r, const struct sg_host *h)
{
    if (r->host.is_address || h->is_address) {
        return r->host.is_address && h->is_address && sg_address_equal(&r->host.address, &h->address);
    }
    return r->below ? is_below(h->text, r->host.text) : strcmp(h->text, r->host.text) == 0;
}

enum sg_egress_match sg_egress_rules_match(const struct sg_egress_rules *r, const struct sg_host *h, uint16_t port)
{
    enum sg_egress_match best = SG_EGRESS_NO_MATCH;
    for (size_t i = 0; i < r->n; i++) {
        if (covers(&r->rules[i], h)) {
            if (r->rules[i].port == port) {
                return SG_EGRESS_MATCH;
            }
            best = SG_EGRESS_OTHER_PORT;
        }
    }
    return best;
}

bool sg_egress_rules_name_address(const struct sg_egress_rules *r, const struct in6_addr *a, uint16_t port)
{
    const struct sg_host h = {.is_address = true, .address = *a};
    return sg_egress_rules_match(r, &h, port) == SG_EGRESS_MATCH;
}
