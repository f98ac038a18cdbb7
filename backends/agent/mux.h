/* Packets and streams over one connection of bytes, for an agent that shares no kernel with the server: what descriptors carry elsewhere
 * travels in channels here. Both ends run this: the relay inside of the sandbox, and its mirror in the server (far.c).
 *
 * A frame is `u32 channel, u32 type, u32 length` and a payload; integers in host byte order, as both ends are programs for one kind of machine.
 *
 *   PACKET   channel 0. To the relay: u32 n, n channels (u32), then a packet of protocol.h as the server sends it: the channels stand for
 *            the descriptors of the request and then of its answer. To the server: a packet of the agent.
 *   OPEN     to the relay: the channel is new; what comes is kept (in memory) until a PACKET names it.
 *   DATA     1 to SG_MUX_DATA_MAX bytes, within the credit of the channel
 *   END      the sender sends no more on it
 *   STOP     the sender takes no more on it, the other side ENDs it
 *   CREDIT   u32: so many bytes more may be sent. SG_MUX_WINDOW at the start, in each direction.
 *   OOM      to the server; u64 id: the kernel has killed for want of memory while that command ran
 *
 * A channel is over once each of its directions has been ENDed. Numbers are the server's to choose and are not used again.
 *
 * The other side is hostile: what is not exactly this is a violation, and nothing of it takes more memory than the windows. No function
 * here blocks, but for reads and writes of regular files. One thread at a time.
 */
#ifndef SG_AGENT_MUX_H
#define SG_AGENT_MUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SG_MUX_HEADER 12U
#define SG_MUX_WINDOW (256U * 1024U)
#define SG_MUX_DATA_MAX 32768U
#define SG_MUX_NAMED_MAX 4U /* channels of one PACKET */
#define SG_MUX_CHANNELS_MAX 8192U
#define SG_MUX_OUT_HIGH ((size_t)256 * 1024) /* with so much waiting to go out no stream is read */
#define SG_MUX_OUT_MAX ((size_t)32 << 20)    /* ... and more than this is a violation: packets are answered, so they are not that many */

/* Ids of packets that are not the client's: of the OPEN_TEMP that brings the content of a channel, and of the relay's own. */
#define SG_RELAY_CONTENT (UINT64_C(1) << 63)
#define SG_RELAY_OWN (UINT64_C(1) << 62)

enum sg_mux_type { SG_MUX_PACKET = 1, SG_MUX_OPEN, SG_MUX_DATA, SG_MUX_END, SG_MUX_STOP, SG_MUX_CREDIT, SG_MUX_OOM };

struct sg_mux;
struct sg_mux_channel;

/* Called from sg_mux_feed(), sg_mux_turn() and what else moves a channel. */
struct sg_mux_ops {
    /* -1: it is a violation. channels: numbers. */
    int (*packet)(void *arg, const uint32_t *channels, unsigned n, const void *data, size_t len);
    int (*open)(void *arg, uint32_t number);  /* NULL: nobody may */
    int (*oom)(void *arg, uint64_t id);       /* NULL: nobody may */
    /* All that came on it has been taken; error: an errno, what came later than that was thrown away. */
    void (*received)(void *arg, struct sg_mux_channel *c, int error);
    /* END has been sent. Its descriptor may be taken; else it is closed when it has no other direction. */
    void (*sent)(void *arg, struct sg_mux_channel *c);
    /* MAY be NULL: something may be taken from, or sent on, a channel that sg_mux_manual() was called for. */
    void (*moved)(void *arg, struct sg_mux_channel *c);
    /* It is over, and goes with this call. Its descriptor may be taken. */
    void (*gone)(void *arg, struct sg_mux_channel *c);
};

/* NULL: no memory, no descriptors. */
struct sg_mux *sg_mux_new(const struct sg_mux_ops *ops, void *arg);
void sg_mux_free(struct sg_mux *m); /* with all channels and their descriptors, without a callback; NULL-safe */
/* Readable (epoll) when sg_mux_turn() has something to do. */
int sg_mux_fd(const struct sg_mux *m);

/* ---- the connection ---- */

/* Bytes that have come. -1: a violation; the mux is of no use any more. */
int sg_mux_feed(struct sg_mux *m, const void *data, size_t len);
/* Moves what can be moved. True: there is more to do at once, once there is room again. */
bool sg_mux_turn(struct sg_mux *m);
/* What is to go out, and that n bytes of it have. */
const char *sg_mux_out(const struct sg_mux *m, size_t *ret_len);
void sg_mux_went(struct sg_mux *m, size_t n);
/* Has it sent more than its cap, or run out of memory? Then it is of no use any more. */
bool sg_mux_broken(const struct sg_mux *m);

void sg_mux_send_packet(struct sg_mux *m, const uint32_t *channels, unsigned n, const void *data, size_t len); /* channels NULL: to the server */
void sg_mux_send_open(struct sg_mux *m, uint32_t number);
void sg_mux_send_oom(struct sg_mux *m, uint64_t id);

/* ---- channels ---- */

enum sg_mux_direction { SG_MUX_IN = 1, SG_MUX_OUT = 2, SG_MUX_BOTH = 3 }; /* as seen from here */

/* A new one, without a descriptor yet. NULL: there is one of that number, or too many, or no memory. */
struct sg_mux_channel *sg_mux_add(struct sg_mux *m, uint32_t number, enum sg_mux_direction way, void *owner);
struct sg_mux_channel *sg_mux_find(const struct sg_mux *m, uint32_t number);
void *sg_mux_owner(const struct sg_mux_channel *c);
void sg_mux_set_owner(struct sg_mux_channel *c, void *owner);
/* Its descriptor, which is taken over and does not block: a pipe, a stream socket, or a regular file (from its start). Nobody moves its bytes by hand
 * any more. -1: it cannot be watched. */
int sg_mux_attach(struct sg_mux *m, struct sg_mux_channel *c, int fd);
/* Of one whose descriptor is a regular file: what is sent begins there. */
void sg_mux_read_from(struct sg_mux_channel *c, uint64_t first);
enum sg_mux_direction sg_mux_way(const struct sg_mux_channel *c);
/* Did it end because the other side takes no more? */
bool sg_mux_stopped(const struct sg_mux_channel *c);
/* Takes the descriptor away; -1: it has none. */
int sg_mux_take(struct sg_mux *m, struct sg_mux_channel *c);
/* Instead of a descriptor: whoever made it moves its bytes. */
void sg_mux_manual(struct sg_mux *m, struct sg_mux_channel *c);
/* What has come (to be freed; NULL: nothing): as much may come meanwhile, but its end is not told before sg_mux_took() all of it. Whoever grabs once
 * what was grabbed before is taken has two windows at most. error: an errno, nothing more is wanted. c may be gone after that. */
char *sg_mux_grab(struct sg_mux *m, struct sg_mux_channel *c, size_t *ret_len);
void sg_mux_took(struct sg_mux *m, struct sg_mux_channel *c, size_t len, int error);
/* How many bytes sg_mux_say() may take now; it asks again (moved) once that has changed. */
size_t sg_mux_allowed(struct sg_mux *m, struct sg_mux_channel *c);
/* moved() is called for it in the next turn. */
void sg_mux_rouse(struct sg_mux *m, struct sg_mux_channel *c);
/* No more is sent. c may be gone after that. */
void sg_mux_end(struct sg_mux *m, struct sg_mux_channel *c);
/* Has the other side sent its END? */
bool sg_mux_ended(const struct sg_mux_channel *c);
/* Sends 1 to SG_MUX_DATA_MAX bytes of its own, as far as that is allowed: with a descriptor before what that has, and only at the start. */
void sg_mux_say(struct sg_mux *m, struct sg_mux_channel *c, const void *data, size_t len);
/* Sends so many bytes more, and then the end. */
void sg_mux_limit(struct sg_mux *m, struct sg_mux_channel *c, uint64_t left);
/* The bytes in its descriptor that can be read now; 0: none, or it has ended. */
size_t sg_mux_waiting(const struct sg_mux_channel *c);
/* Ends both directions, whatever is under way. c may be gone then. */
void sg_mux_abort(struct sg_mux *m, struct sg_mux_channel *c);

#endif
