/* What the wrapper says: found in what comes as the command's standard error, where everything else stays as it is. */
#include "backends/e2b/exec_priv.h"

#include <stdio.h>

/* The note is complete: "\0KEY s PID PTS\0" or "\0KEY x STATUS\0". False: it is none. */
static bool take_note(struct e2b_ex *x)
{
    char kind;
    long long number, pts = 0;
    int end = 0;

    if (x->note_len < KEY_HEX + 5 || memcmp(x->note + 1, x->key, KEY_HEX) != 0)
        return false;
    const char *said = x->note + 1 + KEY_HEX;
    if (sscanf(said, " %c %lld%n %lld%n", &kind, &number, &end, &pts, &end) < 2 || said[end] != '\0')
        return false;
    if (kind == 's')
        e2b_ex_command_began(x, number, pts);
    else
        e2b_ex_command_ended(x, (int)number);
    return true;
}

/* Could what has been collected become a note? */
static bool may_be_note(const struct e2b_ex *x)
{
    size_t n = x->note_len - 1 < KEY_HEX ? x->note_len - 1 : KEY_HEX;

    return x->note_len < NOTE_MAX - 1 && memcmp(x->note + 1, x->key, n) == 0;
}

static void spill_note(struct e2b_ex *x)
{
    memcpy(x->spill, x->note, x->note_len);
    x->spill_len = x->note_len;
    x->note_len = 0;
}

/* One byte more of a note. A NUL that ends what is none may begin one. */
static void note_byte(struct e2b_ex *x, char c)
{
    if (x->note_len > 0 && c == '\0') {
        x->note[x->note_len++] = '\0';
        if (take_note(x)) {
            x->note_len = 0;
            return;
        }
        x->note_len--;
        spill_note(x);
        x->note[x->note_len++] = '\0';
        return;
    }
    x->note[x->note_len++] = c;
    if (!may_be_note(x))
        spill_note(x);
}

size_t e2b_ex_put(struct sg_pipe *p, const char *data, size_t len)
{
    ssize_t n = len > 0 ? sg_pipe_write(p, data, len) : 0;

    return n < 0 ? len : (size_t)n;
}

static bool spilled(struct e2b_ex *x)
{
    size_t n = e2b_ex_put(x->base.err, x->spill, x->spill_len);

    memmove(x->spill, x->spill + n, x->spill_len - n);
    x->spill_len -= n;
    return x->spill_len == 0;
}

size_t e2b_ex_take_stderr(struct e2b_ex *x, const char *data, size_t len)
{
    size_t at = 0;

    while (spilled(x) && at < len) {
        if (x->note_len > 0 || data[at] == '\0') {
            note_byte(x, data[at++]);
            continue;
        }
        const char *nul = memchr(data + at, '\0', len - at);
        size_t run = nul ? (size_t)(nul - data) - at : len - at;
        size_t n = e2b_ex_put(x->base.err, data + at, run);
        at += n;
        if (n < run)
            break;
    }
    return at;
}
