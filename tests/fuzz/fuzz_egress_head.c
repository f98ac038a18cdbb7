/* What sandboxes ask of their proxy: one request comes out of one, with one Host, for the host that the rules are asked about; where a head and
 * a chunked body end does not depend on the pieces they come in. */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "backends/egress/head.h"
#include "backends/egress/rules.h"

static void check_out(const char *head, size_t len, const struct sg_egress_head *h)
{
    char host[SG_HOST_MAX + 16], with_port[SG_HOST_MAX + 8];
    sg_host_port_format(&h->host, h->port, with_port);
    fuzz_require(len >= 4 && memcmp(head + len - 4, "\r\n\r\n", 4) == 0 && strlen(head) == len, "it ends");
    const char *line = strstr(head, "\r\n") + 2;
    (void)snprintf(host, sizeof host, "Host: %s", with_port);
    fuzz_require(strncmp(line, host, strlen(host) - (h->port == 80 ? 3 : 0)) == 0, "Host is the target's");
    size_t hosts = 0, framings = 0;
    for (const char *end; line < head + len - 2; line = end + 2) {
        end = strstr(line, "\r\n");
        fuzz_require(memchr(line, ':', (size_t)(end - line)) != NULL && memchr(line, '\n', (size_t)(end - line)) == NULL, "a line is a field");
        hosts += strncasecmp(line, "Host:", 5) == 0;
        framings += strncasecmp(line, "Content-Length:", 15) == 0 || strncasecmp(line, "Transfer-Encoding:", 18) == 0;
    }
    fuzz_require(hosts == 1 && framings == (h->body != SG_EGRESS_BODY_NONE), "one Host and one framing");
}

static void check_host(const struct sg_host *h)
{
    struct sg_host again;
    char text[SG_HOST_MAX + 8];
    uint16_t port;
    sg_host_port_format(h, 1, text);
    fuzz_require(sg_host_port_parse(text, strlen(text), &again, &port) && port == 1 && strcmp(again.text, h->text) == 0 &&
                     again.is_address == h->is_address, "the form of a host is a host");
}

static void check_chunks(const char *data, size_t len)
{
    struct sg_egress_chunks whole = {0}, pieces = {0};
    bool done = false, done_pieces = false;
    ssize_t n = sg_egress_chunks_feed(&whole, data, len, &done), sum = 0;
    for (size_t i = 0; i < len && sum >= 0 && !done_pieces; i++) {
        ssize_t took = sg_egress_chunks_feed(&pieces, data + i, 1, &done_pieces);
        sum = took < 0 ? -1 : sum + took;
    }
    fuzz_require(n == sum && (n < 0 || done == done_pieces), "a body ends where it ends");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_egress_head h;
    struct sg_buf out;
    const char *why = NULL;
    size_t scanned = 0, scanned_pieces = 0;
    size = size < SG_EGRESS_HEAD_MAX ? size : SG_EGRESS_HEAD_MAX;
    char *text = sg_xcalloc(1, size + 1);
    memcpy(text, data, size);
    check_chunks(text, size);
    ssize_t end = sg_egress_head_end(text, size, &scanned), pieces = 0;
    for (size_t i = 1; i <= size && pieces == 0; i++) {
        pieces = sg_egress_head_end(text, i, &scanned_pieces);
    }
    fuzz_require(end == pieces, "a head ends where it ends");
    sg_buf_init(&out, SG_EGRESS_HEAD_MAX + 512);
    if (end > 0 && sg_egress_head_parse(text, (size_t)end, &h, &out, &why) == 0) {
        fuzz_require(h.port != 0, "there is a port");
        check_host(&h.host);
        if (h.connect) {
            fuzz_require(out.len == 0 && h.body == SG_EGRESS_BODY_NONE, "a tunnel has no head and no body");
        } else {
            check_out(out.data, out.len, &h);
        }
        check_chunks(text + end, size - (size_t)end);
    } else if (end > 0) {
        fuzz_require(why != NULL, "it says why");
    }
    sg_buf_finish(&out);
    free(text);
    return 0;
}
