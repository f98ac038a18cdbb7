/* A scriptable backend for tests: sandboxes in memory, no processes. Never enabled by default.
 *
 * The script is a JSON object; every member may be absent:
 *   caps       names of the capabilities it claims (default file_rw, exec, public_url)
 *   free       bool (default true)
 *   outlives_server  bool (default false)
 *   credentials      names it needs (default none)
 *   capacity   most sandboxes at once; further creates wait for acquire_timeout (default no limit)
 *   create     list of steps, one per create in order, then plain success
 *   terminate, exec, files   likewise, one per call
 *   snapshot, drop   likewise, of snapshots that it holds itself, in memory; for caps with "snapshot"
 *   health     error object: health fails with it
 *   ports      {"PORT in the sandbox": PORT on 127.0.0.1}: what dial reaches
 * A step: {delay_ms, error: CODE, message, retry_after, stall: true, lost_after_ms}. delay_ms comes before
 * the outcome; stall never answers (create: until cancelled; exec: until killed); lost_after_ms loses the
 * sandbox that long after the step succeeded, in exec while the command runs.
 *
 * Commands, as argv or as /bin/sh -c "WORDS; WORDS" without quoting: true, false, echo WORDS, stderr WORDS,
 * cat [FILE], pwd, printenv NAME, sleep SECONDS, exit N, signal NAME, yes [WORD], write FILE WORDS. Anything
 * else: 127 and a message in err.
 */
#ifndef SG_FAKE_H
#define SG_FAKE_H

#include "backends/driver.h"
#include "base/reactor.h"

/* script NULL or "": everything succeeds. SG_INVALID_REQUEST with `field` for a bad one. The reactor must
 * outlive it. */
int sg_fake_new(struct sg_reactor *reactor, const char *name, const char *script, struct sg_driver **ret,
                struct sg_error *err);

/* Tests: sandboxes alive now. */
size_t sg_fake_live(struct sg_driver *d);
/* Tests: makes the sandbox with that id die on its own, as a crashed agent would. False: no such one alive.
 */
bool sg_fake_lose(struct sg_driver *d, const char *id);

#endif
