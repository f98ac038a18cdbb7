#include "base/secret.h"

#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"

#define SECRET_MAX 65536U

struct sg_secret {
    size_t len;
    char bytes[]; /* NUL-terminated */
};

struct sg_secret *sg_secret_new(const char *bytes, size_t len)
{
    struct sg_secret *s = sg_xcalloc(1, sizeof *s + len + 1);
    s->len = len;
    if (len > 0) {
        memcpy(s->bytes, bytes, len);
    }
    return s;
}

struct sg_secret *sg_secret_free(struct sg_secret *s)
{
    if (s != NULL) {
        explicit_bzero(s->bytes, s->len);
        free(s);
    }
    return NULL;
}

const char *sg_secret_expose(const struct sg_secret *s, size_t *ret_len)
{
    if (ret_len != NULL) {
        *ret_len = s->len;
    }
    return s->bytes;
}

int sg_secret_from_env(const char *name, struct sg_secret **ret, struct sg_error *err)
{
    char file_name[256];
    const char *value = getenv(name);
    if (value != NULL && *value != '\0') {
        size_t n = strlen(value);
        if (n > SECRET_MAX) {
            return sg_error_field(err, SG_INVALID_REQUEST, name, "%s: more than %u bytes", name, SECRET_MAX);
        }
        *ret = sg_secret_new(value, n);
        return 1;
    }
    if (snprintf(file_name, sizeof file_name, "%s_FILE", name) >= (int)sizeof file_name) {
        return sg_error_set(err, SG_INVALID_REQUEST, "the name of a secret is too long");
    }
    const char *path = getenv(file_name);
    if (path == NULL || *path == '\0') {
        return 0;
    }
    char *text = NULL;
    size_t len = 0;
    if (sg_read_file(path, SECRET_MAX, &text, &len, err) < 0) {
        return sg_error_wrap(err, "%s", file_name);
    }
    size_t keep = len > 0 && text[len - 1] == '\n' ? len - 1 : len;
    bool usable = keep > 0 && memchr(text, '\0', keep) == NULL;
    if (usable) {
        *ret = sg_secret_new(text, keep);
    }
    explicit_bzero(text, len);
    free(text);
    return usable ? 1 : sg_error_field(err, SG_INVALID_REQUEST, file_name, "%s: empty, or holds a NUL", file_name);
}

void sg_secret_hide_env(void)
{
    size_t n = 0;
    while (environ && environ[n])
        n++;
    char **moved = sg_xcalloc(n + 1, sizeof *moved);
    for (size_t i = 0; i < n; i++) {
        moved[i] = sg_xstrdup(environ[i]);
        explicit_bzero(environ[i], strlen(environ[i]));
    }
    environ = moved;
}
