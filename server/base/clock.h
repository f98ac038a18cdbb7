/* Time. Deadlines and timers are milliseconds of CLOCK_BOOTTIME (they go on while the machine
 * sleeps); stamps shown to people are wall-clock microseconds. */
#ifndef SG_CLOCK_H
#define SG_CLOCK_H

#include <stdint.h>

int64_t sg_now_ms(void); /* CLOCK_BOOTTIME */
int64_t sg_now_us(void); /* CLOCK_BOOTTIME */
int64_t sg_wall_us(void); /* CLOCK_REALTIME */

/* "2026-11-29T13:26:09.123456Z" into out (at least 32 bytes). */
#define SG_TIME_LEN 32
void sg_time_format(int64_t wall_us, char out[SG_TIME_LEN]);

#endif
