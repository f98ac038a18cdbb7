/* Hosts and addresses, as rules and requests name them: one canonical form, so that no other way to write an address gets past a rule. */
#ifndef SG_EGRESS_HOST_H
#define SG_EGRESS_HOST_H

#include <netinet/in.h>

#include "base/base.h"

#define SG_HOST_MAX 256U /* with NUL */

struct sg_host {
    char text[SG_HOST_MAX];  /* lower case, no dot at the end; an address as the system writes it */
    bool is_address;
    struct in6_addr address; /* IPv4 as ::ffff:a.b.c.d */
};

/* "example.com", "10.0.0.1" or "[2001:db8::1]". False for what is none of them, also for numbers that some programs take for addresses
 * ("127.1", "0x7f000001", "0177.0.0.1"), zones and names that are too long. */
bool sg_host_parse(const char *text, size_t len, struct sg_host *ret);
/* HOST:PORT. port 0 in *ret_port: there is no port (and no colon). */
bool sg_host_port_parse(const char *text, size_t len, struct sg_host *ret, uint16_t *ret_port);
/* "host:port", brackets around IPv6 addresses. */
void sg_host_port_format(const struct sg_host *h, uint16_t port, char out[SG_HOST_MAX + 8]);

/* Is it an address of the public Internet? Loopback, link-local, private, shared, multicast and reserved ones are not,
 * nor IPv6 ones that stand for such an IPv4 address. */
bool sg_address_is_public(const struct in6_addr *a);
bool sg_address_equal(const struct in6_addr *a, const struct in6_addr *b);
/* The IPv4 or IPv6 socket address of it; its length. */
socklen_t sg_address_to(const struct in6_addr *a, uint16_t port, struct sockaddr_storage *ret);
/* False for families other than IPv4 and IPv6. */
bool sg_address_from(const struct sockaddr *sa, struct in6_addr *ret);

#endif
