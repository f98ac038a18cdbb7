"""What a greedy command takes until it is stopped; see escape_inside.py, whose runner this uses. Each says how much it got, and how much is too much."""
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import threading

import escape_inside
from escape_inside import Hole, NoControl, call, control, libc, refused

ATTEMPTS = {}
MIB = 1 << 20
ENOUGH = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EAGAIN, errno.EPERM, errno.EDQUOT, errno.ENOBUFS, errno.ETOOMANYREFS, errno.EINVAL)


def attempt(area):
    return escape_inside.attempt(area, ATTEMPTS)


def take(one, most, least=1):
    """Calls it until it is refused, at least `least` and at most `most` times; what it gave is kept till then."""
    kept = []
    while len(kept) <= most:
        try:
            kept.append(one(len(kept)))
        except OSError as e:
            control(len(kept) >= least, f"{len(kept)} only: {e}")
            control(e.errno in ENOUGH, str(e))
            return len(kept)
    raise Hole(f"more than {most}")


def fork():
    """What came before may not have been reaped yet; if that never happens, the runner's alarm ends it."""
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            os.sched_yield()


def go_first():
    """When memory is short, it is this process's turn and not the runner's."""
    escape_inside.spill("/proc/self/oom_score_adj", b"1000")


def killed(f):
    """f takes memory in a process of its own, which must not get through."""
    pid = fork()
    if pid == 0:
        try:
            go_first()
            f()
            os._exit(0)
        except (MemoryError, OSError, BufferError):
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        raise Hole("it got everything")


def fill(fd, total):
    block = b"x" * MIB
    for _ in range(total // MIB):
        if os.write(fd, block) != MIB:
            raise OSError(errno.ENOSPC, "full")


# ---- memory ----

@attempt("memory")
def memory_of_many_processes(h):
    def each():
        go_first()
        keep = bytearray(16 * MIB)
        keep[::4096] = b"x" * len(keep[::4096])
        signal.pause()
    children = []
    for _ in range(2 * h["memory"] // (16 * MIB)):
        pid = fork()
        if pid == 0:
            try:
                each()
            finally:
                os._exit(1)
        children.append(pid)
    if not h["counted"]:                                                        # the limit is of each process there
        killed(lambda: bytearray(2 * h["memory"]))
        return
    _, status = os.wait()
    control(os.WIFSIGNALED(status) or os.WEXITSTATUS(status) != 0, "one had to go")


@attempt("memory")
def memory_in_memfds(h):
    control(os.write(os.memfd_create("a"), b"x") == 1, "they are there")
    if h["counted"]:
        killed(lambda: [fill(os.memfd_create("a"), h["memory"] // 2) for _ in range(5)])


@attempt("memory")
def memory_in_shared_segments(h):
    def grow():
        libc.shmat.restype = ctypes.c_void_p
        for _ in range(4):
            id = libc.shmget(0, h["memory"] // 2, 0o1600)
            at = libc.shmat(id, None, 0)
            libc.shmctl(id, 0, None)                                            # it goes with its process
            ctypes.memset(at, 1, h["memory"] // 2)
    control(libc.shmget(0, 4096, 0o1600) >= 0, "they are there")
    if h["counted"]:
        killed(grow)


@attempt("memory")
def memory_in_shared_mappings(h):
    def grow():
        for _ in range(4):
            m = mmap.mmap(-1, h["memory"] // 2)
            for at in range(0, len(m), 4096):
                m[at] = 1
            kept.append(m)
    kept = []
    if h["counted"]:
        killed(grow)


@attempt("memory")
def memory_in_pipes(h):
    def one(_):
        r, w = os.pipe()
        os.set_blocking(w, False)
        try:
            fcntl.fcntl(w, 1031, MIB)                                           # F_SETPIPE_SZ
        except OSError as e:
            control(e.errno == errno.EPERM, str(e))                             # the user has enough of them
        return r, w, os.write(w, b"x" * fcntl.fcntl(w, 1032))

    def grow():
        kept = []
        while sum(k[2] for k in kept) < 2 * h["memory"]:
            kept.append(one(0))
    control(one(0)[2] >= 65536, "they are there")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if h["counted"]:
        killed(grow)


@attempt("memory")
def memory_in_socket_buffers(h):
    """What is sent and not received; of the machine's share for all sockets."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    block, kept, total = b"x" * MIB, [], 0
    for _ in range(60):
        try:
            a = socket.create_connection(listener.getsockname(), timeout=1)
            listener.settimeout(1)
            kept.append((a, listener.accept()[0]))
            a.setblocking(False)
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
            while True:
                total += a.send(block)
        except (BlockingIOError, TimeoutError):
            pass
        if h["counted"] and total > h["memory"]:
            raise Hole(f"{total} bytes of {h['memory']}")
    control(total > MIB, f"{total} bytes are under way")


@attempt("memory")
def memory_that_stays_locked(h):
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, 64 * MIB, 3, 0x22, -1, 0)
    control(libc.mlock(ctypes.c_void_p(at), 4096) == 0, "a little is allowed")
    refused(call, 149, at, 64 * MIB, errors=(errno.ENOMEM, errno.EPERM))
    refused(call, 151, 3, errors=(errno.ENOMEM, errno.EPERM))                   # mlockall


# ---- processes ----

@attempt("processes")
def threads(h):
    threading.stack_size(65536)
    stop, n = threading.Event(), 0
    try:
        for n in range(4 * h["pids"]):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        control(n > 4, f"{n} threads")
        return
    raise Hole(f"{n} threads")


@attempt("processes")
def processes_that_nobody_waits_for(h):
    def one(_):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return pid
    take(one, 4 * h["pids"], 4)


@attempt("processes")
def orphans(h):
    for _ in range(2 * h["pids"]):                                              # more than may be at once: they must be reaped
        pid = fork()
        if pid == 0:
            fork()
            os._exit(0)
        os.waitpid(pid, 0)


@attempt("processes")
def a_core_file(h):
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    control(hard <= 1, f"core files of {hard} bytes")
    os.makedirs("/tmp/cores", exist_ok=True)
    os.chdir("/tmp/cores")
    pid = fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    _, status = os.waitpid(pid, 0)
    control(os.WIFSIGNALED(status), "it crashed")
    if os.WCOREDUMP(status) and os.listdir("."):
        raise Hole(f"{os.listdir('.')}")


# ---- the disk ----

@attempt("disk")
def all_writable_places_together(h):
    total = 0
    for d in ("/workspace", "/home/sandbox", "/tmp", "/run", "/dev/shm"):
        fd = os.open(d + "/big", os.O_CREAT | os.O_WRONLY)
        try:
            fill(fd, 2 * h["disk"])
            raise Hole(d)
        except OSError as e:
            control(e.errno == errno.ENOSPC, str(e))
        total += os.fstat(fd).st_blocks * 512
    for d in ("/workspace", "/home/sandbox", "/tmp", "/run", "/dev/shm"):
        os.unlink(d + "/big")
    if not h["disk"] // 2 < total <= h["disk"]:
        raise Hole(f"{total} bytes")


@attempt("disk")
def space_set_aside(h):
    fd = os.open("/tmp/aside", os.O_CREAT | os.O_RDWR)
    try:
        refused(os.posix_fallocate, fd, 0, 4 * h["disk"], errors=(errno.ENOSPC,))
    finally:
        os.unlink("/tmp/aside")
    if os.fstat(fd).st_blocks * 512 > h["disk"]:
        raise Hole("it has it")


@attempt("disk")
def inodes(h):
    os.makedirs("/tmp/many")
    try:
        take(lambda n: os.mknod(f"/tmp/many/{n}"), 20000, 1000)
    finally:
        for name in os.listdir("/tmp/many"):
            os.unlink("/tmp/many/" + name)


@attempt("disk")
def directories_deeper_than_any_path(h):
    """They stay: the wipe of the slot must find its way."""
    os.makedirs("/tmp/deep")
    os.chdir("/tmp/deep")
    for _ in range(1000):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    refused(os.readlink, "/proc/self/cwd", errors=(errno.ENAMETOOLONG,))


@attempt("disk")
def holes_without_end(h):
    """Sparse files are as large as they say; nothing of them is there."""
    fd = os.open("/workspace/sparse", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 1 << 50)
    control(os.fstat(fd).st_blocks == 0, "it takes no space")


# ---- what the kernel counts ----

@attempt("kernel objects")
def descriptors(h):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    control(hard <= 65536, f"{hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    take(lambda n: os.dup(0), 65536, 100)


@attempt("kernel objects")
def sockets(h):
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
    take(lambda n: socket.socket(), 2048, 100)


@attempt("kernel objects")
def ports(h):
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))

    def one(_):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        s.listen(4096)
        return s
    take(one, 2048, 100)


@attempt("kernel objects")
def inotify(h):
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))

    def one(_):
        fd = libc.inotify_init1(0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return fd
    take(one, 8192, 0)


@attempt("kernel objects")
def timers(h):
    control(resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] >= 0, "there is a limit")
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (500, 500))
    take(lambda n: call(222, 1, None, ctypes.create_string_buffer(8)), 500)


@attempt("kernel objects")
def signals_that_wait(h):
    signal.pthread_sigmask(signal.SIG_BLOCK, {40})
    info = ctypes.create_string_buffer(struct.pack("iii", 40, 0, -1), 128)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (500, 500))
    take(lambda n: call(129, os.getpid(), 40, info), 500)


@attempt("kernel objects")
def message_queues(h):
    def one(n):
        fd = libc.mq_open(f"/q{n}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "mq_open")
        return fd
    take(one, 1024, 0)


@attempt("kernel objects")
def semaphores(h):
    def one(_):
        r = libc.semget(0, 8, 0o600)
        if r < 0:
            raise OSError(ctypes.get_errno(), "semget")
        made.append(r)
    made = []
    try:
        take(one, 32000)
    finally:
        for id in made:
            libc.semctl(id, 0, 0, None)


@attempt("kernel objects")
def asynchronous_io(h):
    """Contexts are counted once for the whole machine."""
    def one(_):
        context = ctypes.c_ulong(0)
        call(206, 8192, ctypes.byref(context))
        return context
    try:
        n = take(one, 4)
    except NoControl:
        return
    raise Hole(f"{n} times 8192 of the machine's")


@attempt("kernel objects")
def terminals(h):
    """Counted once for the whole machine, but for what each instance may have of them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    take(lambda n: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), 300, 8)


@attempt("kernel objects")
def processors(h):
    """They go on when the runner has ended, while the neighbours are asked how they are."""
    for _ in range(h["pids"] // 2):
        if fork() == 0:
            os.setpgid(0, 0)
            signal.alarm(h["seconds"])
            while True:
                pass


if __name__ == "__main__":
    escape_inside.main(ATTEMPTS)
