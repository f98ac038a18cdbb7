"""What hostile code tries from inside a sandbox: the table that test_escape.py goes through. Runs in the sandbox with python3 alone.

    python3 escape_inside.py FACTS.json NAME...

prints one JSON line per attempt: [name, "refused"] or [name, what went wrong]. Each attempt runs in a process of its own. It shows first that
it could succeed (the same thing done to itself works: control()), then that it does not (refused()).
"""
import array
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import stat
import struct
import sys
import traceback

ATTEMPTS = {}  # name -> (area, function)
SECONDS = 10


class Hole(Exception):
    """It worked."""


class NoControl(Exception):
    """It cannot be seen whether it was refused: what must work did not."""


def attempt(area, table=ATTEMPTS):
    def add(f):
        assert f.__name__ not in table, f.__name__
        table[f.__name__] = (area, f)
        return f
    return add


def control(good, what):
    if not good:
        raise NoControl(what)


def refused(f, *args, errors=(errno.EPERM, errno.EACCES)):
    """f must fail, with one of these errors."""
    try:
        r = f(*args)
    except OSError as e:
        if errors and e.errno not in errors:
            raise NoControl(f"{getattr(f, '__name__', f)}{args}: {e}")
        return
    raise Hole(f"{getattr(f, '__name__', f)}{args} gave {r!r}")


libc = ctypes.CDLL(None, use_errno=True)


def call(nr, *args):
    """A system call of x86-64 by number; OSError like os.*."""
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r == -1:
        e = ctypes.get_errno()
        raise OSError(e, f"system call {nr}: {os.strerror(e)}")
    return r


ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP)
READONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
GONE = (errno.ESRCH, errno.EPERM, errno.ENOENT, errno.EACCES)
NO_SUCH = (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENXIO, errno.ENODEV)


def slurp(path, flags=os.O_RDONLY):
    fd = os.open(path, flags | os.O_NONBLOCK)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def spill(path, data, flags=os.O_WRONLY):
    fd = os.open(path, flags | os.O_NONBLOCK)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def own(name, data=b"own"):
    path = f"/tmp/{name}-{os.getpid()}"
    with open(path, "wb") as f:
        f.write(data)
    return path


def sleeper():
    """A process of our own, to do to what is refused for others."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


# ---- the file system ----

@attempt("file system")
def a_host_file_by_its_path(h):
    control(slurp(own("f")) == b"own", "a file of one's own is read")
    refused(slurp, h["secret"], errors=ABSENT)
    refused(slurp, "/.." * 40 + h["secret"], errors=ABSENT)


@attempt("file system")
def a_host_file_through_links_of_proc(h):
    control(slurp("/proc/self/root" + own("f")) == b"own", "links of proc are followed")
    for p in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd", "task/" + p + "/root"):
            refused(slurp, f"/proc/{p}/{link}{h['secret']}", errors=ABSENT)


@attempt("file system")
def the_servers_state(h):
    refused(os.listdir, h["state"], errors=ABSENT)
    refused(os.open, h["state"] + "/sandgate.db", os.O_RDWR, errors=ABSENT)


@attempt("file system")
def a_root_left_open_behind_a_chroot(h):
    top = os.open("/", os.O_RDONLY)
    os.makedirs("/tmp/jail", exist_ok=True)
    refused(os.chroot, "/tmp/jail")
    os.fchdir(top)
    for _ in range(40):
        os.chdir("..")
    refused(slurp, "." + h["secret"], errors=ABSENT)


@attempt("file system")
def writing_below_the_system_directories(h):
    control(os.access("/usr/bin/env", os.R_OK), "they are read")
    for d in ("/", "/usr", "/usr/bin", "/bin", "/lib", "/etc", "/var", "/proc", "/dev", "/.sandgate"):
        refused(os.open, d + "/planted", os.O_CREAT | os.O_WRONLY, errors=READONLY + (errno.ENOENT,))
    for f in ("/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/ld.so.cache"):
        refused(os.open, f, os.O_WRONLY, errors=READONLY)
        refused(os.unlink, f, errors=READONLY)
        refused(os.rename, f, f + "2", errors=READONLY)
        refused(os.chmod, f, 0o777, errors=READONLY)


@attempt("file system")
def making_the_system_writable_again(h):
    refused(call, 165, b"none", b"/usr", b"none", 0x1020, None)     # MS_REMOUNT | MS_BIND
    refused(call, 442, -100, b"/usr", 0, b"\0" * 32, 32)            # mount_setattr
    refused(os.open, "/usr/planted", os.O_CREAT | os.O_WRONLY, errors=READONLY)


@attempt("file system")
def mapping_a_system_file_for_writing(h):
    fd = os.open(own("m", b"x" * 4096), os.O_RDWR)
    control(mmap.mmap(fd, 4096)[:1] == b"x", "a file of one's own is mapped")
    fd = os.open("/usr/bin/env", os.O_RDONLY)
    refused(mmap.mmap, fd, 4096)
    with mmap.mmap(fd, 4096, access=mmap.ACCESS_COPY) as m:
        m[0:4] = b"pwnd"
    control(slurp("/usr/bin/env")[:4] == b"\x7fELF", "a private mapping stays private")


@attempt("file system")
def the_agents_binary(h):
    control(os.path.exists("/.sandgate/agent"), "it is there")
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        refused(os.open, "/.sandgate/agent", flags, errors=READONLY + (errno.ETXTBSY,))
    refused(os.unlink, "/.sandgate/agent", errors=READONLY)
    refused(os.rename, own("agent"), "/.sandgate/agent", errors=READONLY + (errno.EXDEV,))
    refused(call, 165, own("bound").encode(), b"/.sandgate/agent", b"none", 0x1000, None)


@attempt("file system")
def a_hard_link_to_a_system_file(h):
    os.link(own("l"), own("l") + ".2")
    refused(os.link, "/usr/bin/passwd", "/tmp/passwd", errors=(errno.EXDEV, errno.EPERM, errno.ENOENT))
    refused(os.link, "/.sandgate/agent", "/tmp/agent", errors=(errno.EXDEV, errno.EPERM))


@attempt("file system")
def inodes_by_handle(h):
    top = os.open("/usr", os.O_RDONLY)
    for inode in range(1, 64):
        handle = struct.pack("IiIIII", 8, 1, inode, 0, 0, 0)
        refused(call, 304, top, handle, 0)
        refused(call, 304, top, struct.pack("Ii", 12, 1) + struct.pack("QI", inode, 0), 0)


@attempt("file system")
def capabilities_on_a_file(h):
    path = own("caps")
    try:
        os.setxattr(path, b"user.plain", b"1")
    except OSError as e:
        control(e.errno == errno.ENOTSUP, f"an attribute of its own: {e}")
    refused(os.setxattr, path, b"security.capability", struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0))
    refused(os.setxattr, path, b"trusted.x", b"1", errors=(errno.EPERM, errno.ENOTSUP))


@attempt("file system")
def giving_files_away(h):
    path = own("mine")
    os.chown(path, os.getuid(), os.getgid())
    for uid in (0, 1, 65534, h["uid"]):
        refused(os.chown, path, uid, -1, errors=(errno.EPERM, errno.EINVAL))
        refused(os.chown, path, -1, uid, errors=(errno.EPERM, errno.EINVAL))


@attempt("file system")
def immutable_files(h):
    fd = os.open(own("fixed"), os.O_RDONLY)
    refused(fcntl.ioctl, fd, 0x40086602, struct.pack("l", 0x10), errors=(errno.EPERM, errno.ENOTTY, errno.EOPNOTSUPP))


@attempt("file system")
def watching_the_whole_machine(h):
    control(libc.inotify_init1(0) >= 0, "inotify is there")
    for flags in (0, 4, 8, 0x10, 0x200):
        refused(call, 300, flags, 0)                                 # fanotify_init


# ---- /proc and /sys ----

@attempt("/proc")
def sysrq(h):
    refused(spill, "/proc/sysrq-trigger", b"c", errors=READONLY + (errno.ENOENT,))


@attempt("/proc")
def a_core_pattern_of_ones_own(h):
    control(slurp("/proc/sys/kernel/core_pattern") != b"", "it is read")
    refused(spill, "/proc/sys/kernel/core_pattern", b"|/tmp/x", errors=READONLY)
    for name in ("kernel/modprobe", "kernel/hotplug", "fs/binfmt_misc/register", "kernel/usermodehelper/bset", "vm/overcommit_memory", "kernel/ns_last_pid"):
        refused(spill, "/proc/sys/" + name, b"1", errors=READONLY + (errno.ENOENT,))


@attempt("/proc")
def memory_of_the_kernel(h):
    for p in ("/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmcore"):
        try:
            control(slurp(p) == b"", p + " holds something")
        except OSError:
            pass
    try:
        addresses = {l.split()[0] for l in slurp("/proc/kallsyms").splitlines()[:-1]}
    except OSError:
        return
    if addresses - {b"0" * 16}:
        raise Hole("addresses in kallsyms")


@attempt("/proc")
def the_kernels_log(h):
    refused(call, 103, 3, ctypes.create_string_buffer(4096), 4096)
    refused(slurp, "/dev/kmsg", errors=NO_SUCH)


@attempt("/proc")
def a_better_place_before_the_oom_killer(h):
    now = int(slurp("/proc/self/oom_score_adj"))
    control(spill("/proc/self/oom_score_adj", b"%d" % min(now + 1, 1000)), "a worse one is allowed")
    for worse in (-1, -500, -1000):                                  # than the server itself has
        refused(spill, "/proc/self/oom_score_adj", b"%d" % worse)


@attempt("/proc")
def another_map_of_users(h):
    for f in ("uid_map", "gid_map"):
        control(slurp("/proc/self/" + f).strip() != b"", "it has one")
        refused(spill, "/proc/self/" + f, b"0 0 4294967295")
    refused(spill, "/proc/self/setgroups", b"allow")


@attempt("/proc")
def what_others_on_the_machine_do(h):
    seen = [p for p in os.listdir("/proc") if p.isdigit()]
    control("1" in seen and str(os.getpid()) in seen, "it sees itself")
    if len(seen) > 16 or any(h["mark"].encode() in slurp(f"/proc/{p}/cmdline") for p in seen):
        raise Hole(f"processes: {seen}")
    for f in ("/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug"):
        try:
            if slurp(f):
                raise Hole(f + " says something")
        except OSError:
            pass


@attempt("/sys")
def the_tree_of_devices(h):
    for p in ("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/class/block", "/sys/kernel/debug", "/sys/firmware", "/sys/fs/cgroup/cgroup.procs"):
        refused(os.open, p, os.O_RDONLY, errors=ABSENT)
    if os.path.isdir("/sys") and os.listdir("/sys"):
        raise Hole(f"/sys holds {os.listdir('/sys')}")


# ---- namespaces ----

@attempt("namespaces")
def into_the_namespaces_of_the_first_process(h):
    for ns in ("mnt", "pid", "net", "user", "ipc", "uts", "cgroup"):
        control(os.readlink("/proc/self/ns/" + ns), "one's own are seen")
        try:
            fd = os.open("/proc/1/ns/" + ns, os.O_RDONLY)
        except OSError as e:
            control(e.errno in GONE, str(e))
            continue
        refused(call, 308, fd, 0)


@attempt("namespaces")
def into_those_of_a_pidfd(h):
    pid = sleeper()
    for fd in (call(434, pid, 0), call(434, os.getppid(), 0)):
        refused(call, 308, fd, 0x7e020000 & ~0x40000000)
        refused(call, 308, fd, 0x40000000)
    os.kill(pid, 9)


@attempt("namespaces")
def parents_of_namespaces(h):
    user, pid = (os.open("/proc/self/ns/" + n, os.O_RDONLY) for n in ("user", "pid"))
    control(fcntl.ioctl(user, 0xb703) == 0x10000000, "the kind is told")
    refused(fcntl.ioctl, user, 0xb702)                               # NS_GET_PARENT
    refused(fcntl.ioctl, pid, 0xb702)
    try:
        refused(call, 308, fcntl.ioctl(pid, 0xb701), 0x10000000)      # NS_GET_USERNS, then into it
    except OSError:
        pass


@attempt("namespaces")
def clone3_with_namespaces(h):
    for flags in (0x10000000, 0x20000, 0x10020000, 0x20000000, 0x40000000, 0x80):
        args = ctypes.create_string_buffer(struct.pack("11Q", flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0))
        ctypes.set_errno(0)
        r = libc.syscall(ctypes.c_long(435), args, ctypes.c_long(88))
        if r == 0:
            os._exit(77)
        if r > 0:
            raise Hole(f"clone3 {flags:x}")
        control(ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EINVAL), os.strerror(ctypes.get_errno()))


def dies_or_fails(f):
    """f in a process of its own: a signal or an error; f gives the result of the call."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if f() >= 0 else 1)
        except OSError:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        raise Hole("it worked")


@attempt("namespaces")
def calls_of_the_x32_kind(h):
    dies_or_fails(lambda: call(0x40000000 | 272, 0x10000000))         # unshare
    dies_or_fails(lambda: call(0x40000000 | 56, 0x10000011, 0, 0, 0, 0))


@attempt("namespaces")
def calls_of_thirty_two_bits(h):
    def unshare():
        code = b"\xb8\x36\x01\x00\x00" b"\xbb\x00\x00\x00\x10" b"\xcd\x80" b"\xc3"  # mov eax, 310; mov ebx, CLONE_NEWUSER; int 0x80; ret
        m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        m.write(code)
        return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
    dies_or_fails(unshare)


@attempt("namespaces")
def a_filter_that_allows_again(h):
    allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow)))
    call(317, 1, 0, program)                                          # seccomp: one more filter, which allows everything
    refused(call, 272, 0x10000000)
    refused(call, 157, 38, 0, 0, 0, 0, errors=(errno.EINVAL, errno.EPERM))  # PR_SET_NO_NEW_PRIVS 0


# ---- signals ----

@attempt("signals")
def a_host_process_by_its_number(h):
    pid = sleeper()
    os.kill(pid, 9)
    control(os.waitpid(pid, 0)[1] == 9, "one's own is killed")
    for p in h["pids"]:
        for f in (lambda: os.kill(p, 9), lambda: call(434, p, 0), lambda: call(234, p, p, 9), lambda: call(129, p, 9, b"\0" * 128)):
            if not os.path.exists(f"/proc/{p}"):
                refused(f, errors=GONE + (errno.EINVAL,))


@attempt("signals")
def forged_signals_to_the_agent(h):
    info = ctypes.create_string_buffer(struct.pack("iii", 9, 0, -6), 128)
    for nr, args in ((129, (1, 9, info)), (297, (1, 1, 9, info)), (200, (1, 9)), (234, (1, 1, 9)), (62, (1, 15))):
        try:
            call(nr, *args)
        except OSError:
            continue
        if h["kind"] == "root":
            raise Hole(f"{nr} was taken")                            # an ordinary user's agent is of one uid, and its filter has the say
        raise Hole(f"{nr} passed the filter")


@attempt("signals")
def signals_by_way_of_a_descriptor(h):
    a, b = socket.socketpair()
    got = []
    signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    fcntl.fcntl(a, 10, signal.SIGUSR1)                               # F_SETSIG
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid())
    b.send(b"x")
    control(got, "one signals oneself this way")
    fcntl.fcntl(a, 10, signal.SIGKILL)
    try:
        fcntl.fcntl(a, fcntl.F_SETOWN, 1)
    except OSError:
        return
    b.send(b"x")                                                     # the kernel asks again who may; the agent lives, as the runner sees


@attempt("signals")
def timers_that_signal_others(h):
    def timer(notify, tid):
        event = ctypes.create_string_buffer(struct.pack("Qiii", 0, 9, notify, tid), 64)
        return call(222, 0, event, ctypes.create_string_buffer(8))
    control(timer(0, 0) == 0, "one of its own")
    refused(timer, 4, 1, errors=(errno.EINVAL, errno.EPERM))          # SIGEV_THREAD_ID


@attempt("signals")
def the_agents_place_in_line(h):
    pid = sleeper()
    os.setpriority(os.PRIO_PROCESS, pid, 5)
    refused(os.setpriority, os.PRIO_PROCESS, 1, 19, errors=GONE)
    refused(os.sched_setaffinity, 1, {0}, errors=GONE)
    refused(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0), errors=GONE)
    refused(call, 251, 1, 1, 3 << 13, errors=GONE)                    # ioprio_set
    os.kill(pid, 9)


# ---- the agent ----

def agent_file(name, flags, self_works=True):
    def tried(h):
        if self_works:
            os.close(os.open("/proc/self/" + name, flags | os.O_NONBLOCK))
        refused(os.open, "/proc/1/" + name, flags | os.O_NONBLOCK, errors=READONLY + (errno.ENOENT,))
    tried.__name__ = "the_agents_" + name.replace("/", "_")
    return attempt("agent")(tried)


agent_file("mem", os.O_RDWR)
agent_file("environ", os.O_RDONLY)
agent_file("maps", os.O_RDONLY)
agent_file("pagemap", os.O_RDONLY)
agent_file("auxv", os.O_RDONLY)
agent_file("oom_score_adj", os.O_WRONLY)
agent_file("clear_refs", os.O_WRONLY)


@attempt("agent")
def the_agents_descriptors(h):
    fd = os.open(own("fd"), os.O_RDONLY)
    control(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY) >= 0, "one's own are opened again")
    refused(os.listdir, "/proc/1/fd")
    for n in range(64):
        refused(os.open, f"/proc/1/fd/{n}", os.O_RDWR | os.O_NONBLOCK, errors=GONE)
        refused(slurp, f"/proc/1/fdinfo/{n}", errors=GONE)


@attempt("agent")
def the_agents_threads(h):
    for p in ("task/1/mem", "task/1/environ", "task/1/stack", "task/1/syscall", "map_files"):
        refused(lambda: os.listdir("/proc/1/" + p) if p == "map_files" else slurp("/proc/1/" + p), errors=GONE)


@attempt("agent")
def tracing_the_agent(h):
    pid = sleeper()
    try:
        call(101, 16, pid, 0, 0)
        os.waitpid(pid, 0)
    except OSError as e:
        control(e.errno == errno.EPERM, str(e))                       # where Yama forbids it altogether
    for request in (16, 0x4206):
        refused(call, 101, request, 1, 0, 0, errors=GONE)
    os.kill(pid, 9)


@attempt("agent")
def the_agents_memory_by_call(h):
    here, there = ctypes.create_string_buffer(b"own", 8), ctypes.create_string_buffer(8)
    to = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(there), 8))
    of = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(here), 8))
    control(call(310, os.getpid(), to, 1, of, 1, 0) == 8 and there.value == b"own", "one's own is read")
    for nr in (310, 311):
        refused(call, nr, 1, to, 1, of, 1, 0, errors=GONE)


@attempt("agent")
def the_agents_socket_by_pidfd(h):
    try:
        fd = call(434, 1, 0)
    except OSError as e:
        control(e.errno in GONE, str(e))
        fd = call(434, os.getpid(), 0)
    for n in range(16):
        refused(call, 438, fd, n, 0)


@attempt("agent")
def the_agents_limits(h):
    old = ctypes.create_string_buffer(16)
    control(call(302, 0, 7, None, old) == 0, "one's own are read")
    for which in (0, 6, 7, 9):
        refused(call, 302, 1, which, struct.pack("QQ", 1, 1), None, errors=GONE)
        refused(call, 302, 1, which, None, old, errors=GONE)


@attempt("agent")
def the_agent_compared_moved_and_drained(h):
    refused(call, 312, 1, os.getpid(), 0, 0, 0, errors=GONE)          # kcmp
    refused(call, 279, 1, 0, None, None, None, 0, errors=GONE)        # move_pages
    refused(call, 256, 1, 1, b"\1" * 8, b"\1" * 8, errors=GONE)       # migrate_pages
    try:
        fd = call(434, 1, 0)
    except OSError:
        return
    refused(call, 440, fd, None, 0, 21, 0, errors=GONE + (errno.EINVAL,))  # process_madvise
    refused(call, 448, fd, 0, errors=GONE + (errno.EINVAL,))           # process_mrelease


@attempt("agent")
def descriptors_it_left_behind(h):
    fds = {n: os.readlink(f"/proc/{os.getppid()}/fd/{n}") for n in os.listdir(f"/proc/{os.getppid()}/fd")}
    control({"0", "1", "2"} <= set(fds), "the standard ones")
    for n, to in fds.items():
        if int(n) > 2 and not to.startswith(("pipe:", "/proc/", "/workspace")):
            raise Hole(f"{n} is {to}")


@attempt("agent")
def an_agent_of_ones_own(h):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(w, 1)
        os.dup2(w, 2)
        a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.set_inheritable(a.fileno(), True)
        os.execv("/.sandgate/agent", ["/.sandgate/agent", "slot", str(a.fileno()), "uid", "0", "0"])
    os.close(w)
    _, status = os.waitpid(pid, 0)                                    # it is not the first process, and has no rights to give
    control(os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0, f"status {status}: {os.read(r, 1000)}")


# ---- descriptor passing ----

@attempt("descriptor passing")
def credentials_of_somebody_else(h):
    a, b = socket.socketpair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    def send(pid, uid, gid):
        return a.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("iii", pid, uid, gid))])
    control(send(os.getpid(), os.getuid(), os.getgid()) == 1, "one's own are passed")
    for who in ((1, os.getuid(), os.getgid()), (os.getpid(), 0, 0), (1, 0, 0)):
        refused(send, *who, errors=(errno.EPERM, errno.EINVAL, errno.ESRCH))


@attempt("descriptor passing")
def more_descriptors_in_flight_than_may_be_open(h):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    def send(n):
        return a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * n))])
    control(send(1) == 1, "some are passed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for _ in range(3):
        try:
            send(250)
        except OSError as e:
            if e.errno == errno.ETOOMANYREFS:
                return
            raise
    raise Hole("750 of 64 are under way")


@attempt("descriptor passing")
def sockets_of_the_host_to_pass_to(h):
    here = [l.split()[-1] for l in slurp("/proc/net/unix").decode().splitlines()[1:] if "@" in l or "/" in l]
    if here:
        raise Hole(f"sockets with names: {here}")
    for path in ("/run/dbus/system_bus_socket", "/run/systemd/notify", "/var/run/docker.sock", "/run/containerd/containerd.sock", h["unix"]):
        refused(socket.socket(socket.AF_UNIX).connect, path, errors=ABSENT + (errno.ECONNREFUSED,))


# ---- the network ----

@attempt("network")
def services_of_the_host(h):
    s = socket.create_server(("127.0.0.1", 0))
    control(socket.create_connection(s.getsockname(), timeout=2), "one's own is reached")
    for address in h["addresses"]:
        for port in h["ports"]:
            t = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            t.settimeout(1)
            refused(t.connect, (address, port), errors=(errno.ENETUNREACH, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL))


@attempt("network")
def datagrams_to_the_outside(h):
    for address in ("192.0.2.1", "224.0.0.1", "255.255.255.255"):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        refused(s.sendto, b"x", (address, 53), errors=(errno.ENETUNREACH, errno.EPERM, errno.EACCES))


@attempt("network")
def sockets_of_the_machine(h):
    refused(socket.socket, 40, socket.SOCK_STREAM)                    # vsock
    refused(socket.socket, 38, socket.SOCK_SEQPACKET)                 # alg
    refused(socket.socket, 17, socket.SOCK_RAW, 0x300)                # packet
    refused(socket.socket, 16, socket.SOCK_RAW, 4)                    # sock_diag


@attempt("network")
def interfaces_made_or_changed(h):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16sH14x", b"lo", 0)
    flags = struct.unpack("16xH", fcntl.ioctl(s, 0x8913, request)[:18])[0]
    control(flags & 1, "lo is up and seen")
    refused(fcntl.ioctl, s, 0x8914, struct.pack("16sH14x", b"lo", 0))                                    # down
    refused(fcntl.ioctl, s, 0x8916, struct.pack("16sHH4s8x", b"lo", 2, 0, socket.inet_aton("10.9.8.7")))  # address
    n = socket.socket(16, socket.SOCK_RAW, 0)
    # RTM_NEWLINK, a dummy interface: create it
    info = struct.pack("HH", 9, 1) + b"dummy"
    link = struct.pack("HH", 4 + 12, 18) + info + b"\0" * (12 - len(info))
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + link
    n.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
    answer = n.recv(4096)
    kind, error = struct.unpack("H", answer[4:6])[0], struct.unpack("i", answer[16:20])[0]
    control(kind == 2, "the kernel answers")
    if error != -errno.EPERM:
        raise Hole(f"a new interface: {error}")


@attempt("network")
def marks_and_repairs_of_sockets(h):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    refused(s.setsockopt, socket.SOL_SOCKET, 36, 1)                    # SO_MARK
    refused(s.setsockopt, socket.IPPROTO_TCP, 19, 1)                   # TCP_REPAIR
    refused(s.setsockopt, socket.SOL_SOCKET, 33, 1 << 30)              # SO_RCVBUFFORCE
    refused(s.setsockopt, socket.IPPROTO_IP, 64, b"\0" * 40, errors=(errno.EPERM, errno.ENOPROTOOPT))  # IPT_SO_SET_REPLACE


# ---- keyrings and what IPC shares ----

@attempt("keyrings")
def keys_of_the_host(h):
    for nr, args in ((248, (b"user", b"x", b"y", 1, -3)), (249, (b"user", b"sandgate", None, -3)), (250, (1, None)), (250, (0, -4, 1)),
                     (250, (11, -5, None, 0)), (250, (8, -3, -4))):
        refused(call, nr, *args)


@attempt("keyrings")
def shared_memory_of_the_host(h):
    control(libc.shmget(0, 4096, 0o1600) >= 0, "one's own is made")
    refused(lambda: call(29, h["shm"], 0, 0), errors=(errno.ENOENT,))
    refused(slurp, "/dev/shm/" + h["shm_name"], errors=(errno.ENOENT,))
    if len(slurp("/proc/sysvipc/shm").splitlines()) > 2:
        raise Hole("segments of others are listed")


@attempt("keyrings")
def message_queues_of_the_host(h):
    control(libc.msgget(0, 0o1600) >= 0, "one's own is made")
    refused(lambda: call(68, h["msg"], 0), errors=(errno.ENOENT,))
    refused(lambda: call(240, h["shm_name"].encode(), 0, 0, None), errors=(errno.ENOENT,))  # mq_open


# ---- devices ----

@attempt("devices")
def what_dev_holds(h):
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "core", "console"}
    here = set(os.listdir("/dev"))
    control({"null", "zero", "urandom"} <= here, "the usual ones")
    if here - harmless:
        raise Hole(f"{here - harmless}")
    for name in here:
        st = os.stat("/dev/" + name) if os.path.exists("/dev/" + name) else None
        if st and (stat.S_ISBLK(st.st_mode) or (stat.S_ISCHR(st.st_mode) and os.major(st.st_rdev) not in (1, 5, 136))):
            raise Hole(f"{name}: {st}")


@attempt("devices")
def devices_made_by_hand(h):
    os.mkfifo(f"/tmp/fifo-{os.getpid()}")
    for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 7, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 10, 229),
                               (stat.S_IFCHR, 10, 200), (stat.S_IFCHR, 1, 11)):
        refused(os.mknod, f"/tmp/dev-{os.getpid()}", kind | 0o666, os.makedev(major, minor))


@attempt("devices")
def devices_by_name(h):
    for name in ("mem", "kmem", "port", "sda", "vda", "kvm", "fuse", "net/tun", "loop-control", "loop0", "vhost-vsock", "userfaultfd", "cpu/0/msr", "hpet",
                 "mapper/control", "btrfs-control", "nvme0", "snd", "input/event0", "dri/card0"):
        refused(os.open, "/dev/" + name, os.O_RDWR | os.O_NONBLOCK, errors=NO_SUCH + (errno.ENOTDIR,))


@attempt("devices")
def the_pool_of_randomness(h):
    fd = os.open("/dev/urandom", os.O_RDWR)
    control(len(os.read(fd, 8)) == 8, "it is read")
    refused(fcntl.ioctl, fd, 0x40085203, struct.pack("ii4s", 32, 4, b"abcd"))  # RNDADDENTROPY
    refused(fcntl.ioctl, fd, 0x5206)                                            # RNDCLEARPOOL
    refused(fcntl.ioctl, fd, 0x5207)                                            # RNDRESEEDCRNG


@attempt("devices")
def terminals_of_others(h):
    master, slave = os.openpty()
    control(os.ttyname(slave).startswith("/dev/pts/"), "one's own is made")
    if set(os.listdir("/dev/pts")) - {"ptmx", os.path.basename(os.ttyname(slave))}:
        raise Hole(f"{os.listdir('/dev/pts')}")
    for request in (0x5412, 0x541C, 0x5423, 0x541D, 1 << 32 | 0x5412):
        refused(call, 16, slave, request, ctypes.create_string_buffer(b"x"))


# ---- more rights ----

@attempt("setuid")
def becoming_somebody_else(h):
    uid, gid = os.getuid(), os.getgid()
    os.setresuid(uid, uid, uid)
    for id in (0, 1, 65534):
        refused(os.setuid, id, errors=(errno.EPERM, errno.EINVAL))
        refused(os.setresuid, id, id, id, errors=(errno.EPERM, errno.EINVAL))
        refused(os.setgid, id, errors=(errno.EPERM, errno.EINVAL))
    refused(os.setgroups, [0])
    call(122, 0)
    control(call(122, uid) in (uid, 0), "setfsuid answers")
    control(uid == os.getuid() != 0, "it is who it was")


@attempt("setuid")
def capabilities_by_asking(h):
    head = struct.pack("Ii", 0x20080522, 0)
    control(call(125, head, ctypes.create_string_buffer(24)) == 0, "they are read")
    refused(call, 126, head, struct.pack("6I", *[0xffffffff] * 6))
    for cap in (0, 1, 6, 7, 12, 21, 24):
        refused(call, 157, 47, 2, cap, 0, 0)                                    # PR_CAP_AMBIENT_RAISE
        refused(call, 157, 24, cap, 0, 0, 0)                                    # PR_CAPBSET_DROP needs SETPCAP


@attempt("setuid")
def programs_with_the_bit_set(h):
    found = [p for d in ("/usr/bin", "/usr/sbin", "/usr/lib/dbus-1.0", "/usr/lib/openssh") if os.path.isdir(d)
             for p in (os.path.join(d, n) for n in os.listdir(d)) if os.path.isfile(p) and os.stat(p).st_mode & 0o6000]
    copy = own("id")
    with open("/usr/bin/id", "rb") as f, open(copy, "wb") as g:
        g.write(f.read())
    os.chmod(copy, 0o6755)
    control(os.stat(copy).st_mode & 0o4000 and os.popen(copy + " -u").read().strip() == str(os.getuid()), "a copy runs as its caller")
    control(slurp("/proc/self/status").find(b"NoNewPrivs:\t1") >= 0, "no new privileges")
    for p in found[:6]:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open("/dev/null", os.O_RDWR), 0), os.dup2(0, 1), os.dup2(0, 2)
            os.execv(p, [p, "--help"])
        with open(f"/proc/{pid}/status") as f:
            uids = next(l for l in f if l.startswith("Uid:")).split()[1:]
        if "0" in uids:
            raise Hole(p)
        os.kill(pid, 9)


@attempt("setuid")
def ports_of_the_processor(h):
    refused(call, 173, 0x80, 1, 1)                                              # ioperm
    refused(call, 172, 3)                                                       # iopl
    refused(call, 154, 1, b"\0" * 16, 16)                                       # modify_ldt
    refused(call, 135, 0x400000)                                                # personality READ_IMPLIES_EXEC


@attempt("setuid")
def the_clock(h):
    import time
    control(time.clock_gettime(time.CLOCK_REALTIME) > 0, "it is read")
    refused(time.clock_settime, time.CLOCK_REALTIME, 1.0)
    refused(call, 159, struct.pack("Iiq", 1, 0, 1) + b"\0" * 200)               # adjtimex ADJ_OFFSET
    refused(call, 305, 0, struct.pack("Iiq", 2, 0, 1) + b"\0" * 200)            # clock_adjtime


# ---- control groups and limits ----

@attempt("cgroup")
def leaving_the_group(h):
    groups = slurp("/proc/self/cgroup").decode()
    control(groups != "", "it is in some")
    if h["group"] != "/" and h["group"] in groups:
        raise Hole("the server's own is named: " + groups)
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/cgroup"):
        refused(os.open, top + "/cgroup.procs", os.O_WRONLY, errors=ABSENT)


@attempt("cgroup")
def a_release_agent(h):
    os.makedirs("/tmp/cg", exist_ok=True)
    for kind, options in ((b"cgroup", b"memory"), (b"cgroup", b"none,name=x"), (b"cgroup2", None)):
        refused(call, 165, b"none", b"/tmp/cg", kind, 0, options)
    refused(call, 430, b"cgroup2", 0)                                           # fsopen


@attempt("cgroup")
def higher_limits(h):
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(which)
        resource.setrlimit(which, (soft, hard))
        control(hard != resource.RLIM_INFINITY, "there is one")
        try:
            resource.setrlimit(which, (hard + 1, hard + 1))
        except (ValueError, OSError):
            continue
        raise Hole(f"limit {which} above {hard}")


@attempt("cgroup")
def before_everybody_else(h):
    refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))
    refused(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1))
    refused(os.setpriority, os.PRIO_PROCESS, 0, -10)
    refused(call, 251, 1, 0, 1 << 13)                                           # ioprio_set, real time
    refused(call, 314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**6, 10**7, 10**7), 0)  # SCHED_DEADLINE


# ---- calls that nobody in a sandbox needs ----

@attempt("system calls")
def programs_in_the_kernel(h):
    refused(call, 321, 0, b"\0" * 64, 64)
    refused(call, 298, struct.pack("IIQ", 1, 112, 0) + b"\0" * 96, 0, -1, -1, 0)
    refused(call, 323, 0)
    for nr in (425, 426, 427):
        refused(call, nr, 1, b"\0" * 128, 0, 0, 0, 0)


@attempt("system calls")
def the_machine_itself(h):
    for nr, args in ((169, (0xfee1dead, 672274793, 0)), (246, (0, 0, None, 0)), (320, (-1, -1, 0, b"", 0)), (313, (-1, b"", 0)), (175, (b"", 0, b"")),
                     (176, (b"x", 0)), (167, (b"/tmp/x", 0)), (168, (b"/tmp/x",)), (163, (b"/tmp/x",)), (179, (0, b"/", 0, None)), (153, ()),
                     (170, (b"x", 1)), (171, (b"x", 1))):
        refused(call, nr, *args)


@attempt("system calls")
def calls_without_a_name_yet(h):
    for nr in list(range(457, 480)) + [1000, 0x7fffffff, 0x40000001]:
        refused(call, nr, 0, 0, 0, 0, 0, 0, errors=(errno.ENOSYS,))


# ---- the runner ----

def run(f, facts):
    r, w = os.pipe()
    while True:
        try:
            pid = os.fork()
            break
        except BlockingIOError:  # what came before may not have been reaped yet
            os.sched_yield()
    if pid == 0:
        os.setpgid(0, 0)
        signal.alarm(SECONDS)
        try:
            f(facts)
            out = "refused"
        except Hole as e:
            out = f"HOLE: {e}"
        except NoControl as e:
            out = f"no control: {e}"
        except BaseException:
            out = "broken: " + traceback.format_exc()[-1500:]
        os.write(w, out.encode())
        os._exit(0)
    os.close(w)
    _, status = os.waitpid(pid, 0)
    try:
        os.killpg(pid, signal.SIGKILL)  # what it left
    except OSError:
        pass
    os.set_blocking(r, False)
    try:
        return os.read(r, 8192).decode() or f"broken: ended with status {status}"
    except BlockingIOError:
        return f"broken: ended with status {status} and left something"
    finally:
        os.close(r)


def main(table):
    with open(sys.argv[1]) as given:
        facts = json.load(given)
    for name in sys.argv[2:] or table:
        print(json.dumps([name, run(table[name][1], facts)]), flush=True)


if __name__ == "__main__":
    main(ATTEMPTS)
