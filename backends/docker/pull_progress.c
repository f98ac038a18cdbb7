#include "backends/docker/pull_progress.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

#define COUNT_MAX (INT64_C(1) << 50)

/* NULL: there are too many. */
static struct pull_layer *layer_of(struct pull_progress *p, const char *id)
{
    for (size_t i = 0; i < p->n; i++) {
        if (sg_streq(p->layers[i].id, id)) {
            return &p->layers[i];
        }
    }
    if (p->n == PULL_LAYERS_MAX) {
        return NULL;
    }
    if (p->layers == NULL) {
        p->layers = sg_xcalloc(PULL_LAYERS_MAX, sizeof *p->layers);
    }
    struct pull_layer *l = &p->layers[p->n++];
    (void)snprintf(l->id, sizeof l->id, "%s", id);
    return l;
}

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

static uint64_t count_of(const json_t *v)
{
    json_int_t n = json_integer_value(v);
    return n <= 0 ? 0 : n < COUNT_MAX ? (uint64_t)n : COUNT_MAX; /* so that all of them together are a number, too */
}

static void arrived(struct pull_layer *l)
{
    l->current = l->total;
}

/* "Pulling from library/x" has an id as well, that of the tag: what is no layer's is passed over. */
static void take_layer(struct pull_progress *p, const char *id, const char *status, const json_t *detail)
{
    static const char *const words[] = {"Pulling fs layer", "Waiting", "Downloading", "Verifying Checksum", "Download complete", "Extracting",
                                        "Pull complete", "Already exists"};
    bool known = false;
    for (size_t i = 0; i < SG_COUNT_OF(words); i++) {
        known = known || begins(status, words[i]);
    }
    struct pull_layer *l = known && strlen(id) < sizeof l->id ? layer_of(p, id) : NULL;
    if (l == NULL) {
        return;
    }
    if (begins(status, "Downloading")) {
        l->total = count_of(json_object_get(detail, "total"));
        l->current = count_of(json_object_get(detail, "current"));
    } else if (begins(status, "Download complete") || begins(status, "Extracting")) {
        arrived(l);
        p->extracting = p->extracting || begins(status, "Extracting");
    } else if (begins(status, "Pull complete") || begins(status, "Already exists")) {
        arrived(l);
        l->done = true;
    }
}

static void take(struct pull_progress *p, const json_t *v)
{
    const char *error = json_string_value(json_object_get(v, "error"));
    const char *message = json_string_value(json_object_get(json_object_get(v, "errorDetail"), "message"));
    const char *id = json_string_value(json_object_get(v, "id"));
    const char *status = json_string_value(json_object_get(v, "status"));
    if (error != NULL || message != NULL) {
        const char *said = error != NULL && error[0] != '\0' ? error : message;
        (void)snprintf(p->error, sizeof p->error, "%s", said != NULL && said[0] != '\0' ? said : "no reason given");
    } else if (id != NULL && status != NULL) {
        take_layer(p, id, status, json_object_get(v, "progressDetail"));
    }
}

/* An engine that puts several into one line is understood, too. */
static void take_line(struct pull_progress *p)
{
    for (size_t at = 0; at < p->len;) {
        json_error_t e;
        sg_cleanup(sg_json_p) json_t *v = json_loadb(p->line + at, p->len - at, JSON_DISABLE_EOF_CHECK, &e);
        if (v == NULL) {
            break;
        }
        at += (size_t)e.position;
        take(p, v);
    }
    p->len = 0;
}

void pull_progress_feed(struct pull_progress *p, const char *data, size_t len)
{
    if (p->line == NULL) {
        p->line = sg_xcalloc(1, PULL_LINE_MAX);
    }
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) : len;
        if (p->skipping || p->len + n > PULL_LINE_MAX) {
            p->skipping = true;
            p->len = 0;
        } else {
            memcpy(p->line + p->len, data, n);
            p->len += n;
        }
        if (end != NULL) {
            p->skipping = false;
            take_line(p);
            n++;
        }
        data += n;
        len -= n;
    }
}

void pull_progress_end(struct pull_progress *p)
{
    if (!p->skipping) {
        take_line(p);
    }
}

void pull_progress_finish(struct pull_progress *p)
{
    free(p->line);
    free(p->layers);
    *p = (struct pull_progress){0};
}

void pull_figures(const struct pull_progress *p, struct pull_figures *ret)
{
    *ret = (struct pull_figures){.status = p->n == 0 ? "resolving" : p->extracting ? "extracting" : "downloading", .layers = (unsigned)p->n};
    for (size_t i = 0; i < p->n; i++) {
        ret->current += p->layers[i].current;
        ret->total += p->layers[i].total;
        ret->layers_done += p->layers[i].done;
    }
}
