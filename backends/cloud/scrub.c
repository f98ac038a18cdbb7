#include "backends/cloud/scrub.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/base64.h"

#define TELLTALE 8U     /* so many characters of a secret in a row give it away */
#define TELLTALE_64 12U /* ... of its base64, which are 9 of its own */
#define TELLTALE_HEX 16U

/* Is any part of that many characters of secret (or all of a shorter one) in text? */
static bool has_part(const char *text, const char *secret, size_t part_len)
{
    size_t n = strlen(secret);
    char part[TELLTALE_HEX + 1] = "";

    for (size_t i = 0; i + part_len <= n; i++) {
        memcpy(part, secret + i, part_len);
        if (strstr(text, part))
            return true;
    }
    return n > 0 && n < part_len && strstr(text, secret);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place. */
static void undo_percent(char *s)
{
    char *to = s;

    for (; *s; s++) {
        int high = *s == '%' ? hex_digit(s[1]) : -1;
        int low = high >= 0 ? hex_digit(s[2]) : -1;
        if (low >= 0 && (high | low) != 0) {
            *to++ = (char)(high << 4 | low);
            s += 2;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* Both alphabets as one. */
static void unify_base64(char *s)
{
    for (; *s; s++)
        *s = (char)(*s == '-' ? '+' : *s == '_' ? '/' : *s);
}

/* before: how many bytes of something else come before it, modulo 3. */
static bool has_base64(const char *text, const char *secret, size_t before)
{
    sg_cleanup(sg_free_p) char *padded = sg_xasprintf("%.*s%s", (int)before, "::", secret);
    size_t len = strlen(padded), n = 0;
    sg_cleanup(sg_free_p) char *encoded = sg_base64_encode(padded, len - len % 3, &n);
    size_t skip = before > 0 ? 4 : 0; /* characters that depend on what comes before */
    bool found = n > skip + TELLTALE_64 && has_part(text, encoded + skip, TELLTALE_64);

    explicit_bzero(padded, len);
    explicit_bzero(encoded, n);
    return found;
}

static bool has_hex(const char *text, const char *secret)
{
    size_t n = strlen(secret);
    char *hex = sg_xcalloc(2 * n + 1, 1);
    char *lower = sg_xstrdup(text);

    for (size_t i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)(unsigned char)secret[i]);
    for (char *p = lower; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    bool found = n >= TELLTALE && has_part(lower, hex, TELLTALE_HEX);
    explicit_bzero(hex, 2 * n);
    free(hex);
    free(lower);
    return found;
}

bool sg_gives_away(const char *text, const char *secret)
{
    if (!secret || !secret[0])
        return false;
    sg_cleanup(sg_free_p) char *plain = sg_xstrdup(text);
    undo_percent(plain);
    if (has_part(text, secret, TELLTALE) || has_part(plain, secret, TELLTALE) || has_hex(text, secret))
        return true;
    unify_base64(plain);
    return has_base64(plain, secret, 0) || has_base64(plain, secret, 1) || has_base64(plain, secret, 2);
}
