#include "model/exec.h"

#include <signal.h>
#include <stdio.h>

#include "base/str.h"

const char *sg_killed_by_name(enum sg_killed_by k)
{
    static const char *const names[] = {
        [SG_KILLED_CALLER] = "caller", [SG_KILLED_TIMEOUT] = "timeout", [SG_KILLED_LEASE_END] = "lease_end",
        [SG_KILLED_HANGUP] = "hangup", [SG_KILLED_OOM] = "oom",
    };
    return k == SG_KILLED_NOT ? NULL : names[k];
}

/* Linux numbers its signals 1 to 31; 32 and 33 belong to the C library, real-time ones follow. */
static const char *const names[] = {
    NULL,        "SIGHUP",  "SIGINT",  "SIGQUIT", "SIGILL",    "SIGTRAP", "SIGABRT", "SIGBUS",
    "SIGFPE",    "SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2",   "SIGPIPE", "SIGALRM", "SIGTERM",
    "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP",   "SIGTTIN", "SIGTTOU", "SIGURG",
    "SIGXCPU",   "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",  "SIGPWR",  "SIGSYS",
};

/* Kernel numbers 32 to 64, counted from the C library's SIGRTMIN (34). */
#define REAL_TIME_FIRST 32
#define REAL_TIME_LAST 64
static const char *const real_time_names[REAL_TIME_LAST - REAL_TIME_FIRST + 1] = {
    "SIGRTMIN-2",  "SIGRTMIN-1",  "SIGRTMIN",    "SIGRTMIN+1",  "SIGRTMIN+2",  "SIGRTMIN+3",  "SIGRTMIN+4",
    "SIGRTMIN+5",  "SIGRTMIN+6",  "SIGRTMIN+7",  "SIGRTMIN+8",  "SIGRTMIN+9",  "SIGRTMIN+10", "SIGRTMIN+11",
    "SIGRTMIN+12", "SIGRTMIN+13", "SIGRTMIN+14", "SIGRTMIN+15", "SIGRTMIN+16", "SIGRTMIN+17", "SIGRTMIN+18",
    "SIGRTMIN+19", "SIGRTMIN+20", "SIGRTMIN+21", "SIGRTMIN+22", "SIGRTMIN+23", "SIGRTMIN+24", "SIGRTMIN+25",
    "SIGRTMIN+26", "SIGRTMIN+27", "SIGRTMIN+28", "SIGRTMIN+29", "SIGRTMIN+30",
};

const char *sg_signal_name(int signal)
{
    if (signal > 0 && signal < (int)SG_COUNT_OF(names)) {
        return names[signal];
    }
    if (signal >= REAL_TIME_FIRST && signal <= REAL_TIME_LAST) {
        return real_time_names[signal - REAL_TIME_FIRST];
    }
    return "SIG?";
}

int sg_signal_parse(const char *s)
{
    int64_t number;
    if (sg_parse_int(s, 1, REAL_TIME_LAST, &number)) {
        return (int)number;
    }
    for (int i = 1; i <= REAL_TIME_LAST; i++) {
        const char *name = sg_signal_name(i);
        if (sg_streq(s, name) || sg_streq(s, name + strlen("SIG"))) {
            return i;
        }
    }
    return 0;
}
