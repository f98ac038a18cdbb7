#include "base/id.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"

#define TIME_CHARS 10
#define RANDOM_CHARS 22

static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

void sg_id_new(const char *prefix, char out[SG_ID_MAX])
{
    char body[TIME_CHARS + RANDOM_CHARS + 1];
    uint8_t noise[RANDOM_CHARS]; /* five bits of each byte are used */
    uint64_t ms = (uint64_t)(sg_wall_us() / 1000);
    sg_random(noise, sizeof noise);
    for (int i = 0; i < TIME_CHARS; i++) {
        body[i] = alphabet[ms >> (5 * (TIME_CHARS - 1 - i)) & 31];
    }
    for (int i = 0; i < RANDOM_CHARS; i++) {
        body[TIME_CHARS + i] = alphabet[noise[i] & 31];
    }
    body[TIME_CHARS + RANDOM_CHARS] = '\0';
    if (snprintf(out, SG_ID_MAX, "%s_%s", prefix, body) >= SG_ID_MAX) {
        abort(); /* prefixes are ours and short */
    }
}

bool sg_id_valid(const char *prefix, const char *id)
{
    size_t n = strlen(prefix);
    if (strncmp(id, prefix, n) != 0 || id[n] != '_' || strlen(id + n + 1) != TIME_CHARS + RANDOM_CHARS) {
        return false;
    }
    return strspn(id + n + 1, alphabet) == TIME_CHARS + RANDOM_CHARS;
}
