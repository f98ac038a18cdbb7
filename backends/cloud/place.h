/* Where a port of a sandbox is reached from anywhere, as its provider has it. Any thread; nothing blocks. */
#ifndef SG_PLACE_H
#define SG_PLACE_H

#include <jansson.h>

#include "backends/driver.h"
#include "backends/net/http.h"

/* What the ask_port slot does. place: {url, headers}, as of the public_url slot; its host is asked, with the scheme that the base of c
 * has. err has the member provider_status when there was an answer. */
int sg_place_ask(struct sg_net_client *c, const json_t *place, const char *path, int64_t deadline_ms, const struct sg_done *done,
                 struct sg_error *err);

#endif
