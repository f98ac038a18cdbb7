/* What single values must look like, and what must hold between them. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

#include "backends/docker/config.h"
#include "backends/egress/lease.h"
#include "backends/local_bwrap/local_bwrap.h"
#include "backends/registry.h"
#include "base/str.h"
#include "config/priv.h"

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

/* ---- single values ---- */

static bool made_of(const char *s, const char *chars, size_t max)
{
    size_t n = strlen(s);
    return n > 0 && n <= max && strspn(s, chars) == n;
}

bool conf_valid_name(const char *s)
{
    return made_of(s, LOWER UPPER DIGITS "._-", 63) && *s != '.' && *s != '-';
}

bool conf_valid_pool_name(const char *s)
{
    return made_of(s, LOWER DIGITS "_-", 63);
}

bool conf_valid_sha256(const char *s)
{
    return strlen(s) == 64 && made_of(s, DIGITS "abcdefABCDEF", 64);
}

bool conf_valid_path(const char *s)
{
    return *s == '/' && strlen(s) < 4096;
}

bool conf_valid_domain(const char *s)
{
    size_t label = 0;
    for (const char *p = s;; p++) {
        if (*p == '.' || *p == '\0') {
            if (label == 0 || label > 63 || p[-1] == '-') {
                return false;
            }
            label = 0;
            if (*p == '\0') {
                return p - s <= 253;
            }
        } else if (strchr(LOWER UPPER DIGITS, *p) == NULL && (*p != '-' || label == 0)) {
            return false;
        } else {
            label++;
        }
    }
}

/* The host of an http(s) URL: where it starts, its length; false when s is none. */
static bool url_host(const char *s, const char **host, size_t *len)
{
    size_t scheme = strncmp(s, "http://", 7) == 0 ? 7 : strncmp(s, "https://", 8) == 0 ? 8 : 0;
    if (scheme == 0 || strlen(s) > 2000 || strpbrk(s, " \t\r\n\"<>\\^`{|}@?#") != NULL) {
        return false;
    }
    *host = s + scheme;
    *len = **host == '[' ? strcspn(*host, "]/") + 1 : strcspn(*host, ":/");
    return *len > 0 && (*host)[0] != ':';
}

bool conf_valid_url(const char *s)
{
    const char *host;
    size_t len;
    return url_host(s, &host, &len);
}

/* http://[USER:PASSWORD@]HOST[:PORT] */
bool conf_valid_proxy(const char *s)
{
    static const char scheme[] = "http://";
    const char *at = strrchr(s, '@');
    char rest[300];
    if (strncmp(s, scheme, sizeof scheme - 1) != 0 || (at != NULL && strpbrk(s + sizeof scheme - 1, "/ ") != NULL)) {
        return false;
    }
    int n = snprintf(rest, sizeof rest, "%s%s", scheme, at != NULL ? at + 1 : s + sizeof scheme - 1);
    return n > 0 && n < (int)sizeof rest && strchr(rest + sizeof scheme - 1, '/') == NULL && conf_valid_url(rest);
}

bool conf_valid_image(const char *s)
{
    return *s != '\0' && strlen(s) < 512 && strpbrk(s, " \t\r\n") == NULL;
}

bool conf_valid_container_user(const char *s)
{
    uint32_t uid, gid;
    return sg_docker_user_parse(s, &uid, &gid);
}

/* HOST:PORT, [V6]:PORT or :PORT; the host goes to out. */
static bool split_listen(const char *s, char *out, size_t size)
{
    const char *colon = strrchr(s, ':');
    int64_t port;
    if (colon == NULL || !sg_parse_int(colon + 1, 0, 65535, &port)) {
        return false;
    }
    size_t n = (size_t)(colon - s);
    bool bracketed = n >= 2 && s[0] == '[' && s[n - 1] == ']';
    if (bracketed) {
        s++;
        n -= 2;
    }
    if (n >= size) {
        return false;
    }
    memcpy(out, s, n);
    out[n] = '\0';
    struct in6_addr six;
    return bracketed ? inet_pton(AF_INET6, out, &six) == 1 : strchr(out, ':') == NULL;
}

bool conf_valid_listen(const char *s)
{
    char host[256];
    struct in_addr four;
    if (!split_listen(s, host, sizeof host)) {
        return false;
    }
    return *s == '[' || *host == '\0' || sg_streq(host, "localhost") || inet_pton(AF_INET, host, &four) == 1;
}

bool sg_config_is_loopback(const char *listen)
{
    char host[256];
    struct in_addr four;
    struct in6_addr six;
    if (!split_listen(listen, host, sizeof host)) {
        return false;
    }
    if (inet_pton(AF_INET, host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127;
    }
    if (inet_pton(AF_INET6, host, &six) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&six) != 0;
    }
    return sg_streq(host, "localhost");
}

/* ---- between values ---- */

SG_PRINTF(4, 5)
static int refuse(const struct sg_config *c, const char *key, struct sg_error *err, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sg_error_field(err, SG_INVALID_REQUEST, key, "%s: %s: %s", conf_origin(c, key), key, text);
}

static int check_listen(const struct sg_config *c, struct sg_error *err)
{
    if (c->auth.n == 0 && !sg_config_is_loopback(c->server.listen)) {
        return refuse(c, "server.listen", err, "%s is not a loopback address, and no auth.tokens are configured", c->server.listen);
    }
    return 0;
}

/* Is domain the same as the name of len bytes, or a parent of it? */
static bool covers(const char *domain, const char *name, size_t len)
{
    size_t n = strlen(domain);
    if (n > len || strncasecmp(name + len - n, domain, n) != 0) {
        return false;
    }
    return n == len || name[len - n - 1] == '.';
}

static int check_domain(const struct sg_config *c, struct sg_error *err)
{
    const char *host;
    size_t len;
    if (c->server.public_domain != NULL && strlen(c->server.public_domain) > 214) {
        return refuse(c, "server.public_domain", err, "is too long: with the 38 characters of an endpoint and a dot before it, a host name has at most 253");
    }
    if (c->server.public_domain != NULL && c->server.public_url != NULL && url_host(c->server.public_url, &host, &len) &&
        covers(c->server.public_domain, host, len)) {
        return refuse(c, "server.public_domain", err,
                      "must not be the domain of server.public_url or a parent of it: sandboxes could read its cookies");
    }
    return 0;
}

static int check_timeouts(const struct sg_config *c, struct sg_error *err)
{
    if (c->leases.timeout_default_ms > c->leases.timeout_max_ms) {
        return refuse(c, "leases.timeout_default", err, "is above leases.timeout_max");
    }
    if (c->exec.timeout_default_ms > c->exec.timeout_max_ms) {
        return refuse(c, "exec.timeout_default", err, "is above exec.timeout_max");
    }
    return 0;
}

/* section: "local_bwrap", whose keys are known one by one, or "local_pools". */
static int refuse_pool(const struct sg_config *c, const struct sg_config_pool *p, const char *section, const char *key,
                       struct sg_error *err, const char *why)
{
    char name[128];
    bool single = sg_streq(section, "local_bwrap");
    (void)snprintf(name, sizeof name, "%s%s%s", section, single ? "." : "", single ? key : "");
    return single ? refuse(c, name, err, "%s", why) : refuse(c, name, err, "%s: %s: %s", p->pool.name, key, why);
}

static int check_pool(const struct sg_config *c, const struct sg_config_pool *p, const char *section, struct sg_error *err)
{
    struct sg_error why = {0};
    if (sg_local_pool_config_check(&p->pool, &why) < 0) {
        (void)refuse_pool(c, p, section, why.field, err, why.message);
        sg_error_clear(&why);
        return -1;
    }
    return 0;
}

static int check_pools(const struct sg_config *c, struct sg_error *err)
{
    if (check_pool(c, &c->local_bwrap, "local_bwrap", err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->n_local_pools; i++) {
        const char *name = c->local_pools[i].pool.name;
        bool twice = sg_streq(name, c->local_bwrap.pool.name);
        for (size_t j = 0; j < i; j++) {
            twice = twice || sg_streq(name, c->local_pools[j].pool.name);
        }
        if (twice) {
            return refuse(c, "local_pools", err, "two local pools are named %s", name);
        }
        if (check_pool(c, &c->local_pools[i], "local_pools", err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* What only matters to who uses it. */
static int check_docker_parts(const struct sg_config *c, struct sg_error *err)
{
    const struct sg_docker_config parts = {.host = c->docker.host,
                                           .tls_ca = c->docker.tls_ca,
                                           .tls_cert = c->docker.tls_cert,
                                           .tls_key = c->docker.tls_key,
                                           .host_dir = c->docker.agent_host_dir,
                                           .agent = c->docker.agent,
                                           .egress = c->docker.egress};
    struct sg_error why = {0};
    if (sg_docker_config_check(&parts, &why) < 0) {
        (void)refuse(c, why.field, err, "%s", why.message);
        sg_error_clear(&why);
        return -1;
    }
    return 0;
}

static int check_docker(const struct sg_config *c, struct sg_error *err)
{
    struct sg_error why = {0};
    char name[128];
    if (sg_egress_settings_check(c->docker.egress, c->docker.egress_allow, &why) < 0) {
        (void)snprintf(name, sizeof name, "docker.%s", why.field);
        (void)refuse(c, name, err, "%s", why.message);
        sg_error_clear(&why);
        return -1;
    }
    return 0;
}

static int check_tokens(const struct sg_config *c, struct sg_error *err)
{
    for (size_t i = 0; i < c->auth.n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (sg_streq(c->auth.tokens[i].name, c->auth.tokens[j].name)) {
                return refuse(c, "auth.tokens", err, "two tokens are named %s", c->auth.tokens[i].name);
            }
            if (strcasecmp(c->auth.tokens[i].sha256, c->auth.tokens[j].sha256) == 0) {
                return refuse(c, "auth.tokens", err, "%s and %s are the same token", c->auth.tokens[j].name, c->auth.tokens[i].name);
            }
        }
    }
    return 0;
}

static const struct sg_config_remote *find_remote(const struct sg_config *c, const char *name)
{
    for (size_t i = 0; i < c->n_remotes; i++) {
        if (sg_streq(c->remotes[i].name, name)) {
            return &c->remotes[i];
        }
    }
    return NULL;
}

static int check_remotes(const struct sg_config *c, struct sg_error *err)
{
    for (size_t i = 0; i < c->n_remotes; i++) {
        const char *name = c->remotes[i].name;
        if (sg_backend_row(name) != NULL || find_remote(c, name) != &c->remotes[i]) {
            return refuse(c, "remotes", err, "the name %s is taken", name);
        }
    }
    return 0;
}

static int check_backend(const struct sg_config *c, const char *name, struct sg_error *err)
{
    const struct sg_backend_row *row = sg_backend_row(name);
    bool remote = find_remote(c, name) != NULL;
    if (row == NULL && !remote) {
        return refuse(c, "backends.enabled", err, "there is no backend %s", name);
    }
    if (remote || row->make == NULL) {
        return refuse(c, "backends.enabled", err, "this build has no driver for the backend %s", name);
    }
    if (sg_streq(name, "worktree") && c->worktree.n == 0) {
        return refuse(c, "backends.enabled", err, "worktree needs worktree.repos");
    }
    if (sg_streq(name, "docker") && c->docker.image == NULL && sg_config_count(c->docker.images_allowed) == 0) {
        return refuse(c, "backends.enabled", err, "docker needs docker.image or docker.images_allowed: an image for containers");
    }
    return sg_streq(name, "docker") ? check_docker_parts(c, err) : 0;
}

static int check_backends(const struct sg_config *c, struct sg_error *err)
{
    const char *const *names = c->backends.enabled;
    for (size_t i = 0; i < sg_config_count(names); i++) {
        for (size_t j = 0; j < i; j++) {
            if (sg_streq(names[i], names[j])) {
                return refuse(c, "backends.enabled", err, "%s is named twice", names[i]);
            }
        }
        if (check_backend(c, names[i], err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < c->n_prices; i++) {
        if (sg_backend_row(c->prices[i].name) == NULL && find_remote(c, c->prices[i].name) == NULL) {
            return refuse(c, "prices", err, "there is no backend %s", c->prices[i].name);
        }
    }
    return 0;
}

int conf_check(struct sg_config *c, struct sg_error *err)
{
    static int (*const checks[])(const struct sg_config *, struct sg_error *) = {
        check_listen, check_domain, check_timeouts, check_pools, check_docker, check_tokens, check_remotes, check_backends,
    };
    for (size_t i = 0; i < SG_COUNT_OF(checks); i++) {
        if (checks[i](c, err) < 0) {
            return -1;
        }
    }
    return 0;
}
