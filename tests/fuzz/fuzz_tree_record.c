/* Whatever a sandbox says is a walk over its directory: what is taken of it is one over a tree that could be. */
#include <string.h>

#include "fuzz.h"
#include "model/tree_record.h"

#define DIRS 256U

struct tree {
    char *dirs[DIRS];
    size_t n;
};

static bool has(const struct tree *t, const char *name, size_t len)
{
    for (size_t i = 0; i < t->n; i++)
        if (strlen(t->dirs[i]) == len && memcmp(t->dirs[i], name, len) == 0)
            return true;
    return len == 0;
}

static void judge(struct tree *t, const struct sg_tree_record *r)
{
    const char *slash = strrchr(r->name, '/');
    fuzz_require(r->name[0] != '\0' && r->name[0] != '/' && !strstr(r->name, "//"), "a name below the top");
    for (const char *p = r->name; p != NULL; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL) {
        size_t n = strcspn(p, "/");
        fuzz_require(n > 0 && !(n == 1 && p[0] == '.') && !(n == 2 && p[0] == '.' && p[1] == '.'), "that stays there");
    }
    fuzz_require(t->n == DIRS || has(t, r->name, slash ? (size_t)(slash - r->name) : 0), "in a directory that was named as one");
    fuzz_require(!has(t, r->name, strlen(r->name)), "and not twice");
    fuzz_require(r->kind == 'f' || (r->kind == 'd' && r->size == 0) || (r->kind == 'l' && r->size == 0 && r->target[0] != '\0'), "of a kind");
    if (r->kind == 'd' && t->n < DIRS)
        t->dirs[t->n++] = strdup(r->name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_tree_walk w = {0};
    struct tree t = {.n = 0};
    char *copy = malloc(size + 1); /* exact, so that a sanitizer sees a step too far */
    size_t at = 0;

    fuzz_require(copy != NULL, "memory");
    memcpy(copy, data, size);
    while (at < size) {
        struct sg_tree_record r;
        ssize_t n = sg_tree_record_read(copy + at, size - at, &w, &r, NULL);
        if (n <= 0 || r.kind == 'e')
            break;
        fuzz_require((size_t)n <= size - at, "no further than what there is");
        judge(&t, &r);
        at += (size_t)n;
        at += r.size < size - at ? (size_t)r.size : size - at;
    }
    sg_tree_walk_finish(&w);
    for (size_t i = 0; i < t.n; i++)
        free(t.dirs[i]);
    free(copy);
    return 0;
}
