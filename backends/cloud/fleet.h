/* What of a provider's sandboxes is ours, so that nothing is paid for that nobody has.
 *
 * Every sandbox is made with two labels: this server's and the lease's. From them it is found after an answer that did not come, and
 * after a restart. What the provider lists with our label and no lease of ours has is removed, once it is older than a create can
 * take; what has not our label is never touched. A removal is repeated until the provider confirms it. Any thread; nothing blocks.
 */
#ifndef SG_FLEET_H
#define SG_FLEET_H

#include <uthash.h>

#include "backends/cloud/alarms.h"
#include "backends/driver.h"

struct sg_fleet;

#define SG_FLEET_REMOVE_FIRST_MS 500
#define SG_FLEET_REMOVE_MAX_MS 60000

struct sg_fleet_item {
    char id[64];
    char lease[SG_ID_MAX]; /* "" when the label is missing */
    int64_t age_ms;
};
/* items: borrowed for the callback; NULL with err. */
struct sg_fleet_listed {
    void (*fn)(void *arg, const struct sg_fleet_item *items, size_t n, const struct sg_error *err);
    void *arg;
};

/* Two sweeps must agree on what is an orphan. */
struct sg_fleet_config {
    struct sg_alarms *alarms; /* closed before the fleet is freed */
    int64_t sweep_ms; /* between two; > 0 */
    int64_t grace_ms; /* least age of an orphan */
    /* All that has our label; of one lease, or (NULL) of all. */
    void (*list)(void *arg, const char *lease, const struct sg_fleet_listed *done);
    /* One attempt. done(NULL): it is gone, or was not there. */
    void (*remove)(void *arg, const char *id, const struct sg_done *done);
    /* A sandbox in the fleet that the provider does not list. */
    void (*missing)(void *arg, struct sg_sandbox *sb);
    void *arg;
    /* Is it the id of a lease that has not ended? NULL: nobody knows, and nothing is an orphan. */
    bool (*live)(void *arg, const char *lease);
    void *live_arg;
    /* MAY. Something was found that nobody has, and is being removed. */
    void (*orphan)(void *arg, const struct sg_fleet_item *item);
    void *orphan_arg;
};

/* The first sweep comes at once. */
struct sg_fleet *sg_fleet_new(const struct sg_fleet_config *c);
/* NULL-safe, returns NULL. */
struct sg_fleet *sg_fleet_free(struct sg_fleet *f);

/* What a sandbox's own struct has in it. */
struct sg_fleet_member {
    struct sg_sandbox *sb;
    char lease[SG_ID_MAX];
    int64_t since_ms;
    unsigned missed; /* sweeps in a row that did not see it */
    UT_hash_handle hh;
};
/* From here on m->sb (with its id) is somebody's, until it is taken out. */
void sg_fleet_add(struct sg_fleet *f, struct sg_fleet_member *m, struct sg_sandbox *sb, const char *lease);
void sg_fleet_take_out(struct sg_fleet *f, struct sg_fleet_member *m);
/* The sandbox of that id, or (id "") of that lease: one reference, or NULL. */
struct sg_sandbox *sg_fleet_find(struct sg_fleet *f, const char *id, const char *lease);

/* Adds what it has, and has done. */
void sg_fleet_report(struct sg_fleet *f, struct sg_provider_report *r);

/* Removes it; done(NULL) once the provider has confirmed, SG_SHUTTING_DOWN when the alarms were closed before. done.fn MAY be NULL. */
void sg_fleet_remove(struct sg_fleet *f, const char *id, const struct sg_done *done);
#endif
