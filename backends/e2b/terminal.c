/* Terminals of commands: held by our wrapper inside (terminal.pl), resized by a script beside it. */
#include "backends/e2b/exec_priv.h"

#include <stdio.h>

#define RESIZE_MS 15000

struct resize {
    struct sg_done done;
};

static void resized(void *arg, const struct e2b_ran *r, const struct sg_error *err)
{
    struct resize *z = arg;
    struct sg_error why = {0};

    if (r && r->code != 0) {
        sg_error_set(&why, SG_CONFLICT, "the command's terminal has ended");
        err = &why;
    }
    z->done.fn(z->done.arg, err);
    sg_error_clear(&why);
    free(z);
}

int e2b_ex_resize(struct sg_exec *base, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err)
{
    /* TIOCSWINSZ */
    static const char script[] =
        "sysopen F, \"/dev/pts/$ARGV[0]\", 0402 and ioctl F, 0x5414, pack('S4', @ARGV[1, 2], 0, 0) or exit 1";
    struct e2b_ex *x = (struct e2b_ex *)base;
    char pts[24], height[16], width[16];

    pthread_mutex_lock(&x->lock);
    bool there = x->tty && x->child != 0 && !x->exited && !x->ended;
    snprintf(pts, sizeof pts, "%lld", (long long)x->pts);
    pthread_mutex_unlock(&x->lock);
    if (!there)
        return sg_error_set(err, SG_CONFLICT, "the command's terminal has ended");
    struct resize *z = sg_xcalloc(1, sizeof *z);
    z->done = *done;
    snprintf(height, sizeof height, "%u", rows);
    snprintf(width, sizeof width, "%u", cols);
    const char *const argv[] = {"perl", "-e", script, pts, height, width, NULL};
    e2b_run(x->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = RESIZE_MS, .done = resized, .arg = z});
    return 0;
}
