/* Runs a fuzz target without libFuzzer: every file of a corpus directory, then mutations of them from a fixed
 * seed. */
#include "fuzz.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#define INPUT_MAX 65536U

struct input {
    uint8_t data[INPUT_MAX];
    size_t size;
};

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static int read_input(const char *dir, const char *name, struct input *ret)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    ret->size = fread(ret->data, 1, sizeof ret->data, f);
    return fclose(f);
}

/* The target gets an allocation of the exact size, so that a read past the end is seen. */
static void run(const struct input *in)
{
    uint8_t *copy = malloc(in->size ? in->size : 1);
    if (!copy)
        abort();
    memcpy(copy, in->data, in->size);
    (void)LLVMFuzzerTestOneInput(copy, in->size);
    free(copy);
}

static void remove_bytes(struct input *in, size_t at, size_t n)
{
    if (n > in->size - at)
        n = in->size - at;
    memmove(in->data + at, in->data + at + n, in->size - at - n);
    in->size -= n;
}

static void repeat_bytes(struct input *in, size_t at, size_t n)
{
    if (n > in->size - at)
        n = in->size - at;
    if (in->size + n > INPUT_MAX)
        return;
    memmove(in->data + at + n, in->data + at, in->size - at);
    in->size += n;
}

static void mutate(struct input *in, uint64_t *s)
{
    static const char interesting[] = "{}[]\",:\\0-9.eEtfnul\x80\xff\x00";
    for (size_t n = 1 + next(s) % 4; n > 0 && in->size > 0; n--) {
        size_t at = (size_t)(next(s) % in->size);
        switch (next(s) % 4) {
        case 0:
            in->data[at] = (uint8_t)next(s);
            break;
        case 1:
            in->data[at] = (uint8_t)interesting[next(s) % sizeof interesting];
            break;
        case 2:
            remove_bytes(in, at, 1 + next(s) % 16);
            break;
        default:
            repeat_bytes(in, at, 1 + next(s) % 16);
            break;
        }
    }
}

static int run_corpus(const char *path, int mutations)
{
    static struct input seed;
    static struct input mutant;
    struct dirent **names = NULL;
    uint64_t s = 0x9e3779b97f4a7c15U;
    int files = 0;
    int n = scandir(path, &names, NULL, alphasort); /* in order, so that every run makes the same mutations */
    for (int k = 0; k < n; k++) {
        bool usable = names[k]->d_name[0] != '.' && read_input(path, names[k]->d_name, &seed) == 0;
        free(names[k]);
        if (!usable)
            continue;
        run(&seed);
        for (int i = 0; i < mutations; i++) {
            memcpy(mutant.data, seed.data, seed.size);
            mutant.size = seed.size;
            mutate(&mutant, &s);
            run(&mutant);
        }
        files++;
    }
    free(names);
    return files;
}

/* DIRECTORY MUTATIONS: of each file. */
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int mutations = atoi(argv[2]);
    int files = run_corpus(argv[1], mutations);
    if (files <= 0) {
        fprintf(stderr, "no corpus in %s\n", argv[1]);
        return 1;
    }
    printf("%s: %d files, %d mutations each\n", argv[1], files, mutations);
    return 0;
}
