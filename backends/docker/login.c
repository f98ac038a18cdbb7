/* The registry's password: it is sent with pulls of that registry's images and goes nowhere else. */
#include "backends/docker/docker_priv.h"

#include "base/base64.h"
#include "base/json.h"

#define VARIABLE "DOCKER_REGISTRY_AUTH"
#define HUB "docker.io"

/* "https://host:port/..." is "host:port"; the many names of the default one are one. Caller frees. */
static char *host_of(const char *server)
{
    const char *scheme = strstr(server, "://");
    const char *host = scheme != NULL ? scheme + 3 : server;
    sg_cleanup(sg_free_p) char *h = sg_xstrndup(host, strcspn(host, "/"));
    bool hub = sg_streq(h, "index.docker.io") || sg_streq(h, "registry-1.docker.io");
    return sg_xstrdup(hub ? HUB : h);
}

/* As engines read an image's name: the first part is a host if it could be nothing else. Caller frees. */
static char *registry_of(const char *image)
{
    size_t n = strcspn(image, "/");
    sg_cleanup(sg_free_p) char *first = sg_xstrndup(image, n);
    bool host = image[n] == '/' && (strpbrk(first, ".:") != NULL || sg_streq(first, "localhost"));
    return host ? host_of(first) : sg_xstrdup(HUB);
}

static int take(struct docker *d, const char *text, size_t len, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    if (sg_json_parse_object(text, len, &v, NULL) < 0 || !json_is_string(json_object_get(v, "serveraddress")) ||
        !(json_is_string(json_object_get(v, "identitytoken")) ||
          (json_is_string(json_object_get(v, "username")) && json_is_string(json_object_get(v, "password"))))) {
        return sg_error_set(err, SG_INVALID_REQUEST, "%s is not {\"username\", \"password\", \"serveraddress\"} in JSON", VARIABLE);
    }
    d->login_host = host_of(json_string_value(json_object_get(v, "serveraddress")));
    size_t n;
    char *header = sg_base64_encode(text, len, &n);
    if (header == NULL) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory for %s", VARIABLE);
    }
    for (size_t i = 0; i < n; i++) { /* the alphabet of URLs, or the engine ignores it without a word */
        header[i] = (char)(header[i] == '+' ? '-' : header[i] == '/' ? '_' : header[i]);
    }
    d->login = sg_secret_new(header, n);
    explicit_bzero(header, n);
    free(header);
    return 0;
}

int login_load(struct docker *d, struct sg_error *err)
{
    struct sg_secret *s = NULL;
    int rc = sg_secret_from_env(VARIABLE, &s, err);
    if (rc == 1) {
        size_t len;
        const char *text = sg_secret_expose(s, &len);
        rc = take(d, text, len, err);
    }
    sg_secret_free(s);
    return rc < 0 ? -1 : 0;
}

void login_drop(struct docker *d)
{
    d->login = sg_secret_free(d->login);
    free(d->login_host);
}

const struct sg_secret *login_for(const struct docker *d, const char *image)
{
    if (d->login == NULL) {
        return NULL;
    }
    sg_cleanup(sg_free_p) char *registry = registry_of(image);
    return sg_streq(registry, d->login_host) ? d->login : NULL;
}
