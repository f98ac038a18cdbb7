#include "http/accept.h"

#include <strings.h>

/* How well the ranges seen so far fit: the specificity of the best one, and whether it allows. */
struct fit {
    bool any_legible;
    int specificity; /* 0: none fits */
    bool allowed;
};

static size_t trimmed(const char **p, size_t len)
{
    while (len > 0 && (**p == ' ' || **p == '\t')) {
        (*p)++;
        len--;
    }
    while (len > 0 && ((*p)[len - 1] == ' ' || (*p)[len - 1] == '\t'))
        len--;
    return len;
}

static bool same(const char *at, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(at, word, len) == 0;
}

/* 3: the type itself, 2: "application/" and an asterisk, 1: anything, 0: not this one; -1: not a range. */
static int specificity(const char *range, size_t len, const char *type)
{
    const char *slash = memchr(range, '/', len);
    if (!slash || slash == range || slash + 1 == range + len)
        return -1;
    size_t family = (size_t)(slash - range) + 1;
    bool wild = len == family + 1 && slash[1] == '*';
    if (wild && same(range, family, "*/"))
        return 1;
    if (wild && strncasecmp(range, type, family) == 0)
        return 2;
    return same(range, len, type) ? 3 : 0;
}

/* "q=0", "q=0.000": the one weight that says no. */
static bool forbids(const char *param, size_t len)
{
    if (len < 3 || strncasecmp(param, "q=0", 3) != 0)
        return false;
    param += 3;
    len -= 3;
    if (len > 0 && *param == '.') {
        param++;
        len--;
    }
    for (; len > 0; param++, len--)
        if (*param != '0')
            return false;
    return true;
}

/* One element of the list: a range, then parameters. */
static void weigh(const char *at, size_t len, const char *type, struct fit *f)
{
    const char *end = at + len;
    const char *semicolon = memchr(at, ';', len);
    const char *range = at;
    size_t range_len = trimmed(&range, semicolon ? (size_t)(semicolon - at) : len);
    int s = specificity(range, range_len, type);
    if (s < 0)
        return;
    f->any_legible = true;
    if (s == 0 || s < f->specificity)
        return;
    bool allowed = true;
    while (semicolon) {
        const char *param = semicolon + 1;
        semicolon = memchr(param, ';', (size_t)(end - param));
        size_t param_len = trimmed(&param, (size_t)((semicolon ? semicolon : end) - param));
        allowed = allowed && !forbids(param, param_len);
    }
    f->allowed = s == f->specificity ? f->allowed || allowed : allowed;
    f->specificity = s;
}

bool sg_accepts(const struct sg_header *headers, size_t n, const char *type)
{
    struct fit f = {0};
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(headers[i].name, "Accept") != 0)
            continue;
        for (const char *p = headers[i].value; *p;) {
            size_t len = strcspn(p, ",");
            weigh(p, len, type, &f);
            p += len + (p[len] == ',');
        }
    }
    return !f.any_legible || (f.specificity > 0 && f.allowed);
}
