/* What the reverse proxy does to request and response heads. Pure; any thread. */
#ifndef SG_PROXY_HEAD_H
#define SG_PROXY_HEAD_H

#include "base/buf.h"
#include "http/h1_response.h"
#include "http/request.h"

#define SG_PROXY_HEAD_MAX ((size_t)256 * 1024)

struct sg_proxy_request {
    const char *method;
    const char *target;              /* what the service gets: path and query, byte for byte */
    const struct sg_header *headers; /* the client's */
    size_t n_headers;
    uint16_t port;
    int64_t content_length; /* -1: chunked, 0: no body */
    const char *request_id;
    const char *peer;        /* the client's address, "" unknown */
    const char *proto;       /* "http" or "https", as the client sees us */
    const char *prefix;      /* the public path before `target`; "" on the host form */
    bool own_origin;         /* host form: cookies are the service's, and so is the origin */
    bool drop_authorization; /* it is a credential of ours */
    bool drop_api_key;       /* likewise */
    bool trailers;           /* the client takes trailers */
    const char *upgrade;     /* the protocols that are asked for, NULL: none */
};

/* Splits a raw target "/leases/ID/proxy/PORT..." (also under /v1): *ret_prefix_len bytes are the prefix, the
 * rest is the service's, which may be "" or begin with '?'. */
int sg_proxy_split(const char *target, size_t *ret_prefix_len, struct sg_error *err);

/* Writes the head for the service: its own Host, Content-Length or chunked, our forwarding headers, and
 * everything of the client's that is neither hop-by-hop nor ours. */
int sg_proxy_request_head(const struct sg_proxy_request *q, struct sg_buf *out, struct sg_error *err);

/* The protocols a client asks to switch to, as the value of Upgrade; caller frees. NULL: it asks for none. HTTP/2
 * is left out: over a tunnel it would be requests that nobody looks at. */
char *sg_proxy_upgrade(const struct sg_header *headers, size_t n);

/* What is known of the client's side. */
struct sg_proxy_side {
    bool own_origin; /* host form */
    bool trailers;   /* it takes trailers */
};
/* May field i of the service's answer pass to the client? */
bool sg_proxy_field_passes(const struct sg_h1_head *head, size_t i, const struct sg_proxy_side *to);

/* Does the client take trailers (TE)? */
bool sg_proxy_takes_trailers(const struct sg_header *headers, size_t n);
/* May a trailer of that name pass? Only what says something about the body: nothing that frames or routes the message, proves who
 * somebody is, or that a recipient must know before the body (RFC 9110, 6.5.1). */
bool sg_proxy_trailer_passes(const char *name);

/* The public form of a Location that points at the service itself, for a service on `port` whose public path
 * is prefix; caller frees. NULL: it points elsewhere or is relative, and stays as it is. */
char *sg_proxy_location(const char *value, const char *prefix, uint16_t port);
/* The same for a service with an origin of its own ("https://host"), where paths are what they are. */
char *sg_proxy_own_location(const char *value, const char *origin, uint16_t port);

#endif
