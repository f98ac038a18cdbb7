/* Terminals of commands, of the sandbox's own devpts. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* As the kernel makes them, but for an erase key that takes whole characters. */
static int set_up(int fd, uint32_t rows, uint32_t cols)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    struct termios t;
    if (ioctl(fd, TIOCSWINSZ, &size) != 0 || tcgetattr(fd, &t) != 0)
        return -1;
    t.c_iflag |= IUTF8;
    return tcsetattr(fd, TCSANOW, &t);
}

int terminal_open(uint32_t rows, uint32_t cols, int *master)
{
    int unlocked = 0;
    int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (m < 0)
        return -errno;
    int fd = ioctl(m, TIOCSPTLCK, &unlocked) != 0 ? -1 : ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || set_up(fd, rows, cols) != 0) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        close(m);
        return -e;
    }
    *master = m;
    return fd;
}
