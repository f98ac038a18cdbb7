#include "http/ws_offer.h"

#include <strings.h>

#include "base/hash.h"

#define GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#define KEY_BYTES 16U
#define KEY_LEN 24U /* in base64 */

/* ---- comma-separated lists in any number of header lines ---- */

struct items {
    const struct sg_header *headers;
    size_t n, i;
    const char *name, *at;
};

/* The next item that is not empty; false: there is none. */
static bool next(struct items *it, const char **ret, size_t *ret_len)
{
    for (;;) {
        while (!it->at || *it->at == '\0') {
            if (it->i == it->n)
                return false;
            const struct sg_header *h = &it->headers[it->i++];
            it->at = strcasecmp(h->name, it->name) == 0 ? h->value : NULL;
        }
        it->at += strspn(it->at, ", \t");
        size_t len = strcspn(it->at, ",");
        *ret = it->at;
        it->at += len;
        while (len > 0 && ((*ret)[len - 1] == ' ' || (*ret)[len - 1] == '\t'))
            len--;
        *ret_len = len;
        if (len > 0)
            return true;
    }
}

static bool is(const char *item, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(item, word, len) == 0;
}

static bool lists(const struct sg_header *headers, size_t n, const char *name, const char *word)
{
    struct items it = {.headers = headers, .n = n, .name = name};
    const char *item;
    size_t len;

    while (next(&it, &item, &len))
        if (is(item, len, word))
            return true;
    return false;
}

/* The value of a header that must be there once; NULL otherwise. */
static const char *single(const struct sg_header *headers, size_t n, const char *name)
{
    const char *value = NULL;

    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(headers[i].name, name) != 0)
            continue;
        if (value)
            return NULL;
        value = headers[i].value;
    }
    return value;
}

/* ---- the handshake ---- */

static int read_key(const char *key, struct sg_ws_offer *ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) uint8_t *bytes = NULL;
    uint8_t digest[SG_SHA1_LEN];
    size_t len = 0;
    char text[KEY_LEN + sizeof GUID];

    if (!key || strlen(key) != KEY_LEN || sg_base64_decode(key, KEY_LEN, KEY_BYTES, &bytes, &len, NULL) < 0 || len != KEY_BYTES)
        return sg_error_field(err, SG_INVALID_REQUEST, "Sec-WebSocket-Key", "must be 16 bytes in base64");
    memcpy(text, key, KEY_LEN);
    memcpy(text + KEY_LEN, GUID, sizeof GUID);
    sg_sha1(text, sizeof text - 1, digest);
    sg_cleanup(sg_free_p) char *accept = sg_base64_encode(digest, sizeof digest, &len);
    if (!accept || len != SG_WS_ACCEPT_LEN)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the handshake");
    memcpy(ret->accept, accept, SG_WS_ACCEPT_LEN + 1);
    return 0;
}

int sg_ws_offer_read(const struct sg_header *headers, size_t n, struct sg_ws_offer *ret, struct sg_error *err)
{
    const char *version = single(headers, n, "Sec-WebSocket-Version");
    struct items it = {.headers = headers, .n = n, .name = "Sec-WebSocket-Protocol"};
    const char *item;
    size_t len;
    bool any = false;

    *ret = (struct sg_ws_offer){0};
    if (!lists(headers, n, "Connection", "upgrade") || !lists(headers, n, "Upgrade", "websocket") || !version || !sg_streq(version, "13"))
        return sg_error_set(err, SG_UPGRADE_REQUIRED, "this is a WebSocket: connect with Upgrade: websocket and Sec-WebSocket-Version: 13");
    while (next(&it, &item, &len)) {
        any = true;
        ret->protocol = ret->protocol || (len == strlen(SG_WS_PROTOCOL) && memcmp(item, SG_WS_PROTOCOL, len) == 0);
    }
    if (any && !ret->protocol)
        return sg_error_field(err, SG_INVALID_REQUEST, "Sec-WebSocket-Protocol", "offer " SG_WS_PROTOCOL ", or no subprotocol at all");
    return read_key(single(headers, n, "Sec-WebSocket-Key"), ret, err);
}

/* ---- the token ---- */

/* base64url without padding as a string; NULL when it is not that, or has a NUL. */
static char *decode(const char *text, size_t len)
{
    char std[SG_WS_TOKEN_MAX + 4];
    uint8_t *bytes = NULL;
    size_t n = 0;

    if (len == 0 || len > SG_WS_TOKEN_MAX)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '+' || text[i] == '/' || text[i] == '=')
            return NULL;
        std[i] = text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i];
    }
    while (len % 4 != 0)
        std[len++] = '=';
    if (sg_base64_decode(std, len, SG_WS_TOKEN_MAX, &bytes, &n, NULL) < 0)
        return NULL;
    char *token = memchr(bytes, '\0', n) ? NULL : sg_xstrndup((const char *)bytes, n);
    free(bytes);
    return token;
}

char *sg_ws_offer_token(const struct sg_header *headers, size_t n)
{
    struct items it = {.headers = headers, .n = n, .name = "Sec-WebSocket-Protocol"};
    const size_t prefix = strlen(SG_WS_TOKEN_PREFIX);
    const char *item;
    size_t len;

    while (next(&it, &item, &len))
        if (len > prefix && memcmp(item, SG_WS_TOKEN_PREFIX, prefix) == 0)
            return decode(item + prefix, len - prefix);
    return NULL;
}
