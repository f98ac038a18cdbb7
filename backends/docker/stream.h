/* What a command that the engine itself runs writes: frames of 8 bytes (which output, length in network order) and so many bytes. */
#ifndef SG_DOCKER_STREAM_H
#define SG_DOCKER_STREAM_H

#include "base/error.h"

#define SG_DOCKER_FRAME_MAX ((uint32_t)16 << 20) /* of one frame; engines send at most 32 KiB */

enum sg_docker_output { SG_DOCKER_STDOUT = 1, SG_DOCKER_STDERR = 2 };

struct sg_docker_stream {
    unsigned char head[8];
    unsigned have; /* of it */
    uint32_t left; /* of the frame's bytes */
};

/* The next piece in the len > 0 bytes at data. > 0: so many of them have been used, and *ret_piece (of *ret_len bytes, 0: none is complete
 * yet) belongs to *ret_output; call again for the rest. -1, SG_PROVIDER_FAILED: that is no such stream. */
ssize_t sg_docker_stream_next(struct sg_docker_stream *s, const void *data, size_t len, enum sg_docker_output *ret_output,
                              const void **ret_piece, size_t *ret_len, struct sg_error *err);
/* It ends here: is that between frames? */
bool sg_docker_stream_whole(const struct sg_docker_stream *s);

#endif
