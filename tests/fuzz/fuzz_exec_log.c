/* What a command writes, in pieces of any size to either stream: the events hold the same bytes in the same
 * order, no event that calls itself text is none, and both encodings are sound. Input: per piece one byte
 * (bit 7: stderr; the rest: how many follow). */
#include "fuzz.h"

#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "service/exec_log.h"

#define MAX 8192U

struct streams {
    char data[2][MAX];
    size_t len[2];
};

static void check_json(const struct sg_exec_event *e, const char *json, size_t len)
{
    struct sg_error err = {0};
    json_t *v = NULL;
    fuzz_require(sg_json_parse_object(json, len, &v, &err) == 0, "an event is JSON");
    fuzz_require(json_integer_value(json_object_get(v, "seq")) == (json_int_t)e->seq, "with its number");
    if (e->type == SG_EVENT_STDOUT || e->type == SG_EVENT_STDERR) {
        const char *data = json_string_value(json_object_get(v, "data"));
        fuzz_require(data != NULL, "with data");
        if (e->binary) {
            uint8_t *bytes = NULL;
            size_t n = 0;
            fuzz_require(sg_base64_decode(data, strlen(data), MAX, &bytes, &n, NULL) == 0 && n == e->len &&
                             memcmp(bytes, e->data, n) == 0,
                         "the bytes");
            free(bytes);
        } else {
            fuzz_require(strlen(data) == e->len && memcmp(data, e->data, e->len) == 0, "the text");
        }
    }
    sg_json_unref(v);
}

static void check_encoding(const struct sg_exec_event *e)
{
    struct sg_buf line, sse;
    sg_buf_init(&line, 1U << 20);
    sg_buf_init(&sse, 1U << 20);
    fuzz_require(sg_exec_event_encode(e, SG_EVENT_NDJSON, &line) == 0, "a line");
    fuzz_require(memchr(line.data, '\n', line.len) == line.data + line.len - 1, "and only one");
    check_json(e, line.data, line.len);
    fuzz_require(sg_exec_event_encode(e, SG_EVENT_SSE, &sse) == 0, "an event");
    const char *data = strstr(sse.data, "\ndata: ");
    fuzz_require(data != NULL && strstr(data, "\n\n") == sse.data + sse.len - 2, "and only one");
    fuzz_require(strncmp(data + 7, line.data, line.len) == 0, "with the same JSON");
    sg_buf_finish(&sse);
    sg_buf_finish(&line);
}

static void read_all(struct sg_exec_reader *r, struct streams *got)
{
    struct sg_exec_event e;
    uint64_t seq = 0;
    while (sg_exec_reader_next(r, &e) == 1) {
        fuzz_require(e.seq == ++seq, "no gaps");
        check_encoding(&e);
        if (e.type != SG_EVENT_STDOUT && e.type != SG_EVENT_STDERR)
            continue;
        size_t which = e.type == SG_EVENT_STDERR;
        fuzz_require(e.len > 0 && got->len[which] + e.len <= MAX, "not more than was written");
        fuzz_require(e.binary || sg_utf8_valid(e.data, e.len), "text is text");
        memcpy(got->data[which] + got->len[which], e.data, e.len);
        got->len[which] += e.len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct streams wrote, got;
    struct sg_run_memory memory = {.max = 1U << 24};
    struct sg_exec_log *log = sg_exec_log_new(1U << 20, 1U << 20, &memory);
    struct sg_exec_reader *r = NULL;
    wrote.len[0] = wrote.len[1] = got.len[0] = got.len[1] = 0;
    if (size > MAX)
        size = MAX;
    fuzz_require(sg_exec_reader_new(log, 0, true, &r, NULL) == 0, "a reader");
    sg_exec_log_start(log, "");
    while (size > 0) {
        size_t which = (data[0] & 0x80) != 0, n = data[0] & 0x7f;
        data++;
        size--;
        n = n < size ? n : size;
        sg_exec_log_output(log, which != 0 ? SG_EVENT_STDERR : SG_EVENT_STDOUT, (const char *)data, n);
        memcpy(wrote.data[which] + wrote.len[which], data, n);
        wrote.len[which] += n;
        data += n;
        size -= n;
    }
    sg_exec_log_end(log, SG_EVENT_EXIT, "{\"returncode\":0}");
    read_all(r, &got);
    for (size_t i = 0; i < 2; i++)
        fuzz_require(got.len[i] == wrote.len[i] && memcmp(got.data[i], wrote.data[i], got.len[i]) == 0,
                     "all bytes of each stream");
    (void)sg_exec_reader_free(r);
    (void)sg_exec_log_unref(log);
    fuzz_require(memory.used == 0, "nothing is held any more");
    return 0;
}
