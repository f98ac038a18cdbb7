/* What the settings must be. */
#include "backends/docker/config.h"

#include "base/str.h"

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

bool sg_docker_host_valid(const char *s)
{
    static const char *const schemes[] = {"unix:///", "tcp://", "http://", "https://"};
    for (size_t i = 0; i < SG_COUNT_OF(schemes); i++) {
        if (begins(s, schemes[i])) {
            return s[strlen(schemes[i])] != '\0' && strpbrk(s, " \t\r\n") == NULL;
        }
    }
    return false;
}

/* There is no directory that this server and the engine's host both see, as far as is known. */
static bool is_elsewhere(const struct sg_docker_config *c)
{
    return !begins(c->host, "unix://") && c->host_dir == NULL;
}

bool sg_docker_is_far(const struct sg_docker_config *c)
{
    return c->agent == SG_DOCKER_AGENT_ENGINE || (c->agent == SG_DOCKER_AGENT_AUTO && is_elsewhere(c));
}

static int check_tls(const struct sg_docker_config *c, struct sg_error *err)
{
    const char *first = c->tls_ca != NULL ? "docker.tls_ca" : c->tls_cert != NULL ? "docker.tls_cert" : "docker.tls_key";
    bool any = c->tls_ca != NULL || c->tls_cert != NULL || c->tls_key != NULL;
    if (any && (begins(c->host, "unix://") || begins(c->host, "http://"))) {
        return sg_error_field(err, SG_INVALID_REQUEST, first, "is for tcp:// and https://, not for %s", c->host);
    }
    if ((c->tls_cert != NULL) != (c->tls_key != NULL)) {
        return sg_error_field(err, SG_INVALID_REQUEST, c->tls_cert != NULL ? "docker.tls_cert" : "docker.tls_key",
                              "docker.tls_cert and docker.tls_key are for each other: name both");
    }
    return 0;
}

int sg_docker_config_check(const struct sg_docker_config *c, struct sg_error *err)
{
    if (!sg_docker_host_valid(c->host)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "docker.host", "%s is expected", SG_DOCKER_HOST_FORM);
    }
    if (check_tls(c, err) < 0) {
        return -1;
    }
    if (c->agent == SG_DOCKER_AGENT_SHARE && is_elsewhere(c)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "docker.agent",
                              "share, with an engine that is reached over the network: say where that sees `docker` in the state directory "
                              "(docker.agent_host_dir), or use engine");
    }
    return 0;
}
