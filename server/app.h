/* The composition root: builds everything in order, serves until told to stop, tears down in reverse. */
#ifndef SG_APP_H
#define SG_APP_H

#include "config.h"

/* Serves with this configuration until SIGTERM or SIGINT; SIGHUP reads tokens again through `args` (what cfg was loaded with).
 * Call it before any thread exists. 0: stopped in good order; -1: did not start, err says why. */
int sg_app_run(const struct sg_config *cfg, const struct sg_config_args *args, struct sg_error *err);

#endif
