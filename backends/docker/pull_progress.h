/* What an engine tells of a pull: JSON objects one after the other, one a line. It is read as it comes, in bounded memory; what it says of
 * layers is added up. */
#ifndef SG_DOCKER_PULL_PROGRESS_H
#define SG_DOCKER_PULL_PROGRESS_H

#include "base/base.h"

#define PULL_LINE_MAX ((size_t)16 * 1024) /* a longer one is passed over */
#define PULL_LAYERS_MAX 256U              /* those beyond are not added up */

struct pull_layer {
    char id[72];
    uint64_t current, total; /* bytes; total 0: not known */
    bool done;
};

/* All zero at first. */
struct pull_progress {
    char *line; /* begun */
    size_t len;
    bool skipping; /* the rest of one that is too long */
    struct pull_layer *layers;
    size_t n;
    bool extracting;
    char error[300]; /* the last one that was told; "" when none was */
};

void pull_progress_feed(struct pull_progress *p, const char *data, size_t len);
/* The stream has ended: what is left is a line, too. */
void pull_progress_end(struct pull_progress *p);
void pull_progress_finish(struct pull_progress *p);

struct pull_figures {
    const char *status; /* "resolving", "downloading", "extracting" */
    uint64_t current, total;
    unsigned layers, layers_done;
};
void pull_figures(const struct pull_progress *p, struct pull_figures *ret);

#endif
