/* The head of an HTTP/1.x response from a server nobody trusts (RFC 9112), parsed strictly.
 *
 * What two parsers could read differently is refused, not repaired: folded lines, blanks before a colon,
 * control characters, Content-Length beside Transfer-Encoding, any transfer coding but one `chunked`. A bare
 * LF ends a head line as well as CR LF does, because the head is always written anew for the client. No I/O,
 * no allocation; every limit is in this file.
 */
#ifndef SG_H1_RESPONSE_H
#define SG_H1_RESPONSE_H

#include "http/h1_body.h"

#define SG_H1_HEAD_MAX 65536U /* all interim heads and the final one together */
#define SG_H1_FIELDS_MAX 200U
#define SG_H1_INTERIM_MAX 8U

struct sg_h1_field {
    const char *name;  /* a token, as it was written */
    const char *value; /* no control characters but HTAB; blanks around it are cut */
};

struct sg_h1_head {
    int status;                                  /* 200 to 599, or 101 where that was asked for */
    int minor;                                   /* HTTP/1.minor, 0 or 1 (what is above 1 counts as 1) */
    struct sg_h1_field fields[SG_H1_FIELDS_MAX]; /* in order, duplicates kept */
    size_t n_fields;
    enum sg_h1_framing framing; /* of what follows on the wire */
    bool has_length;
    uint64_t length;  /* Content-Length; with has_length also for HEAD and 304, where no body follows */
    bool keep_alive;  /* the connection may carry another request after the body */
    int keep_alive_s; /* the server's `Keep-Alive: timeout=N`, or -1 */
};

/* Progress between calls for one response; {0} to begin. */
struct sg_h1_progress {
    size_t begin;   /* where the head that is being read begins (after interim ones) */
    size_t line;    /* where its first line that is not complete begins */
    size_t scanned; /* bytes looked at */
    unsigned interim;
    bool upgrade; /* caller's: the request asked for another protocol, so 101 ends the exchange of heads */
};

/* Looks for a whole head in buf[0..len), which holds everything that came so far and grows between calls at
 * the same content. head_request: the request was HEAD. Interim (1xx) heads are skipped. > 0: the head is
 * complete and that many bytes long; fields point into buf, whose head part was modified. 0: more bytes are
 * needed. -1: SG_ENDPOINT_FAILED with `reason`. A 101 must name the protocol in Upgrade. */
ssize_t sg_h1_head_parse(struct sg_h1_head *head, struct sg_h1_progress *progress, char *buf, size_t len,
                         bool head_request, struct sg_error *err);

/* The first field of that name (letter case does not matter), or NULL. */
const char *sg_h1_field_get(const struct sg_h1_head *head, const char *name);

/* Is token one of the comma-separated members of list (letter case does not matter)? */
bool sg_h1_list_has(const char *list, const char *token);

/* Is c a character of a token (RFC 9110, 5.6.2)? */
bool sg_h1_is_token(unsigned char c);

#endif
