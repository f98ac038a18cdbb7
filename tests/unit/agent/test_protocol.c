#include "backends/agent/protocol.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"

static const char strings[] = "/workspace\0sh\0-c\0true\0PATH=/bin";

/* One valid message of every type. */
static size_t samples(struct sg_agent_msg *m)
{
    size_t n = 0;
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_HELLO, .u.hello = {1, 1, 0, 0, 1000, 1000, 3, 7, 99}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SPAWN,
                                   .id = 1,
                                   .nfds = 3,
                                   .u.spawn = {SG_AGENT_SPAWN_STDIN, 3, 1, 0, 0, sizeof strings, strings}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SPAWN,
                                   .id = 1,
                                   .nfds = 6,
                                   .u.spawn = {SG_AGENT_SPAWN_BLOB | SG_AGENT_SPAWN_GROUP, 3, 1, 0, 0, 9, NULL}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SPAWN,
                                   .id = 1,
                                   .nfds = 2,
                                   .u.spawn = {SG_AGENT_SPAWN_TTY | SG_AGENT_SPAWN_GROUP, 3, 1, 24, 65535, sizeof strings, strings}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_TERMINAL, .id = 20, .nfds = 1};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SIGNAL, .id = 2, .u.signal = {15}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_KILL, .id = 3};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_OPEN, .id = 4, .u.file = {.how = 1, .path = "/f"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_COMMIT,
                                   .id = 5,
                                   .nfds = 1,
                                   .u.file = {.flags = 3, .mode = 0600, .path = "/f", .path2 = ""}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_STAT, .id = 6, .u.file = {.path = "/f"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_LIST,
                                   .id = 7,
                                   .nfds = 1,
                                   .u.file = {.flags = 1, .max_entries = 9, .max_bytes = 4096, .path = "/", .path2 = ""}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_MKDIR, .id = 8, .u.file = {.mode = 0755, .path = "/d"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_RENAME, .id = 9, .u.file = {.path = "/a", .path2 = "/b"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_REMOVE, .id = 10, .u.file = {.flags = 1, .path = "/a"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_REMOVE,
                                   .id = 16,
                                   .u.file = {.condition = {SG_AGENT_MATCHES, 2, {{1, 2, -3, 4}, {5, 6, 7, 8}}}, .path = "/a"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_LINK,
                                   .id = 17,
                                   .u.file = {.flags = 21, .mtime_ns = -1, .path = "/l", .path2 = "../text"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_ATTRIBUTES,
                                   .id = 18,
                                   .u.file = {.flags = 5, .mode = 0700, .mtime_ns = 1, .path = "/d"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_MERGE, .id = 19, .u.file = {.path = "/s", .path2 = "/t"}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SOCKET, .id = 11, .u.socket = {2}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_LISTEN, .id = 22, .u.listen = {61080}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_ACCEPT, .id = 23};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_RESIZE, .id = 21, .u.resize = {1, 24, 80}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_STARTED, .id = 12, .u.started = {77}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_SPAWN_FAILED, .id = 13, .u.failed = {3, 2}};
    m[n++] = (struct sg_agent_msg){.type = SG_AGENT_EXITED, .id = 14, .u.exited = {1, 0}};
    m[n++] = (struct sg_agent_msg){
        .type = SG_AGENT_DONE,
        .id = 15,
        .nfds = 1,
        .u.done = {0, 1, 5, {S_IFREG, 0644, 1000, 5, -1, 2, 3}, "text"},
    };
    return n;
}

static enum sg_agent_side side(const struct sg_agent_msg *m)
{
    return m->type < SG_AGENT_HELLO ? SG_AGENT_FROM_SERVER : SG_AGENT_FROM_AGENT;
}

Test(protocol, what_is_packed_unpacks_the_same)
{
    struct sg_agent_msg m[40], back;
    unsigned char a[1024], b[1024];
    size_t count = samples(m);
    for (size_t i = 0; i < count; i++) {
        size_t len = sg_agent_encode(&m[i], a, sizeof a);
        cr_assert_gt(len, 0U, "type %d", m[i].type);
        cr_assert_eq(sg_agent_decode(a, len, m[i].nfds, side(&m[i]), &back), 0, "type %d", m[i].type);
        cr_assert_eq(sg_agent_encode(&back, b, sizeof b), len);
        cr_assert_eq(memcmp(a, b, len), 0);
    }
}

Test(protocol, nothing_else_unpacks)
{
    struct sg_agent_msg m[40], back;
    unsigned char a[1024];
    size_t count = samples(m);
    for (size_t i = 0; i < count; i++) {
        size_t len = sg_agent_encode(&m[i], a, sizeof a);
        enum sg_agent_side from = side(&m[i]);
        enum sg_agent_side other = from == SG_AGENT_FROM_AGENT ? SG_AGENT_FROM_SERVER : SG_AGENT_FROM_AGENT;
        for (size_t cut = 0; cut < len; cut++)
            cr_assert_eq(sg_agent_decode(a, cut, m[i].nfds, from, &back), -1, "type %d cut at %zu", m[i].type,
                         cut);
        cr_expect_eq(sg_agent_decode(a, len + 1, m[i].nfds, from, &back), -1);
        cr_expect_eq(sg_agent_decode(a, len, m[i].nfds + 1, from, &back), -1);
        cr_expect_eq(sg_agent_decode(a, len, m[i].nfds, other, &back), -1);
        a[0] ^= 1;
        cr_expect_eq(sg_agent_decode(a, len, m[i].nfds, from, &back), -1, "another version");
    }
}

/* Is this refused, by its sender already? */
static bool refused(struct sg_agent_msg m)
{
    static unsigned char a[SG_AGENT_PACKET_MAX + 10];
    return sg_agent_encode(&m, a, sizeof a) == 0;
}

Test(protocol, limits_hold_for_the_sender_too)
{
    static char path[SG_AGENT_PATH_MAX + 2], text[SG_AGENT_TEXT_MAX + 2];
    static char big[SG_AGENT_PACKET_MAX];
    memset(path, 'p', sizeof path - 1);
    memset(text, 't', sizeof text - 1);
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_STAT, .id = 1, .u.file.path = path}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_DONE, .id = 1, .u.done.text = text}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_DONE, .id = 1, .nfds = 2}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_DONE, .id = 1, .nfds = 1, .u.done.error = 2}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_DONE, .id = 1, .u.done.flags = 32}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_SIGNAL, .id = 1, .u.signal.signo = 65}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_SIGNAL, .id = 1, .u.signal.signo = 0}));
    cr_expect(
        refused((struct sg_agent_msg){.type = SG_AGENT_OPEN, .id = 1, .u.file = {.how = 6, .path = "/"}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_STAT, .id = 1, .u.file = {.flags = 2, .path = "/"}}));
    cr_expect(refused((struct sg_agent_msg){
        .type = SG_AGENT_REMOVE, .id = 1, .u.file = {.condition.kind = 5, .path = "/"}}));
    cr_expect(refused((struct sg_agent_msg){
        .type = SG_AGENT_REMOVE, .id = 1, .u.file = {.condition.n = SG_AGENT_TAGS_MAX + 1, .path = "/"}}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_MERGE, .id = 1, .u.file = {.path = "/", .path2 = ""}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_MKDIR, .id = 1, .u.file = {.mode = 010000, .path = "/"}}));
    cr_expect(refused((struct sg_agent_msg){
        .type = SG_AGENT_SPAWN, .id = 1, .nfds = 2, .u.spawn = {0, 1, 0, 0, 0, sizeof big, big}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_SPAWN, .id = 1, .nfds = 2, .u.spawn = {0, 0, 0, 0, 0, 1, ""}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_SPAWN, .id = 1, .nfds = 11, .u.spawn = {0, 1, 0, 0, 0, 1, ""}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_SPAWN, .id = 1, .nfds = 1, .u.spawn = {0, 1, 0, 0, 0, 1, ""}}));
    cr_expect(refused(
        (struct sg_agent_msg){.type = SG_AGENT_SPAWN, .id = 1, .nfds = 2, .u.spawn = {32, 1, 0, 0, 0, 1, ""}}));
    /* A size goes with a terminal, both its numbers, and stdin does not. */
    static const uint32_t sizes[][2] = {{0, 80}, {24, 0}, {24, 65536}, {65536, 80}};
    for (size_t i = 0; i < SG_COUNT_OF(sizes); i++)
        cr_expect(refused((struct sg_agent_msg){
            .type = SG_AGENT_SPAWN, .id = 1, .u.spawn = {SG_AGENT_SPAWN_TTY, 1, 0, sizes[i][0], sizes[i][1], 1, ""}}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_SPAWN, .id = 1, .nfds = 2, .u.spawn = {0, 1, 0, 24, 80, 1, ""}}));
    cr_expect(refused((struct sg_agent_msg){
        .type = SG_AGENT_SPAWN, .id = 1, .nfds = 1, .u.spawn = {SG_AGENT_SPAWN_TTY | SG_AGENT_SPAWN_STDIN, 1, 0, 24, 80, 1, ""}}));
    cr_expect(refused((struct sg_agent_msg){.type = SG_AGENT_TERMINAL, .id = 1}));
}

Test(protocol, spawn_strings)
{
    const char *cwd;
    char *argv[8], *envp[8];
    cr_assert_eq(sg_agent_spawn_split(strings, sizeof strings, 3, 1, &cwd, argv, envp), 0);
    cr_expect_str_eq(cwd, "/workspace");
    cr_expect_str_eq(argv[2], "true");
    cr_expect_null(argv[3]);
    cr_expect_str_eq(envp[0], "PATH=/bin");
    cr_expect_null(envp[1]);
    cr_expect_eq(sg_agent_spawn_split(strings, sizeof strings, 4, 1, &cwd, argv, envp), -1);
    cr_expect_eq(sg_agent_spawn_split(strings, sizeof strings, 2, 1, &cwd, argv, envp), -1);
    cr_expect_eq(sg_agent_spawn_split(strings, sizeof strings - 1, 3, 1, &cwd, argv, envp), -1);
    cr_expect_eq(sg_agent_spawn_split(strings, 0, 3, 1, &cwd, argv, envp), -1);
}

Test(protocol, records)
{
    unsigned char buf[2 * sizeof(struct sg_agent_record) + 20];
    struct sg_agent_record rec, in = {.name_len = 3, .target_len = 2, .stat.size = 7};
    memcpy(buf, &in, sizeof in);
    memcpy(buf + sizeof in, "abcde", 5);
    const char *p = (const char *)buf, *name, *target;
    size_t len = sizeof in + 5;
    cr_assert_eq(sg_agent_record_next(&p, &len, &rec, &name, &target), 1);
    cr_expect(memcmp(name, "abc", 3) == 0 && memcmp(target, "de", 2) == 0 && rec.stat.size == 7);
    cr_expect_eq(sg_agent_record_next(&p, &len, &rec, &name, &target), 0);
    for (size_t cut = 1; cut < sizeof in + 5; cut++) {
        p = (const char *)buf;
        len = cut;
        cr_expect_eq(sg_agent_record_next(&p, &len, &rec, &name, &target), -1);
    }
    buf[sizeof in + 1] = '\0';
    p = (const char *)buf;
    len = sizeof in + 5;
    cr_expect_eq(sg_agent_record_next(&p, &len, &rec, &name, &target), -1);
}
