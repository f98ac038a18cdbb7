#include "http/h1_response.h"

#include <strings.h>

static int bad(struct sg_error *err, const char *what)
{
    sg_error_set(err, SG_ENDPOINT_FAILED, "the service sent a malformed response: %s", what);
    return sg_error_reason(err, "malformed_response");
}

bool sg_h1_is_token(unsigned char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        return true;
    return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

bool sg_h1_list_has(const char *list, const char *token)
{
    size_t want = strlen(token);
    while (*list != '\0') {
        while (is_blank(*list) || *list == ',')
            list++;
        size_t n = strcspn(list, ",");
        size_t cut = n;
        while (cut > 0 && is_blank(list[cut - 1]))
            cut--;
        if (cut == want && strncasecmp(list, token, want) == 0)
            return true;
        list += n;
    }
    return false;
}

const char *sg_h1_field_get(const struct sg_h1_head *head, const char *name)
{
    for (size_t i = 0; i < head->n_fields; i++)
        if (strcasecmp(head->fields[i].name, name) == 0)
            return head->fields[i].value;
    return NULL;
}

/* One line of [*pos, end), cut at its LF and the CR before it; both become NUL. */
static char *next_line(char *buf, size_t *pos, size_t end, size_t *ret_len)
{
    char *line = buf + *pos;
    char *lf = memchr(line, '\n', end - *pos);
    *pos = (size_t)(lf - buf) + 1;
    if (lf > line && lf[-1] == '\r')
        lf--;
    *lf = '\0';
    *ret_len = (size_t)(lf - line);
    return line;
}

/* Only what may stand in a field value or a reason phrase: no NUL, no CR, no other control but HTAB. */
static bool clean(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int parse_status_line(struct sg_h1_head *head, const char *line, size_t len, struct sg_error *err)
{
    if (len < 12 || memcmp(line, "HTTP/1.", 7) != 0 || !is_digit(line[7]) || line[8] != ' ' ||
        !clean(line, len))
        return bad(err, "bad status line");
    if (!is_digit(line[9]) || !is_digit(line[10]) || !is_digit(line[11]) || (len > 12 && line[12] != ' '))
        return bad(err, "bad status line");
    head->minor = line[7] == '0' ? 0 : 1;
    head->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    if (head->status < 100 || head->status > 599)
        return bad(err, "bad status code");
    return 0;
}

static int parse_field(struct sg_h1_head *head, char *line, size_t len, struct sg_error *err)
{
    size_t n = 0;
    while (n < len && sg_h1_is_token((unsigned char)line[n]))
        n++;
    if (n == 0 || n == len || line[n] != ':')
        return bad(err, is_blank(line[0]) ? "folded header line" : "bad header name");
    if (!clean(line + n + 1, len - n - 1))
        return bad(err, "control character in a header");
    if (head->n_fields == SG_H1_FIELDS_MAX)
        return bad(err, "too many headers");
    char *value = line + n + 1;
    char *end = line + len;
    while (value < end && is_blank(*value))
        value++;
    while (end > value && is_blank(end[-1]))
        end--;
    line[n] = '\0';
    *end = '\0';
    head->fields[head->n_fields++] = (struct sg_h1_field){line, value};
    return 0;
}

static int parse_length(struct sg_h1_head *head, const char *value, struct sg_error *err)
{
    if (head->has_length)
        return bad(err, "more than one Content-Length");
    uint64_t v = 0;
    for (const char *p = value; *p != '\0'; p++) {
        if (!is_digit(*p) || v > ((uint64_t)INT64_MAX - 9) / 10)
            return bad(err, "bad Content-Length");
        v = v * 10 + (uint64_t)(*p - '0');
    }
    if (*value == '\0')
        return bad(err, "bad Content-Length");
    head->has_length = true;
    head->length = v;
    return 0;
}

static int keep_alive_timeout(const char *value)
{
    while (*value != '\0' && strncasecmp(value, "timeout=", 8) != 0)
        value++;
    if (*value == '\0' || !is_digit(value[8]))
        return -1;
    int v = 0;
    for (value += 8; is_digit(*value) && v < 100000; value++)
        v = v * 10 + (*value - '0');
    return v;
}

/* What frames the body, and whether the connection lives on. */
static int read_framing(struct sg_h1_head *head, bool head_request, struct sg_error *err)
{
    bool chunked = false;
    bool close = false;
    bool keep = false;
    for (size_t i = 0; i < head->n_fields; i++) {
        const char *name = head->fields[i].name;
        const char *value = head->fields[i].value;
        if (strcasecmp(name, "Content-Length") == 0) {
            if (parse_length(head, value, err) < 0)
                return -1;
        } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
            if (chunked || strcasecmp(value, "chunked") != 0)
                return bad(err, "unknown transfer coding");
            chunked = true;
        } else if (strcasecmp(name, "Connection") == 0) {
            close = close || sg_h1_list_has(value, "close");
            keep = keep || sg_h1_list_has(value, "keep-alive");
        } else if (strcasecmp(name, "Keep-Alive") == 0) {
            head->keep_alive_s = keep_alive_timeout(value);
        }
    }
    if (chunked && (head->has_length || head->minor == 0))
        return bad(err, "Transfer-Encoding in the wrong place");
    if (head_request || head->status == 204 || head->status == 304)
        head->framing = SG_H1_NO_BODY;
    else if (chunked)
        head->framing = SG_H1_CHUNKED;
    else
        head->framing = head->has_length ? SG_H1_LENGTH : SG_H1_UNTIL_CLOSE;
    head->keep_alive = !close && (keep || head->minor > 0) && head->framing != SG_H1_UNTIL_CLOSE;
    return 0;
}

static int parse_head(struct sg_h1_head *head, char *buf, size_t begin, size_t end, struct sg_error *err)
{
    size_t pos = begin;
    size_t len;
    char *line = next_line(buf, &pos, end, &len);
    head->n_fields = 0;
    head->has_length = false;
    head->length = 0;
    head->keep_alive_s = -1;
    if (parse_status_line(head, line, len, err) < 0)
        return -1;
    while (pos < end) {
        line = next_line(buf, &pos, end, &len);
        if (len > 0 && parse_field(head, line, len, err) < 0)
            return -1;
    }
    return 0;
}

/* Finds the empty line. True: *progress->scanned is just after it. */
static bool find_end(struct sg_h1_progress *p, const char *buf, size_t len)
{
    while (p->scanned < len) {
        const char *lf = memchr(buf + p->scanned, '\n', len - p->scanned);
        if (lf == NULL) {
            p->scanned = len;
            return false;
        }
        size_t at = (size_t)(lf - buf);
        bool empty = at == p->line || (at == p->line + 1 && buf[p->line] == '\r');
        p->scanned = p->line = at + 1;
        if (empty)
            return true;
    }
    return false;
}

/* Is this the head of a switch of protocols, to one that it names? */
static bool names_protocol(struct sg_h1_head *head)
{
    const char *upgrade = sg_h1_field_get(head, "Upgrade");
    const char *connection = sg_h1_field_get(head, "Connection");
    head->framing = SG_H1_NO_BODY;
    head->keep_alive = false;
    return upgrade != NULL && *upgrade != '\0' && connection != NULL && sg_h1_list_has(connection, "upgrade");
}

ssize_t sg_h1_head_parse(struct sg_h1_head *head, struct sg_h1_progress *progress, char *buf, size_t len,
                         bool head_request, struct sg_error *err)
{
    while (find_end(progress, buf, len)) {
        size_t end = progress->scanned;
        if (end > SG_H1_HEAD_MAX)
            return bad(err, "head too large");
        if (parse_head(head, buf, progress->begin, end, err) < 0)
            return -1;
        if (head->status >= 200)
            return read_framing(head, head_request, err) < 0 ? -1 : (ssize_t)end;
        if (head->status == 101)
            return progress->upgrade && names_protocol(head) ? (ssize_t)end : bad(err, "101 without an upgrade");
        if (++progress->interim > SG_H1_INTERIM_MAX)
            return bad(err, "too many interim responses");
        progress->begin = end;
    }
    size_t begin = progress->begin;
    size_t seen = len - begin < 7 ? len - begin : 7;
    if (memcmp(buf + begin, "HTTP/1.", seen) != 0)
        return bad(err, "not HTTP/1.x");
    return len >= SG_H1_HEAD_MAX ? bad(err, "head too large") : 0;
}
