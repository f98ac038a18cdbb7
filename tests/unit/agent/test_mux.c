/* Channels over a connection of bytes: two ends of it, joined in memory. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/agent/mux.h"

struct side {
    struct sg_mux *mux;
    char packet[256];
    size_t packet_len;
    unsigned packets, received, sent, gone, opened;
    uint32_t names[SG_MUX_NAMED_MAX];
    unsigned n;
    int error, kept;
};

static int on_packet(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    struct side *s = arg;
    cr_assert_leq(len, sizeof s->packet);
    memcpy(s->packet, data, len);
    s->packet_len = len;
    s->packets++;
    s->n = n;
    for (unsigned i = 0; i < n; i++)
        s->names[i] = names[i];
    return 0;
}

static int on_open(void *arg, uint32_t number)
{
    struct side *s = arg;
    s->opened = number;
    return sg_mux_add(s->mux, number, SG_MUX_IN, NULL) != NULL ? 0 : -1;
}

static int on_oom(void *arg, uint64_t id)
{
    (void)arg;
    return id == 7 ? 0 : -1;
}

static void on_received(void *arg, struct sg_mux_channel *c, int error)
{
    struct side *s = arg;
    (void)c;
    s->received++;
    s->error = error;
}

static void on_sent(void *arg, struct sg_mux_channel *c)
{
    struct side *s = arg;
    s->sent++;
    s->kept = sg_mux_owner(c) != NULL ? sg_mux_take(s->mux, c) : -1;
}

static void on_gone(void *arg, struct sg_mux_channel *c)
{
    struct side *s = arg;
    (void)c;
    s->gone++;
}

static struct side here, there;

static void make(void)
{
    static const struct sg_mux_ops relay = {.packet = on_packet, .open = on_open, .received = on_received, .sent = on_sent, .gone = on_gone};
    static const struct sg_mux_ops mirror = {.packet = on_packet, .oom = on_oom, .received = on_received, .sent = on_sent, .gone = on_gone};
    signal(SIGPIPE, SIG_IGN);
    here = (struct side){.mux = sg_mux_new(&mirror, &here), .kept = -1};
    there = (struct side){.mux = sg_mux_new(&relay, &there), .kept = -1};
}

static void end(void)
{
    sg_mux_free(here.mux);
    sg_mux_free(there.mux);
}

TestSuite(mux, .init = make, .fini = end);

/* Bytes of one to the other, in pieces that cut frames. True: there were some. */
static bool carry(struct side *from, struct side *to, size_t piece)
{
    size_t len, all;
    const char *p = sg_mux_out(from->mux, &all);
    for (size_t at = 0; at < all; at += len) {
        len = all - at < piece ? all - at : piece;
        cr_assert_eq(sg_mux_feed(to->mux, p + at, len), 0);
    }
    sg_mux_went(from->mux, all);
    return all > 0;
}

/* Until nothing moves. */
static void settle(size_t piece)
{
    bool more = true;
    while (more) {
        more = sg_mux_turn(here.mux);
        more = sg_mux_turn(there.mux) || more;
        more = carry(&here, &there, piece) || more;
        more = carry(&there, &here, piece) || more;
    }
}

static void set_nonblocking(int fd)
{
    cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

/* A channel that carries from the pipe in[1] here to the pipe out[0] there. */
static void make_way(uint32_t number, int in[2], int out[2])
{
    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    set_nonblocking(in[0]);
    set_nonblocking(out[1]);
    set_nonblocking(out[0]);
    set_nonblocking(in[1]);
    cr_assert_eq(sg_mux_attach(here.mux, sg_mux_add(here.mux, number, SG_MUX_OUT, NULL), in[0]), 0);
    cr_assert_eq(sg_mux_attach(there.mux, sg_mux_add(there.mux, number, SG_MUX_IN, NULL), out[1]), 0);
}

Test(mux, a_reader_that_does_not_read_stops_the_writer_and_loses_nothing)
{
    int in[2], out[2];
    size_t written = 0, seen = 0;
    char buf[8192];
    make_way(1, in, out);
    for (bool full = false; !full;) {
        memset(buf, (int)(written / sizeof buf % 251), sizeof buf);
        ssize_t n = write(in[1], buf, sizeof buf);
        written += n > 0 ? (size_t)n : 0;
        settle(1000);
        full = n < 0 && write(in[1], "", 0) == 0;
    }
    cr_assert_leq(written, SG_MUX_WINDOW + 4 * 65536U);
    cr_assert_geq(written, SG_MUX_WINDOW);
    close(in[1]);
    for (ssize_t n = 1; n != 0;) {
        n = read(out[0], buf, sizeof buf);
        for (ssize_t i = 0; i < n; i++, seen++)
            cr_assert_eq((unsigned char)buf[i], seen / sizeof buf % 251);
        settle(1000);
    }
    cr_assert_eq(seen, written);
    cr_assert_eq(here.gone + there.gone, 2U);
    close(out[0]);
}

Test(mux, a_reader_that_goes_is_told_to_the_writer)
{
    int in[2], out[2];
    make_way(1, in, out);
    close(out[0]);
    settle(100000);
    cr_assert_lt(write(in[1], "x", 1), 0, "the other side's pipe has gone, and so has this one");
    cr_assert_eq(here.gone + there.gone, 2U);
    close(in[1]);
}

Test(mux, both_ways_over_sockets_with_half_closes)
{
    int a[2], b[2];
    char buf[64];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b), 0);
    cr_assert_eq(sg_mux_attach(here.mux, sg_mux_add(here.mux, 5, SG_MUX_BOTH, NULL), a[1]), 0);
    struct sg_mux_channel *c = sg_mux_add(there.mux, 5, SG_MUX_BOTH, NULL);
    sg_mux_say(there.mux, c, "", 1);
    cr_assert_eq(write(a[0], "question", 8), 8);
    settle(3);
    cr_assert_eq(read(a[0], buf, sizeof buf), 1, "what was said comes before there is a descriptor");
    cr_assert_eq(sg_mux_attach(there.mux, c, b[1]), 0);
    shutdown(a[0], SHUT_WR);
    settle(3);
    cr_assert_eq(read(b[0], buf, sizeof buf), 8);
    cr_assert_eq(read(b[0], buf, sizeof buf), 0);
    cr_assert_eq(write(b[0], "answer", 6), 6);
    close(b[0]);
    settle(3);
    cr_assert_eq(read(a[0], buf, sizeof buf), 6);
    cr_assert_eq(read(a[0], buf, sizeof buf), 0);
    cr_assert_eq(here.gone + there.gone, 2U);
    close(a[0]);
}

Test(mux, files_whole)
{
    int from = memfd_create("from", MFD_CLOEXEC), to = memfd_create("to", MFD_CLOEXEC);
    const off_t hole = 8 << 20;
    struct stat st;
    char c = 0;
    cr_assert_eq(pwrite(from, "a", 1, hole), 1);
    cr_assert_eq(ftruncate(from, 2 * hole), 0);
    sg_mux_send_open(here.mux, 9);
    cr_assert_eq(sg_mux_attach(here.mux, sg_mux_add(here.mux, 9, SG_MUX_OUT, NULL), from), 0);
    settle(100000);
    cr_assert_eq(there.opened, 9U);
    struct sg_mux_channel *in = sg_mux_find(there.mux, 9);
    cr_assert_eq(sg_mux_attach(there.mux, in, dup(to)), 0);
    settle(100000);
    cr_assert_eq(there.received, 1U);
    cr_assert_eq(there.error, 0);
    cr_assert_eq(fstat(to, &st), 0);
    cr_assert_eq(st.st_size, 2 * hole);
    cr_assert_eq(pread(to, &c, 1, hole), 1);
    cr_assert_eq(c, 'a');
    close(to);
}

/* Takes what has come into the packet, at most once per turn, and says so later. */
static void on_moved(void *arg, struct sg_mux_channel *c)
{
    struct side *s = arg;
    size_t len;
    if (sg_mux_way(c) == SG_MUX_OUT) {
        s->n = (unsigned)sg_mux_allowed(s->mux, c);
        return;
    }
    if (s->packet_len > 0)
        return; /* what was grabbed has not been taken yet */
    char *p = sg_mux_grab(s->mux, c, &len);
    s->packet_len += len;
    free(p);
}

Test(mux, moved_by_hand)
{
    static const struct sg_mux_ops by_hand = {.packet = on_packet, .received = on_received, .sent = on_sent, .moved = on_moved, .gone = on_gone};
    static char data[SG_MUX_DATA_MAX];
    sg_mux_free(here.mux);
    sg_mux_free(there.mux);
    here.mux = sg_mux_new(&by_hand, &here);
    there.mux = sg_mux_new(&by_hand, &there);
    struct sg_mux_channel *out = sg_mux_add(here.mux, 1, SG_MUX_OUT, NULL), *in = sg_mux_add(there.mux, 1, SG_MUX_IN, NULL);
    sg_mux_manual(here.mux, out);
    sg_mux_manual(there.mux, in);
    settle(1000);
    cr_assert_eq(here.n, SG_MUX_WINDOW);
    for (int window = 0; window < 2; window++) {
        for (size_t sent = 0; sent < SG_MUX_WINDOW; sent += sizeof data)
            sg_mux_say(here.mux, out, data, sizeof data);
        settle(100000000);
    }
    cr_assert_eq(there.packet_len, SG_MUX_WINDOW);
    cr_assert_eq(sg_mux_allowed(here.mux, out), 0U, "a second window has come, and no more may");
    there.packet_len = 0;
    sg_mux_took(there.mux, in, SG_MUX_WINDOW, 0);
    settle(100000000);
    cr_assert_eq(there.packet_len, SG_MUX_WINDOW);
    cr_assert_eq(here.n, SG_MUX_WINDOW, "and is asked for again");
    sg_mux_end(here.mux, out);
    settle(100000000);
    cr_assert_eq(here.gone, 1U);
    cr_assert_eq(there.received, 0U, "not before all is taken");
    cr_assert(sg_mux_ended(in));
    sg_mux_took(there.mux, in, SG_MUX_WINDOW, ENOSPC);
    cr_assert_eq(there.received, 1U);
    cr_assert_eq(there.error, ENOSPC);
    cr_assert_eq(there.gone, 1U);
}

Test(mux, a_full_file_is_an_error_and_its_rest_is_thrown_away)
{
    int from = memfd_create("from", MFD_CLOEXEC), to = memfd_create("to", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(from, 1 << 20), 0);
    cr_assert_eq(fcntl(to, F_ADD_SEALS, F_SEAL_GROW), 0);
    cr_assert_eq(sg_mux_attach(here.mux, sg_mux_add(here.mux, 1, SG_MUX_OUT, NULL), from), 0);
    cr_assert_eq(sg_mux_attach(there.mux, sg_mux_add(there.mux, 1, SG_MUX_IN, NULL), to), 0);
    settle(100000);
    cr_assert_eq(there.received, 1U);
    cr_assert_neq(there.error, 0);
    cr_assert_eq(here.gone + there.gone, 2U);
}

Test(mux, so_much_and_then_the_end_and_the_descriptor_is_kept)
{
    int in[2], out[2];
    char buf[16];
    make_way(1, in, out);
    sg_mux_set_owner(sg_mux_find(here.mux, 1), &here);
    cr_assert_eq(write(in[1], "abcdef", 6), 6);
    cr_assert_eq(sg_mux_waiting(sg_mux_find(here.mux, 1)), 6U);
    sg_mux_limit(here.mux, sg_mux_find(here.mux, 1), 4);
    settle(5);
    cr_assert_eq(read(out[0], buf, sizeof buf), 4);
    cr_assert_eq(read(out[0], buf, sizeof buf), 0);
    cr_assert_eq(read(here.kept, buf, sizeof buf), 2, "the rest is whoever's took it");
    close(here.kept);
    close(in[1]);
    close(out[0]);
}

Test(mux, packets_with_names_of_channels)
{
    const uint32_t names[] = {3, 4};
    sg_mux_send_packet(here.mux, names, 2, "hello", 5);
    sg_mux_send_packet(there.mux, NULL, 0, "hi", 2);
    sg_mux_send_oom(there.mux, 7);
    settle(1);
    cr_assert_eq(there.packets, 1U);
    cr_assert_eq(there.n, 2U);
    cr_assert_eq(there.names[1], 4U);
    cr_assert_arr_eq(there.packet, "hello", 5);
    cr_assert_arr_eq(here.packet, "hi", 2);
}

static int feed(struct side *s, uint32_t channel, uint32_t type, const void *data, uint32_t len)
{
    char frame[SG_MUX_HEADER + SG_MUX_DATA_MAX + 1];
    const uint32_t head[] = {channel, type, len};
    memcpy(frame, head, sizeof head);
    memcpy(frame + sizeof head, data, len);
    return sg_mux_feed(s->mux, frame, sizeof head + len);
}

Test(mux, what_is_not_allowed)
{
    static const char zeros[SG_MUX_DATA_MAX + 1];
    static const struct {
        uint32_t channel, type, len;
    } wrong[] = {
        {1, SG_MUX_DATA, 1},         /* of no channel */
        {1, SG_MUX_END, 0},          /* likewise */
        {2, SG_MUX_DATA, 0},         /* nothing */
        {2, SG_MUX_DATA, SG_MUX_DATA_MAX + 1},
        {2, SG_MUX_END, 1},
        {2, SG_MUX_CREDIT, 4},       /* of nothing */
        {2, SG_MUX_CREDIT, 3},
        {0, SG_MUX_CREDIT, 4},
        {3, SG_MUX_DATA, 1},         /* which only sends */
        {3, SG_MUX_END, 0},
        {1, SG_MUX_OPEN, 0},         /* the relay's to hear */
        {1, SG_MUX_PACKET, 2},
        {0, SG_MUX_OOM, 8},          /* of another command */
        {0, SG_MUX_OOM, 7},
        {1, 0, 0},
        {1, 99, 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        end();
        make();
        cr_assert_not_null(sg_mux_add(here.mux, 2, SG_MUX_BOTH, NULL));
        cr_assert_not_null(sg_mux_add(here.mux, 3, SG_MUX_OUT, NULL));
        cr_assert_eq(feed(&here, wrong[i].channel, wrong[i].type, zeros, wrong[i].len), -1, "case %zu", i);
    }
    end();
    make();
    cr_assert_not_null(sg_mux_add(here.mux, 2, SG_MUX_BOTH, NULL));
    for (unsigned n = 0; n < SG_MUX_WINDOW; n += SG_MUX_DATA_MAX)
        cr_assert_eq(feed(&here, 2, SG_MUX_DATA, zeros, SG_MUX_DATA_MAX), 0);
    cr_assert_eq(feed(&here, 2, SG_MUX_DATA, zeros, 1), -1, "more than was allowed");
    const uint32_t too_long[] = {0, SG_MUX_PACKET, 1U << 20};
    end();
    make();
    cr_assert_eq(sg_mux_feed(here.mux, too_long, sizeof too_long), -1);
    cr_assert_eq(feed(&there, 4, SG_MUX_STOP, "", 0), 0, "what was sent before the other side knew of the end");
    cr_assert_eq(feed(&there, 0, SG_MUX_PACKET, "\xff\xff\xff\xff", 4), -1, "names that are not there");
}
