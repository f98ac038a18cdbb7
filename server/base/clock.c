#include "base/clock.h"

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

static char *two(char *out, unsigned v, char after)
{
    out = digits(out, v, 2);
    *out = after;
    return out + 1;
}

struct date {
    int64_t year;
    unsigned month, day;
};

/* The day of the Gregorian calendar, counted from 1970-01-01. Years begin with March here, so that a leap day is their last, and 400 of
 * them have the same number of days wherever they begin. */
static struct date date_of(int64_t days)
{
    days += 719468; /* from 0000-03-01 */
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    unsigned day = (unsigned)(days - era * 146097);
    unsigned year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    unsigned of_year = day - (365 * year + year / 4 - year / 100);
    unsigned month = (5 * of_year + 2) / 153;
    struct date d = {.year = (int64_t)year + era * 400,
                     .month = month < 10 ? month + 3 : month - 9,
                     .day = of_year - (153 * month + 2) / 5 + 1};
    d.year += d.month <= 2;
    return d;
}

void sg_time_format(int64_t wall_us, char out[SG_TIME_LEN])
{
    int64_t us = wall_us % 1000000;
    int64_t s = wall_us / 1000000;
    if (us < 0) {
        us += 1000000;
        s--;
    }
    int64_t days = s / 86400;
    int64_t of_day = s % 86400;
    if (of_day < 0) {
        of_day += 86400;
        days--;
    }
    struct date d = date_of(days);
    if (d.year < 0 || d.year > 9999) {
        d = (struct date){1970, 1, 1};
        us = of_day = 0;
    }
    out = digits(out, (unsigned)d.year, 4);
    *out++ = '-';
    out = two(out, d.month, '-');
    out = two(out, d.day, 'T');
    out = two(out, (unsigned)of_day / 3600, ':');
    out = two(out, (unsigned)of_day / 60 % 60, ':');
    out = two(out, (unsigned)of_day % 60, '.');
    out = digits(out, (unsigned)us, 6);
    memcpy(out, "Z", 2);
}
