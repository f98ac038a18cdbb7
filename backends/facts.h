/* What is known of every backend before any instance exists: data, never the result of a probe. */
#ifndef SG_FACTS_H
#define SG_FACTS_H

#include "backends/driver.h"

/* The settings that a backend's capabilities depend on. */
struct sg_facts_settings {
    enum sg_egress local_bwrap_egress;
    enum sg_egress docker_egress;
    bool modal_volumes; /* persistent volumes are configured */
};

/* Number of rows, in the default order of precedence. */
size_t sg_facts_count(void);
/* Row i (i < sg_facts_count()) under the settings (NULL: egress none, nothing configured); strings are
 * static. */
struct sg_driver_facts sg_facts_at(size_t i, const struct sg_facts_settings *s);
/* Row by name; false when there is none. */
bool sg_facts_get(const char *name, const struct sg_facts_settings *s, struct sg_driver_facts *ret);

/* A list of names such as model/selection.h has. */
struct sg_names;
/* The set of credential names of the table that this process holds (in its environment, or in the file named
 * there). The values are not kept. An unreadable file is an error. */
int sg_facts_held_credentials(struct sg_names *ret, struct sg_error *err);

#endif
