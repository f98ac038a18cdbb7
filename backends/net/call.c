/* One call as curl sees it: the request that it is told, the callbacks it makes, the meaning of its results. */
#include "backends/net/net_priv.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/str.h"

#define PATH_MAX_BYTES 16384U
#define HEADERS_MAX 64U
#define DAY_SECONDS 86400
/* A connection that has been idle longer may just be about to be closed, and what is not to be repeated would be lost with it. */
#define ONCE_IDLE_SECONDS 4L

/* ---- making ---- */

/* No control characters, so that it stays one line; blanks only where a value has them. */
static bool one_line(const char *s, bool blanks)
{
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f || (c == ' ' && !blanks)) {
            return false;
        }
    }
    return true;
}

/* The line as it is; "Name:" is a field that is not to be sent. */
static int add_bare(struct sg_net_call *c, const char *line)
{
    struct curl_slist *l = curl_slist_append(c->headers, line);
    if (l == NULL) {
        return -1;
    }
    c->headers = l;
    return 0;
}

/* A line of the list, in memory that is wiped when it is let go. */
static int add_line(struct sg_net_call *c, const char *name, const char *prefix, const char *value)
{
    size_t size = strlen(name) + strlen(prefix) + strlen(value) + 3;
    char *line = sg_xcalloc(1, size);
    /* An empty value needs a ';' there, and gets a ':' on the wire. */
    (void)snprintf(line, size, prefix[0] == '\0' && value[0] == '\0' ? "%s;%s%s" : "%s: %s%s", name, prefix, value);
    int rc = add_bare(c, line);
    explicit_bzero(line, size);
    free(line);
    return rc;
}

static int add_header(struct sg_net_call *c, const struct sg_net_header *h, struct sg_error *err)
{
    const char *value = h->secret != NULL ? sg_secret_expose(h->secret, NULL) : h->value;
    const char *prefix = h->secret != NULL && h->prefix != NULL ? h->prefix : "";
    if (h->name == NULL || value == NULL || h->name[0] == '\0' || !one_line(h->name, false) || strpbrk(h->name, ":;") != NULL ||
        !one_line(value, true) || !one_line(prefix, true)) {
        return sg_error_set(err, SG_INTERNAL, "the header field %s of a call to %s cannot be sent",
                            h->name != NULL ? h->name : "?", c->client->shown);
    }
    if (add_line(c, h->name, prefix, value) < 0) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a call to %s", c->client->shown);
    }
    return 0;
}

static int add_headers(struct sg_net_call *c, const struct sg_net_request *q, struct sg_error *err)
{
    bool typed = false;
    for (size_t i = 0; i < q->n_headers; i++) {
        if (add_header(c, &q->headers[i], err) < 0) {
            return -1;
        }
        typed = typed || strcasecmp(q->headers[i].name, "Content-Type") == 0;
    }
    /* No "Expect: 100-continue", and no type that curl makes up. */
    if (add_bare(c, "Expect:") < 0 || (!typed && add_bare(c, "Content-Type:") < 0)) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a call to %s", c->client->shown);
    }
    return 0;
}

static char *copy_bytes(const void *data, size_t len)
{
    char *p = malloc(len + 1);
    if (p != NULL) {
        if (len > 0) {
            memcpy(p, data, len);
        }
        p[len] = '\0';
    }
    return p;
}

static int check(const struct sg_net_client *client, const struct sg_net_request *q, struct sg_error *err)
{
    bool ok = q->method != NULL && q->method[0] != '\0' && one_line(q->method, false) && q->path != NULL && q->path[0] == '/' &&
              one_line(q->path, false) && strlen(q->path) < PATH_MAX_BYTES && strchr(q->path, '#') == NULL && q->done != NULL &&
              q->n_headers < HEADERS_MAX && (q->host == NULL || (one_line(q->host, false) && q->host[0] != '\0' && strpbrk(q->host, "/?#@") == NULL)) &&
              (q->body == NULL || q->body_pipe == NULL || q->upgrade != NULL) &&
              (q->upgrade == NULL || (one_line(q->upgrade, false) && q->body_pipe != NULL && q->response != NULL));
    return ok ? 0 : sg_error_set(err, SG_INTERNAL, "a call to %s is none that can be sent", client->shown);
}

int sg_call_new(struct sg_net_client *client, const struct sg_net_request *q, struct sg_net_call **ret, struct sg_error *err)
{
    if (check(client, q, err) < 0) {
        return -1;
    }
    struct sg_net_call *c = sg_xcalloc(1, sizeof *c);
    atomic_init(&c->refs, 1);
    c->net = client->net;
    c->client = client;
    (void)pthread_mutex_lock(&c->net->lock);
    c->net->objects++;
    (void)pthread_mutex_unlock(&c->net->lock);
    c->cancel = q->cancel != NULL ? sg_cancel_ref(q->cancel) : NULL;
    c->method = sg_xstrdup(q->method);
    c->path = sg_xstrdup(q->path);
    c->host = q->host != NULL ? sg_xstrdup(q->host) : NULL;
    c->body_len = q->body != NULL ? q->body_len : 0;
    c->body = copy_bytes(q->body, c->body_len);
    c->body_pipe = q->body_pipe != NULL ? sg_pipe_ref(q->body_pipe) : NULL;
    c->body_size = q->body_size;
    c->response_pipe = q->response != NULL ? sg_pipe_ref(q->response) : NULL;
    c->repeatable = q->upgrade == NULL && (q->repeatable || (!sg_streq(q->method, "POST") && !sg_streq(q->method, "PATCH")));
    c->deadline_ms = q->deadline_ms;
    c->stall_ms = q->stall_ms;
    c->response_max = q->response_max;
    c->head = q->head;
    c->done = q->done;
    c->arg = q->arg;
    sg_buf_init(&c->response.head, SG_NET_HEAD_MAX);
    sg_buf_init(&c->response.body, q->response_max);
    int rc = c->body != NULL ? add_headers(c, q, err)
                             : sg_error_set(err, SG_NO_MEMORY, "no memory for the body of a call to %s", client->shown);
    if (rc == 0 && q->upgrade != NULL) {
        rc = sg_wire_new(c, q->upgrade, err);
    }
    if (rc < 0) {
        sg_call_unref(c);
        return -1;
    }
    *ret = c;
    return 0;
}

void sg_call_free(struct sg_net_call *c)
{
    for (struct curl_slist *l = c->headers; l != NULL; l = l->next) {
        explicit_bzero(l->data, strlen(l->data));
    }
    curl_slist_free_all(c->headers);
    sg_wire_free(c->wire);
    sg_buf_finish(&c->response.head);
    sg_buf_finish(&c->response.body);
    sg_error_clear(&c->why);
    sg_pipe_unref(c->body_pipe);
    sg_pipe_unref(c->response_pipe);
    sg_cancel_unref(c->cancel);
    explicit_bzero(c->body, c->body != NULL ? c->body_len : 0);
    free(c->body);
    free(c->method);
    free(c->path);
    free(c->host);
    free(c);
}

/* ---- callbacks of curl ---- */

static bool blank(const char *p, size_t len)
{
    return len == 0 || (len == 1 && p[0] == '\n') || (len == 2 && p[0] == '\r' && p[1] == '\n');
}

int sg_call_head_too_large(struct sg_net_call *c)
{
    sg_error_set(&c->why, SG_PROVIDER_FAILED, "%s answers with more than %u bytes of header fields", c->client->shown, SG_NET_HEAD_MAX);
    return sg_error_reason(&c->why, "response_too_large");
}

/* "Name: value" as name NUL value NUL. Lines that are none are left out. */
int sg_call_take_field(struct sg_net_call *c, const char *p, size_t len)
{
    const char *colon = memchr(p, ':', len);
    if (colon == NULL) {
        return 0;
    }
    const char *end = p + len;
    const char *value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t')) {
        value++;
    }
    while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    struct sg_buf *h = &c->response.head;
    if (memchr(p, '\0', len) != NULL) {
        return 0;
    }
    if (sg_buf_add(h, p, (size_t)(colon - p)) < 0 || sg_buf_add(h, "", 1) < 0 || sg_buf_add(h, value, (size_t)(end - value)) < 0 ||
        sg_buf_add(h, "", 1) < 0) {
        return sg_call_head_too_large(c);
    }
    return 0;
}

static void head_over(struct sg_net_call *c)
{
    long status = 0;
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    c->response.status = (int)status;
    if (status < 200 && status != 101) {
        return; /* an interim one */
    }
    c->headed = true;
    c->streams = c->response_pipe != NULL && status >= 200 && status < 300;
    if (c->head != NULL) {
        c->head(c->arg, &c->response);
    }
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct sg_net_call *c = arg;
    size_t len = size * n;
    if (!c->headed && len > 5 && memcmp(p, "HTTP/", 5) == 0) {
        sg_buf_finish(&c->response.head);
        sg_buf_init(&c->response.head, SG_NET_HEAD_MAX);
    } else if (blank(p, len)) {
        if (!c->headed) {
            head_over(c);
        }
    } else if (sg_call_take_field(c, p, len) < 0) {
        return len + 1;
    }
    return len;
}

static void wake(void *arg)
{
    sg_call_poke(arg);
}

static void wake_ref(void *arg)
{
    (void)sg_call_ref(arg);
}

static void wake_unref(void *arg)
{
    sg_call_unref(arg);
}

static struct sg_waker waker(struct sg_net_call *c)
{
    return (struct sg_waker){.wake = wake, .ref = wake_ref, .unref = wake_unref, .arg = c};
}

/* What does not fit now makes curl bring all of it again. */
static size_t stream(struct sg_net_call *c, const char *p, size_t len)
{
    size_t again = c->skip < len ? c->skip : len;
    if (again == len) {
        c->skip -= again;
        return len;
    }
    ssize_t n = sg_pipe_write(c->response_pipe, p + again, len - again);
    if (n < 0) {
        sg_error_set(&c->why, SG_CANCELLED, "nobody reads the answer any more");
        return len + 1;
    }
    c->bytes_in += (uint64_t)n;
    if ((size_t)n < len - again) {
        c->skip = again + (size_t)n;
        c->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    c->skip = 0;
    return len;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct sg_net_call *c = arg;
    size_t len = size * n;
    if (c->streams) {
        return stream(c, p, len);
    }
    if (c->response.body.len + len > c->response_max || sg_buf_add(&c->response.body, p, len) < 0) {
        sg_error_set(&c->why, SG_PROVIDER_FAILED, "%s answers with more than %zu bytes", c->client->shown, c->response_max);
        sg_error_reason(&c->why, "response_too_large");
        return len + 1;
    }
    c->bytes_in += len;
    return len;
}

static size_t body_ended(struct sg_net_call *c)
{
    if (c->body_size < 0 || c->body_sent == c->body_size) {
        return 0;
    }
    sg_error_set(&c->why, SG_INTERNAL, "the body of a call to %s ended after %lld of %lld bytes", c->client->shown,
                 (long long)c->body_sent, (long long)c->body_size);
    return CURL_READFUNC_ABORT;
}

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct sg_net_call *c = arg;
    ssize_t got = sg_pipe_read(c->body_pipe, p, size * n);
    if (got > 0) {
        c->body_sent += got;
        return (size_t)got;
    }
    if (got == 0) {
        return body_ended(c);
    }
    if (got == -EAGAIN) {
        c->paused = true;
        return CURL_READFUNC_PAUSE;
    }
    sg_pipe_error(c->body_pipe, &c->why);
    if (c->why.code == SG_OK) {
        sg_error_set(&c->why, SG_INTERNAL, "the body of a call to %s broke off", c->client->shown);
    }
    return CURL_READFUNC_ABORT;
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    const struct sg_net_call *c = arg;
    (void)purpose;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    int size = c->client->receive_buffer;
    if (fd >= 0 && size > 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size); /* else it holds more than it need */
    }
    return fd;
}

/* Nothing of the request has gone out on this connection yet. A second time is the library's own idea of repeating it. */
static int on_ready(void *arg, char *ip, char *local_ip, int port, int local_port)
{
    struct sg_net_call *c = arg;
    (void)ip;
    (void)local_ip;
    (void)port;
    (void)local_port;
    bool again = c->begun;
    c->begun = true;
    return again && !c->repeatable ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

/* ---- the handle ---- */

static CURLcode set_proxy(struct sg_net_call *c)
{
    const struct sg_net_client *k = c->client;
    CURLcode rc = curl_easy_setopt(c->easy, CURLOPT_PROXY, k->proxy != NULL ? k->proxy : "");
    rc |= curl_easy_setopt(c->easy, CURLOPT_NOPROXY, "");
    if (k->proxy == NULL) {
        return rc;
    }
    rc |= curl_easy_setopt(c->easy, CURLOPT_HTTPPROXYTUNNEL, 1L);
    rc |= curl_easy_setopt(c->easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    rc |= curl_easy_setopt(c->easy, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE); /* ours are not the proxy's */
    if (k->proxy_auth != NULL) {
        rc |= curl_easy_setopt(c->easy, CURLOPT_PROXYUSERPWD, sg_secret_expose(k->proxy_auth, NULL));
    }
    return rc;
}

static CURLcode set_origin(struct sg_net_call *c)
{
    const struct sg_net_client *k = c->client;
    int scheme = (int)(strstr(k->url, "://") - k->url);
    sg_cleanup(sg_free_p) char *url = c->host != NULL ? sg_xasprintf("%.*s://%s%s", scheme, k->url, c->host, c->path) : sg_xasprintf("%s%s", k->url, c->path);
    CURLcode rc = curl_easy_setopt(c->easy, CURLOPT_URL, url);
    rc |= curl_easy_setopt(c->easy, CURLOPT_PATH_AS_IS, 1L);
    rc |= curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    rc |= curl_easy_setopt(c->easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (k->socket != NULL) {
        rc |= curl_easy_setopt(c->easy, CURLOPT_UNIX_SOCKET_PATH, k->socket);
    }
    if (k->connect_to != NULL) {
        rc |= curl_easy_setopt(c->easy, CURLOPT_CONNECT_TO, k->connect_to);
    }
    if (k->ca_file != NULL) {
        rc |= curl_easy_setopt(c->easy, CURLOPT_CAINFO, k->ca_file);
    }
    if (k->cert_file != NULL) {
        rc |= curl_easy_setopt(c->easy, CURLOPT_SSLCERT, k->cert_file);
        rc |= curl_easy_setopt(c->easy, CURLOPT_SSLKEY, k->key_file);
    }
    bool tls = strncmp(k->url, "https:", 6) == 0;
    long version = !k->http2 ? CURL_HTTP_VERSION_1_1 : tls ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    rc |= curl_easy_setopt(c->easy, CURLOPT_HTTP_VERSION, version);
    rc |= curl_easy_setopt(c->easy, CURLOPT_PIPEWAIT, k->http2 ? 1L : 0L); /* one connection for all who come at once */
    return rc | set_proxy(c);
}

static CURLcode set_method(struct sg_net_call *c)
{
    CURL *e = c->easy;
    bool head = sg_streq(c->method, "HEAD");
    CURLcode rc = CURLE_OK;
    if (c->wire != NULL) {
        rc |= curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L); /* it may be silent for long, and the other end gone */
        return rc | curl_easy_setopt(e, CURLOPT_CONNECT_ONLY, 1L);
    }
    if (head) {
        rc |= curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    } else if (c->body_pipe != NULL) {
        rc |= curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
        rc |= curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
        rc |= curl_easy_setopt(e, CURLOPT_READDATA, c);
        rc |= curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->body_size);
    } else if (c->body_len > 0 || sg_streq(c->method, "POST") || sg_streq(c->method, "PUT") || sg_streq(c->method, "PATCH")) {
        rc |= curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body_len);
        rc |= curl_easy_setopt(e, CURLOPT_POSTFIELDS, c->body);
    }
    return head ? rc : rc | curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, c->method);
}

static CURLcode set_times(struct sg_net_call *c)
{
    CURL *e = c->easy;
    CURLcode rc = curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)c->client->connect_ms);
    if (c->deadline_ms > 0) {
        int64_t left = c->deadline_ms - sg_now_ms();
        rc |= curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(left > 1 ? left : 1));
    }
    if (c->stall_ms > 0) {
        rc |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
        rc |= curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)((c->stall_ms + 999) / 1000));
    }
    return rc;
}

static CURLcode set_callbacks(struct sg_net_call *c)
{
    CURL *e = c->easy;
    CURLcode rc = curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    rc |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, c->text);
    rc |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    rc |= curl_easy_setopt(e, CURLOPT_NOPROGRESS, 1L);
    rc |= curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    rc |= curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers);
    rc |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    rc |= curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    rc |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    rc |= curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    rc |= curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    rc |= curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, c);
    rc |= curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_ready);
    rc |= curl_easy_setopt(e, CURLOPT_PREREQDATA, c);
    if (c->wire != NULL) {
        rc |= curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L); /* it will be nobody else's */
    } else if (!c->repeatable) {
        rc |= curl_easy_setopt(e, CURLOPT_MAXAGE_CONN, ONCE_IDLE_SECONDS);
    }
    return rc;
}

int sg_call_prepare(struct sg_net_call *c, struct sg_error *err)
{
    c->easy = curl_easy_init();
    if (c->easy == NULL || (set_origin(c) | set_method(c) | set_times(c) | set_callbacks(c)) != CURLE_OK) {
        return sg_error_set(err, SG_INTERNAL, "cannot prepare a call to %s", c->client->shown);
    }
    const struct sg_waker w = waker(c);
    if (c->body_pipe != NULL) {
        sg_pipe_set_reader(c->body_pipe, &w);
    }
    if (c->response_pipe != NULL) {
        sg_pipe_set_writer(c->response_pipe, &w);
    }
    return 0;
}

/* ---- what became of it ---- */

static bool is_tls(CURLcode rc)
{
    switch (rc) {
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
        return true;
    default:
        return false;
    }
}

/* Whoever does not accept our certificate says so when for us the handshake is over and the request on its way (TLS 1.3), and what it
 * says may be lost with the connection. */
static bool was_turned_away(const struct sg_net_call *c, CURLcode rc)
{
    long connections = 0;
    (void)curl_easy_getinfo(c->easy, CURLINFO_NUM_CONNECTS, &connections);
    return (rc == CURLE_SEND_ERROR || rc == CURLE_RECV_ERROR) && c->begun && !c->headed && connections > 0 && strncmp(c->client->url, "https:", 6) == 0;
}

static const char *doubt(bool turned_away)
{
    return turned_away ? " (does it accept this server's certificate?)" : "";
}

static int not_sent(const struct sg_net_call *c, CURLcode rc, bool turned_away, struct sg_error *err)
{
    sg_error_set(err, SG_UNAVAILABLE, "%s cannot be reached: %s%s", c->client->shown,
                 c->text[0] != '\0' ? c->text : curl_easy_strerror(rc), doubt(turned_away));
    sg_error_reason(err, is_tls(rc) || turned_away ? "tls_failed" : "unreachable");
    return sg_error_retry_after(err, 1);
}

static int timed_out(const struct sg_net_call *c, struct sg_error *err)
{
    bool deadline = c->deadline_ms > 0 && sg_now_ms() >= c->deadline_ms - 1;
    sg_error_set(err, SG_PROVIDER_TIMEOUT, deadline ? "%s did not answer in time" : "%s went silent", c->client->shown);
    return sg_error_reason(err, deadline ? "deadline" : "stalled");
}

int sg_call_verdict(struct sg_net_call *c, CURLcode rc, struct sg_error *err)
{
    long sent = 0;
    if (c->why.code != SG_OK) {
        sg_error_copy(err, &c->why);
        return -1;
    }
    if (rc == CURLE_OK && c->headed) {
        return 0;
    }
    (void)curl_easy_getinfo(c->easy, CURLINFO_REQUEST_SIZE, &sent);
    bool turned_away = was_turned_away(c, rc);
    bool again = rc == CURLE_ABORTED_BY_CALLBACK; /* on_ready(): the connection was closed without an answer */
    if (!c->begun || (sent <= 0 && !again) || (turned_away && strstr(c->text, " alert ") != NULL)) {
        return not_sent(c, rc, turned_away, err);
    }
    if (rc == CURLE_OPERATION_TIMEDOUT) {
        return timed_out(c, err);
    }
    const char *what = again ? "it was closed without an answer" : c->text[0] != '\0' ? c->text : curl_easy_strerror(rc);
    sg_error_set(err, SG_PROVIDER_FAILED, "the connection to %s broke: %s%s", c->client->shown, what, doubt(turned_away));
    return sg_error_reason(err, "connection_lost");
}

/* ---- responses ---- */

int sg_net_status(const struct sg_net_response *r)
{
    return r->status;
}

const char *sg_net_header(const struct sg_net_response *r, const char *name)
{
    for (size_t at = 0; at < r->head.len;) {
        const char *key = r->head.data + at;
        const char *value = key + strlen(key) + 1;
        if (strcasecmp(key, name) == 0) {
            return value;
        }
        at = (size_t)(value - r->head.data) + strlen(value) + 1;
    }
    return NULL;
}

const char *sg_net_body(const struct sg_net_response *r, size_t *ret_len)
{
    if (ret_len != NULL) {
        *ret_len = r->body.len;
    }
    return r->body.len > 0 ? r->body.data : "";
}

int sg_net_retry_after(const struct sg_net_response *r)
{
    const char *s = sg_net_header(r, "Retry-After");
    int64_t v = 0;
    if (s == NULL) {
        return 0;
    }
    if (!sg_parse_int(s, 0, INT64_MAX, &v)) {
        int64_t left = (int64_t)curl_getdate(s, NULL) - sg_wall_us() / 1000000; /* -1: none */
        v = left > 0 ? left : 0;
    }
    return v < DAY_SECONDS ? (int)v : DAY_SECONDS;
}

char *sg_net_escape(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    char *out = sg_xcalloc(strlen(text) + 1, 3);
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr(unreserved, *p) != NULL) {
            out[n++] = *p;
        } else {
            out[n++] = '%';
            out[n++] = hex[(unsigned char)*p >> 4];
            out[n++] = hex[(unsigned char)*p & 15];
        }
    }
    return out;
}
