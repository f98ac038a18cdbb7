/* Asks a service inside a sandbox over HTTP whether it is well: GET PATH, again and again with growing pauses, until it
 * answers with a status of 2xx or 3xx or the time is over.
 *
 * Everything is for the reactor thread, and done comes on it. The service is hostile: of its answer only the first line is
 * looked at, and every step has a deadline.
 */
#ifndef SG_PROBE_H
#define SG_PROBE_H

#include "backends/driver.h"
#include "base/reactor.h"

struct sg_probe;

struct sg_probe_args {
    struct sg_reactor *reactor; /* outlives the probe */
    /* Connects, as the dial slot of the driver does; its done may come on any thread. */
    int (*dial)(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done, struct sg_error *err);
    /* MAY, instead of dial: makes one whole attempt elsewhere, as the ask_port slot does; done likewise. */
    int (*ask)(void *arg, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done, struct sg_error *err);
    /* Exactly once unless cancelled, never before sg_probe_start() has returned. err NULL: it is well. Else why not, as of
     * the last attempt; SG_SANDBOX_LOST and SG_LEASE_GONE end the attempts at once. */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;        /* of them; must live until done or sg_probe_cancel() */
    uint16_t port;
    const char *path; /* copied */
    int64_t deadline_ms; /* sg_now_ms() time; one attempt is made in any case */
};

struct sg_probe *sg_probe_start(const struct sg_probe_args *a);
/* No done any more. Not after done. NULL-safe, returns NULL. */
struct sg_probe *sg_probe_cancel(struct sg_probe *p);

#endif
