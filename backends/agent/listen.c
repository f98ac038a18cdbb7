/* Whose is a port of the host's loopback? For an agent that has no network of its own: a lease's endpoints lead to what the lease started, not to
 * whatever else listens on the machine, other leases included. */
#include "backends/agent/inside.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTENERS_MAX 16U /* on one port; more is nobody's honest work */
#define STATE_LISTEN 0x0aU

struct listeners {
    unsigned long inodes[LISTENERS_MAX];
    bool ours[LISTENERS_MAX];
    size_t n;
    bool unclear;
};

/* ---- who listens; /proc/net/tcp has those first ---- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

/* Blanks, then a number; *s goes past it. False: there is none, or it is too large. */
static bool take_number(const char **s, int base, unsigned long *ret)
{
    const char *p = *s + strspn(*s, " ");
    const char *first = p;
    unsigned long v = 0;
    for (; digit_of(*p) < base; p++) {
        if (v > (~0UL - 16) / 16)
            return false;
        v = v * (unsigned long)base + (unsigned long)digit_of(*p);
    }
    *s = p;
    *ret = v;
    return p != first;
}

/* Words are in the machine's byte order, each four bytes of the address. */
static bool is_loopback_or_any(const char *hex, size_t digits)
{
    static const char *const v4[] = {"00000000", "0100007F"};
    static const char *const v6[] = {"00000000000000000000000000000000", "00000000000000000000000001000000",
                                     "0000000000000000FFFF00000100007F", "0000000000000000FFFF000000000000"};
    const char *const *all = digits == 8 ? v4 : v6;
    for (size_t i = 0; i < (digits == 8 ? 2U : 4U); i++)
        if (strncmp(hex, all[i], digits) == 0)
            return true;
    return false;
}

/* Would the listener of this address take a connection to the loopback address of the family? */
static bool would_take(int family, const char *hex, size_t digits)
{
    if (!is_loopback_or_any(hex, digits))
        return false;
    bool any = strspn(hex, "0") >= digits;
    bool mapped = digits == 32 && strncmp(hex + 16, "FFFF0000", 8) == 0;
    if (digits == 8)
        return family == AF_INET;
    return any || (family == AF_INET ? mapped : !mapped);
}

/* "  0: ADDRESS:PORT ADDRESS:PORT STATE TX:RX TR:WHEN RETRANSMITS UID TIMEOUT INODE ...". False: no listeners come any more. */
static bool take_line(struct listeners *l, const char *s, size_t digits, int family, unsigned port)
{
    unsigned long v, local, state;
    s = strchr(s, ':');
    if (s == NULL || s[1] != ' ')
        return true; /* the headline */
    const char *address = s + 2;
    if (strspn(address, "0123456789ABCDEF") != digits || address[digits] != ':')
        return true;
    s = address + digits + 1;
    if (!take_number(&s, 16, &local) || (s = strchr(s, ':')) == NULL)
        return true;
    s++;
    if (!take_number(&s, 16, &v) || !take_number(&s, 16, &state) || state != STATE_LISTEN)
        return false;
    if (local != port || !would_take(family, address, digits))
        return true;
    for (int field = 0; field < 5 && s != NULL; field++) /* TX:RX TR:WHEN RETRANSMITS UID TIMEOUT */
        s = strchr(s + strspn(s, " "), ' ');
    if (s == NULL || l->n == LISTENERS_MAX || !take_number(&s, 10, &l->inodes[l->n]))
        l->unclear = true;
    else
        l->n++;
    return true;
}

static void read_table(struct listeners *l, const char *path, size_t digits, int family, unsigned port)
{
    char line[512];
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL && take_line(l, line, digits, family, port))
        ;
    if (f != NULL)
        fclose(f);
}

/* ---- who holds it ---- */

static bool look_at_process(void *arg, pid_t pid)
{
    struct listeners *l = arg;
    char path[32], text[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, text, sizeof text - 1);
        if (n <= 0)
            continue;
        text[n] = '\0';
        if (strncmp(text, "socket:[", 8) != 0)
            continue;
        const char *number = text + 8;
        unsigned long inode = 0; /* which no socket has */
        (void)take_number(&number, 10, &inode);
        for (size_t i = 0; i < l->n; i++)
            l->ours[i] = l->ours[i] || l->inodes[i] == inode;
    }
    if (d != NULL)
        closedir(d);
    for (size_t i = 0; i < l->n; i++)
        if (!l->ours[i])
            return false;
    return true;
}

bool listen_is_ours(int family, uint16_t port, pid_t top)
{
    struct listeners l = {.n = 0};
    struct kin kin;
    if (family != AF_INET && family != AF_INET6)
        return false;
    if (family == AF_INET)
        read_table(&l, "/proc/net/tcp", 8, family, port);
    read_table(&l, "/proc/net/tcp6", 32, family, port);
    if (l.n == 0 || l.unclear || kin_open(&kin) < 0)
        return false;
    kin.top = top;
    return kin_each(&kin, look_at_process, &l);
}
