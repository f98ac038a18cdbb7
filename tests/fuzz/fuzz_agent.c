/* The agent's wire, both directions: what decodes must encode to the same bytes again, and its strings must be strings.
 * Input: one byte (bit 7: from the agent; the rest: descriptors), then a packet. */
#include "fuzz.h"

#include "backends/agent/protocol.h"

#include <string.h>

static void check_spawn(const struct sg_agent_msg *m)
{
    static char *argv[SG_AGENT_ARGC_MAX + 1], *envp[SG_AGENT_ENVC_MAX + 1];
    const char *cwd = NULL;
    if (m->u.spawn.strings == NULL || sg_agent_spawn_split(m->u.spawn.strings, m->u.spawn.len, m->u.spawn.argc,
                                                           m->u.spawn.envc, &cwd, argv, envp) != 0)
        return;
    size_t sum = strlen(cwd) + 1;
    for (uint32_t i = 0; i < m->u.spawn.argc; i++)
        sum += strlen(argv[i]) + 1;
    for (uint32_t i = 0; i < m->u.spawn.envc; i++)
        sum += strlen(envp[i]) + 1;
    fuzz_require(sum == m->u.spawn.len, "the strings of a spawn are all of it");
}

static void check_packet(const uint8_t *data, size_t size)
{
    static unsigned char again[SG_AGENT_PACKET_MAX];
    struct sg_agent_msg m;
    enum sg_agent_side from = (data[0] & 0x80) != 0 ? SG_AGENT_FROM_AGENT : SG_AGENT_FROM_SERVER;
    if (sg_agent_decode(data + 1, size - 1, data[0] & 0x7f, from, &m) != 0)
        return;
    size_t len = sg_agent_encode(&m, again, sizeof again);
    fuzz_require(len == size - 1 && memcmp(again, data + 1, len) == 0, "a packet survives a round trip");
    if (m.type == SG_AGENT_SPAWN)
        check_spawn(&m);
}

static void check_records(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data, *name, *target;
    struct sg_agent_record rec;
    while (sg_agent_record_next(&p, &size, &rec, &name, &target) == 1)
        fuzz_require(memchr(name, '\0', rec.name_len) == NULL && target == name + rec.name_len, "a record's name");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0)
        check_packet(data, size);
    check_records(data, size);
    return 0;
}
