#include "http/accept.h"

#include <strings.h>

/* How well the ranges seen so far fit: the most specific one, its weight and its place in the list. */
struct fit {
    bool any_legible;
    int specificity; /* 0: none fits */
    int weight;      /* thousandths; 0: not wanted */
    int place;
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

/* A weight in thousandths, or -1 when the parameter is none. What is not legible is no reason to refuse: 1. */
static int weight_of(const char *param, size_t len)
{
    int w = 0, digit = 100;
    if (len < 2 || strncasecmp(param, "q=", 2) != 0)
        return -1;
    if (len < 3 || param[2] != '0')
        return 1000;
    if (len > 3 && param[3] != '.')
        return 1000;
    for (size_t i = 4; i < len; i++, digit /= 10) {
        if (param[i] < '0' || param[i] > '9')
            return 1000;
        w += (param[i] - '0') * digit;
    }
    return w;
}

/* One element of the list: a range, then parameters. */
static void weigh(const char *at, size_t len, const char *type, int place, struct fit *f)
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
    int weight = 1000;
    while (semicolon) {
        const char *param = semicolon + 1;
        semicolon = memchr(param, ';', (size_t)(end - param));
        size_t param_len = trimmed(&param, (size_t)((semicolon ? semicolon : end) - param));
        int w = weight_of(param, param_len);
        weight = w >= 0 && w < weight ? w : weight;
    }
    if (s == f->specificity && weight <= f->weight)
        return;
    f->weight = weight;
    f->specificity = s;
    f->place = place;
}

static struct fit fit_of(const struct sg_header *headers, size_t n, const char *type)
{
    struct fit f = {0};
    int place = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(headers[i].name, "Accept") != 0)
            continue;
        for (const char *p = headers[i].value; *p;) {
            size_t len = strcspn(p, ",");
            weigh(p, len, type, place++, &f);
            p += len + (p[len] == ',');
        }
    }
    return f;
}

bool sg_accepts(const struct sg_header *headers, size_t n, const char *type)
{
    struct fit f = fit_of(headers, n, type);
    return !f.any_legible || f.weight > 0;
}

static bool better(const struct fit *a, const struct fit *b)
{
    if (a->weight != b->weight)
        return a->weight > b->weight;
    if (a->specificity != b->specificity)
        return a->specificity > b->specificity;
    return a->place < b->place;
}

size_t sg_accept_best(const struct sg_header *headers, size_t n, const char *const *types)
{
    size_t best = 0;
    struct fit of_best = fit_of(headers, n, types[0]);
    for (size_t i = 1; types[i]; i++) {
        struct fit f = fit_of(headers, n, types[i]);
        if (f.weight > 0 && better(&f, &of_best)) {
            of_best = f;
            best = i;
        }
    }
    return best;
}
