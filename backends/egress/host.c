#include "backends/egress/host.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

#define LABEL_MAX 63U
#define NAME_MAX_LEN 253U

static bool is_v4(const struct in6_addr *a)
{
    return IN6_IS_ADDR_V4MAPPED(a);
}

static void set_v4(struct in6_addr *a, const void *four)
{
    *a = (struct in6_addr){.s6_addr[10] = 0xff, .s6_addr[11] = 0xff};
    memcpy(&a->s6_addr[12], four, 4);
}

static void write_address(struct sg_host *h)
{
    if (is_v4(&h->address)) {
        (void)inet_ntop(AF_INET, &h->address.s6_addr[12], h->text, sizeof h->text);
    } else {
        (void)inet_ntop(AF_INET6, &h->address, h->text, sizeof h->text);
    }
}

/* ---- names ---- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* A name whose last label is a number would be taken for an address by some. */
static bool ends_in_number(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *last = dot != NULL ? dot + 1 : name;
    if (strspn(last, "0123456789") == strlen(last)) {
        return true;
    }
    return last[0] == '0' && last[1] == 'x' && strspn(last + 2, "0123456789abcdef") == strlen(last + 2);
}

static bool labels_ok(const char *name)
{
    size_t in_label = 0;
    for (const char *p = name;; p++) {
        if (*p == '.' || *p == '\0') {
            if (in_label == 0 || in_label > LABEL_MAX) {
                return false;
            }
            in_label = 0;
            if (*p == '\0') {
                return true;
            }
        } else if (!is_name_char(*p)) {
            return false;
        } else {
            in_label++;
        }
    }
}

static bool parse_name(struct sg_host *ret)
{
    size_t n = strlen(ret->text);
    for (size_t i = 0; i < n; i++) {
        if (ret->text[i] >= 'A' && ret->text[i] <= 'Z') {
            ret->text[i] = (char)(ret->text[i] + ('a' - 'A'));
        }
    }
    if (n > 0 && ret->text[n - 1] == '.') {
        ret->text[--n] = '\0';
    }
    struct in_addr four;
    if (inet_pton(AF_INET, ret->text, &four) == 1) {
        ret->is_address = true;
        set_v4(&ret->address, &four);
        write_address(ret);
        return true;
    }
    return n > 0 && n <= NAME_MAX_LEN && labels_ok(ret->text) && !ends_in_number(ret->text);
}

bool sg_host_parse(const char *text, size_t len, struct sg_host *ret)
{
    *ret = (struct sg_host){.is_address = false};
    if (len == 0 || len >= sizeof ret->text || memchr(text, '\0', len) != NULL) {
        return false;
    }
    if (text[0] != '[') {
        memcpy(ret->text, text, len);
        return parse_name(ret);
    }
    if (len < 4 || text[len - 1] != ']') {
        return false;
    }
    memcpy(ret->text, text + 1, len - 2);
    if (inet_pton(AF_INET6, ret->text, &ret->address) != 1) {
        return false;
    }
    ret->is_address = true;
    write_address(ret);
    return true;
}

bool sg_host_port_parse(const char *text, size_t len, struct sg_host *ret, uint16_t *ret_port)
{
    const char *host_end = text + len;
    const char *bracket = len > 0 && text[0] == '[' ? memchr(text, ']', len) : NULL;
    const char *from = bracket != NULL ? bracket + 1 : text;
    const char *colon = memchr(from, ':', (size_t)(host_end - from));
    *ret_port = 0;
    if (colon != NULL) {
        char digits[6];
        int64_t port;
        size_t n = (size_t)(host_end - colon) - 1;
        if (n == 0 || n >= sizeof digits || strspn(colon + 1, "0123456789") < n) {
            return false;
        }
        memcpy(digits, colon + 1, n);
        digits[n] = '\0';
        if (!sg_parse_int(digits, 1, 65535, &port)) {
            return false;
        }
        *ret_port = (uint16_t)port;
        host_end = colon;
    }
    return sg_host_parse(text, (size_t)(host_end - text), ret);
}

void sg_host_port_format(const struct sg_host *h, uint16_t port, char out[SG_HOST_MAX + 8])
{
    bool brackets = h->is_address && !is_v4(&h->address);
    (void)snprintf(out, SG_HOST_MAX + 8, "%s%.*s%s:%u", brackets ? "[" : "", (int)SG_HOST_MAX - 1, h->text, brackets ? "]" : "",
                   (unsigned)port);
}

/* ---- addresses ---- */

struct range {
    unsigned char first[16];
    unsigned bits;
};

static bool in_range(const unsigned char *a, const struct range *r)
{
    unsigned whole = r->bits / 8, rest = r->bits % 8;
    if (memcmp(a, r->first, whole) != 0) {
        return false;
    }
    unsigned mask = rest > 0 ? (0xffU << (8 - rest)) & 0xffU : 0;
    return rest == 0 || ((unsigned)(a[whole] ^ r->first[whole]) & mask) == 0;
}

static const struct range v4_special[] = {
    {{0}, 8},              /* "this" network */
    {{10}, 8},             /* private */
    {{100, 64}, 10},       /* shared by providers */
    {{127}, 8},            /* loopback */
    {{169, 254}, 16},      /* link-local, and what clouds tell their machines */
    {{172, 16}, 12},       /* private */
    {{192, 0, 0}, 24},     /* protocols */
    {{192, 88, 99}, 24},   /* 6to4 relays */
    {{192, 168}, 16},      /* private */
    {{198, 18}, 15},       /* benchmarks */
    {{224}, 3},            /* multicast, reserved, broadcast */
};

/* Outside of 2000::/3 nothing is public but what stands for an IPv4 address. */
static const struct range v6_special[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23}, /* protocols, Teredo */
    {{0x20, 0x02}, 16},             /* 6to4 */
};

static bool v4_is_public(const unsigned char *four)
{
    for (size_t i = 0; i < SG_COUNT_OF(v4_special); i++) {
        if (in_range(four, &v4_special[i])) {
            return false;
        }
    }
    return true;
}

bool sg_address_is_public(const struct in6_addr *a)
{
    static const struct range nat64 = {{0x00, 0x64, 0xff, 0x9b}, 96}, global = {{0x20}, 3};
    if (is_v4(a) || in_range(a->s6_addr, &nat64)) {
        return v4_is_public(&a->s6_addr[12]);
    }
    for (size_t i = 0; i < SG_COUNT_OF(v6_special); i++) {
        if (in_range(a->s6_addr, &v6_special[i])) {
            return false;
        }
    }
    return in_range(a->s6_addr, &global);
}

bool sg_address_equal(const struct in6_addr *a, const struct in6_addr *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

socklen_t sg_address_to(const struct in6_addr *a, uint16_t port, struct sockaddr_storage *ret)
{
    *ret = (struct sockaddr_storage){.ss_family = AF_UNSPEC};
    if (is_v4(a)) {
        struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&in4.sin_addr, &a->s6_addr[12], 4);
        memcpy(ret, &in4, sizeof in4);
        return sizeof in4;
    }
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = *a};
    memcpy(ret, &in6, sizeof in6);
    return sizeof in6;
}

bool sg_address_from(const struct sockaddr *sa, struct in6_addr *ret)
{
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in4;
        memcpy(&in4, sa, sizeof in4);
        set_v4(ret, &in4.sin_addr);
        return true;
    }
    if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        *ret = in6.sin6_addr;
        return true;
    }
    return false;
}
