/* A complete stage becomes the target, or part of it. */
#include "service/tar_unpack_priv.h"

static int set_directory(struct unpack *u, const char *path, const struct directory *d, uint32_t mode,
                         struct sg_error *err)
{
    struct order *o = sg_unpack_order_new(u, d->path);

    return sg_unpack_ordered(
        o, u->ops->attributes(u->sb, path, mode, d->mtime_ns, &(struct sg_done){sg_unpack_order_done, o}, err), err);
}

enum sg_step sg_unpack_times(struct unpack *u, struct sg_error *err)
{
    if (u->at_dir == u->n_dirs && sg_unpack_settle(u, err) != 0)
        return err->code != SG_OK ? SG_STEP_OVER : SG_STEP_WAIT;
    if (u->at_dir == u->n_dirs) {
        u->state = MERGE;
        sg_unpack_asking(u);
        int rc = u->ops->merge(u->sb, u->stage, u->path, &(struct sg_done){sg_unpack_got_done, u}, err);
        return sg_unpack_asked(u, rc) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
    }
    const struct directory *d = &u->dirs[u->at_dir++];
    sg_cleanup(sg_free_p) char *path = sg_unpack_staged(u, d->path);
    return set_directory(u, path, d, d->mode | 0700, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
}

/* The few whose own user may not write to them, and the top when it is new. Deepest last named first: a parent that may not be entered
 * comes after what is in it. */
enum sg_step sg_unpack_modes(struct unpack *u, struct sg_error *err)
{
    while (u->at_dir > 0) {
        const struct directory *d = &u->dirs[--u->at_dir];
        bool top = d->path[0] == '\0';
        if (top ? !u->result.created : (d->mode & 0700) == 0700)
            continue;
        sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s%s%s", u->target, *d->path ? "/" : "", d->path);
        return set_directory(u, path, d, d->mode, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
    }
    if (sg_unpack_settle(u, err) == 1)
        return SG_STEP_WAIT;
    u->state = OVER;
    return SG_STEP_OVER;
}

enum sg_step sg_unpack_merged(struct unpack *u, struct sg_error *err)
{
    free(u->stage);
    u->stage = NULL; /* it is the target now, or part of it */
    u->at_dir = u->n_dirs;
    u->state = MODES;
    if (u->target)
        return SG_STEP_MORE;
    /* It is new: where it is was not known before. */
    return sg_unpack_ask_text(u, u->ops->resolve, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
}
