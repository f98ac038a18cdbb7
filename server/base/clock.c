#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t now_us(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts); /* cannot fail for these clocks */
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t sg_now_us(void)
{
    return now_us(CLOCK_BOOTTIME);
}

int64_t sg_now_ms(void)
{
    return now_us(CLOCK_BOOTTIME) / 1000;
}

int64_t sg_wall_us(void)
{
    return now_us(CLOCK_REALTIME);
}

/* Decimal digits with leading zeros: every log line has a time, and printf costs more than the rest of it. */
static char *digits(char *out, unsigned v, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        out[i] = (char)('0' + v % 10);
        v /= 10;
    }
    return out + n;
}

static char *two(char *out, int v, char after)
{
    out = digits(out, (unsigned)v, 2);
    *out = after;
    return out + 1;
}

void sg_time_format(int64_t wall_us, char out[SG_TIME_LEN])
{
    int64_t us = wall_us % 1000000;
    time_t s = (time_t)(wall_us / 1000000);
    if (us < 0) {
        us += 1000000;
        s--;
    }
    struct tm tm;
    if (gmtime_r(&s, &tm) == NULL || tm.tm_year > 8099 || tm.tm_year < -1900) {
        (void)snprintf(out, SG_TIME_LEN, "1970-01-01T00:00:00.000000Z");
        return;
    }
    out = digits(out, (unsigned)(tm.tm_year + 1900), 4);
    *out++ = '-';
    out = two(out, tm.tm_mon + 1, '-');
    out = two(out, tm.tm_mday, 'T');
    out = two(out, tm.tm_hour, ':');
    out = two(out, tm.tm_min, ':');
    out = two(out, tm.tm_sec, '.');
    out = digits(out, (unsigned)us, 6);
    memcpy(out, "Z", 2);
}
