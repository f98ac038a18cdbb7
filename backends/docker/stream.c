#include "backends/docker/stream.h"

static int take_head(struct sg_docker_stream *s, struct sg_error *err)
{
    const unsigned char *h = s->head;
    uint32_t n = (uint32_t)h[4] << 24 | (uint32_t)h[5] << 16 | (uint32_t)h[6] << 8 | h[7];
    bool fine = (h[0] == SG_DOCKER_STDOUT || h[0] == SG_DOCKER_STDERR) && h[1] == 0 && h[2] == 0 && h[3] == 0 && n <= SG_DOCKER_FRAME_MAX;
    if (!fine) {
        sg_error_set(err, SG_PROVIDER_FAILED, "the engine sends what is no output of a command");
        return sg_error_reason(err, "engine_protocol");
    }
    s->left = n;
    s->have = n > 0 ? s->have : 0;
    return 0;
}

ssize_t sg_docker_stream_next(struct sg_docker_stream *s, const void *data, size_t len, enum sg_docker_output *ret_output,
                              const void **ret_piece, size_t *ret_len, struct sg_error *err)
{
    const unsigned char *p = data;
    size_t used = 0;
    *ret_len = 0;
    if (s->have < sizeof s->head) {
        used = sizeof s->head - s->have < len ? sizeof s->head - s->have : len;
        memcpy(s->head + s->have, p, used);
        s->have += (unsigned)used;
        if (s->have < sizeof s->head) {
            return (ssize_t)used;
        }
        if (take_head(s, err) < 0) {
            return -1;
        }
    }
    *ret_output = (enum sg_docker_output)s->head[0];
    *ret_piece = p + used;
    *ret_len = len - used < s->left ? len - used : s->left;
    s->left -= (uint32_t)*ret_len;
    s->have = s->left > 0 ? s->have : 0;
    return (ssize_t)(used + *ret_len);
}

bool sg_docker_stream_whole(const struct sg_docker_stream *s)
{
    return s->have == 0;
}
