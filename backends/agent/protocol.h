/* clang-format off */
/* The wire between the server and the agent inside a local sandbox.
 *
 * Transport: SOCK_SEQPACKET, one message per packet, descriptors by SCM_RIGHTS. Both ends run on one kernel, so
 * integers are in host byte order. Every packet is a 16-byte header and a payload:
 *
 *     u8 version   u8 type   u16 nfds   u32 length (of the payload)   u64 id
 *
 * nfds is the number of descriptors that travel with the packet; length is exact. The id of a request is chosen
 * by the server, never 0, and never used twice on one connection; everything the agent says about that request
 * or that command carries it. A packet that does not decode completely, byte for byte, is a protocol violation:
 * the server declares the agent lost, the agent exits.
 *
 * Strings are `u32 n`, n bytes without NUL, one NUL. Payloads, in order of their fields:
 *
 *   HELLO         u32 pid, u32 isolation, u32 uid, u32 gid, u32 command uid, u32 command gid, u32 flags
 *                 (HELLO_...), u64 effective capabilities, u64 cookie of the network namespace (0: the kernel
 *                 cannot tell). First packet of the agent, id 0, before any command has run.
 *   SPAWN         u32 flags (SPAWN_...), u32 argc, u32 envc, u32 rows, u32 cols, u32 n; then n bytes: cwd NUL argv[0] NUL ...
 *                 env[0] NUL ... With SPAWN_BLOB the n bytes are in a sealed memfd instead (for what does not
 *                 fit a packet). Descriptors: [blob] [stdin with SPAWN_STDIN] stdout stderr [with SPAWN_GROUP:
 *                 directory of a cgroup v2 group, its cgroup.procs] [further tasks or cgroup.procs files, the
 *                 rest]. With SPAWN_TTY no stdin, stdout and stderr are passed: the command gets a new terminal of that
 *                 many rows and columns (else 0) as all three of them and as its controlling terminal. The command is born into
 *                 the group where clone3 allows it, else it writes itself into
 *                 cgroup.procs as it does with the rest. Answer STARTED or SPAWN_FAILED; EXITED follows STARTED.
 *   TERMINAL      nothing; descriptor: the master of the command's terminal, not blocking. Once before STARTED of a command with
 *                 SPAWN_TTY.
 *   STARTED       u32 pid (of the sandbox's namespace)
 *   SPAWN_FAILED  u32 stage, u32 errno
 *   EXITED        u32 status, u32 signal; exactly one of the two means something (signal 0: exited)
 *   SIGNAL        u32 signo, to the command's own process. The id is the command's. No answer.
 *   KILL          kills every descendant of a SPAWN_HELPER command, wherever it moved. The id is the command's.
 *                 No answer; EXITED comes for a running one.
 *
 *   Requests about files begin with u32 flags. With NO_LINKS in them no symbolic link is followed on the way to any
 *   path of the request (ELOOP). A condition is u32 kind, u32 n, n tags (u64 dev, u64 ino, i64 mtime_ns, i64 ctime_ns, u64 size): what must
 *   be known of the file that is replaced or removed, else SG_AGENT_ECONDITION and nothing was done.
 *
 *   OPEN          u32 how, condition, string path. Answer DONE, with one descriptor when it succeeded. A file opened with
 *                 OPEN_TEMP is new, empty and nameless (where the file system has no nameless files, its path is
 *                 DONE.text), in path's directory or the nearest one above it that exists. OPEN_SCRATCH: the same, but
 *                 nobody can ever give it a name. OPEN_CONTENT: only to a relay.
 *   COMMIT        u32 mode, i64 mtime_ns, condition, string path, string temp ("": nameless); descriptor: the
 *                 temp file. Gives it the name path, over what is there; directories are made. With COMMIT_APPEND its content is
 *                 appended to the file of that name, if there is one. Answer DONE with stat.
 *   STAT          string path (of a link itself). Answer DONE with stat; text: where a link points. With RESOLVE links are
 *                 followed, and text is the path without them.
 *   LIST          u32 most entries, u64 most bytes, string path, string after; descriptor: a memfd for the records, of the
 *                 names in byte order that come first behind after ("": of all).
 *                 Answer DONE, size: bytes of records in the memfd (struct sg_agent_record below).
 *   MKDIR         u32 mode, string path; with parents. Answer DONE with stat. With STAGE: a new directory of a name of its
 *                 own, in path or the nearest directory above it that exists; text: its path without links.
 *   RENAME        string from, string to; also from one file system to another. Parents of to are made. Answer DONE.
 *   REMOVE        condition, string path. Answer DONE.
 *   LINK          i64 mtime_ns, string path, string text; with SYMBOLIC a symbolic link that says text, else
 *                 a further name of the file text. Directories are made, what has the name path and is no directory is
 *                 replaced. Answer DONE.
 *   ATTRIBUTES    u32 mode, i64 mtime_ns, string path (of a directory or file). Answer DONE.
 *   MERGE         string from, string to, both directories (to may be missing): everything in from moves into to, directories
 *                 that both have are merged, other names are replaced; from is gone. EISDIR, ENOTDIR: a directory would
 *                 meet something else, nothing was moved. Answer DONE; text: the name below from that it failed for.
 *   SOCKET        u32 family, u32 port. Answer DONE with an unconnected, non-blocking TCP socket of the sandbox's network, for a
 *                 connection to that port of the loopback address. Outside of a namespace ECONNREFUSED, unless all who listen there
 *                 descend from the agent.
 *   RESIZE        u64 command, u32 rows, u32 cols: of a command's terminal. Only to a relay (relay.h), which has it. Answer DONE.
 *   LISTEN        u32 port. Answer DONE with a socket that listens there on 127.0.0.1 of the sandbox's network. The agent keeps it too, so that nobody
 *                 inside can take its place between two servers: the same port is the same socket. One port at a time; EPERM outside of a namespace.
 *   ACCEPT        nothing. Only to a relay, which has that socket. Answer DONE, once there is one, with the next connection.
 *   DONE          u32 error (0, an errno, or SG_AGENT_ENOTREG), u32 flags (DONE_...), u64 size, stat (u32 type of
 *                 S_IFMT, u32 mode, u32 uid, u32 0, u64 size, i64 mtime_ns, i64 ctime_ns, u64 ino, u64 dev), string text
 *
 * An agent in `slot` mode has one connected socket, inherited; its end of file is the order to exit, which takes
 * the whole PID namespace along. One in `listen` mode accepts a server, and after the end of file the next one: the running commands
 * of the one before are killed, their background children live on. Each of them gets a HELLO.
 */
/* clang-format on */
#ifndef SG_AGENT_PROTOCOL_H
#define SG_AGENT_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* How the spawner starts it:
 *
 *     sandgate-agent slot FD uid|dumpable [COMMAND_UID COMMAND_GID]
 *
 * FD: the connected SOCK_SEQPACKET socket. `uid`: the agent is uid 0 of its user namespace with at most
 * SETUID, SETGID, KILL, commands are COMMAND_UID (1000). `dumpable`: one uid for both, no further arguments.
 *
 * How a keeper (keeper.h) starts it, outside of any namespace, as the user that commands run as:
 *
 *     sandgate-agent host FD ROOT_FD
 *
 * ROOT_FD: the directory that is "/" for file requests and working directories, which cannot leave it. Commands see the host. At the
 * end of file the agent kills all that descends from it before it exits.
 *
 * How a container starts it, as its first process and user 0:
 *
 *     sandgate-agent listen|listen-relay DIRECTORY COMMAND_UID COMMAND_GID GRACE_MS [OWN...]
 *
 * It listens on SG_AGENT_SOCKET_NAME in DIRECTORY, which must keep commands away, and takes only a server from outside of its PID
 * namespace, or in mode listen-relay one of user 0, which is the relay (relay.h): the newest, as the server behind the one before may be gone
 * without a word. Without one for GRACE_MS it exits. The directories OWN are given to the command user. It needs SETUID, SETGID and KILL,
 * and until it listens what the rest takes (CHOWN, DAC_OVERRIDE).
 *
 * Exit codes: 0 end of file; 64 bad arguments; 70 protocol violation, overflow or an attacked helper; 71 the
 * sandbox lacks what the agent needs (a line on stderr says what). */
#define SG_AGENT_VERSION 2U
#define SG_AGENT_SOCKET_NAME "agent.sock" /* in listen mode */

#define SG_AGENT_HEADER 16U
#define SG_AGENT_PACKET_MAX (64U * 1024U) /* header and payload */
#define SG_AGENT_FDS_MAX 16U              /* in one packet */
#define SG_AGENT_TASKS_MAX 8U             /* further files a command joins */
#define SG_AGENT_ARGC_MAX 4096U
#define SG_AGENT_ENVC_MAX 2048U
#define SG_AGENT_SPAWN_BYTES_MAX (1536U * 1024U) /* cwd, argv and env together */
#define SG_AGENT_PATH_MAX 4095U                  /* without NUL */
#define SG_AGENT_TEXT_MAX SG_AGENT_PATH_MAX
#define SG_AGENT_TARGET_MAX 255U /* where a link points, cut */
#define SG_AGENT_LIST_BYTES_MAX (32U * 1024U * 1024U)
#define SG_AGENT_LIST_MAX 65536U /* entries of one LIST */
#define SG_AGENT_TTY_SIZE_MAX 65535U   /* rows, columns */
#define SG_AGENT_EXECS_MAX 1024U       /* live commands of one agent */
#define SG_AGENT_WORKERS_MAX 16U       /* long LISTs, REMOVEs and RENAMEs at the same time */
#define SG_AGENT_QUEUE_MAX 1024U       /* packets the agent holds for a server that does not read */
#define SG_AGENT_FDS_IN_FLIGHT_MAX 64U /* descriptors in those */

#define SG_AGENT_ENOTREG 10001U    /* a FIFO, device, socket, or a file of a pseudo file system */
#define SG_AGENT_ECONDITION 10002U /* the condition does not hold */
#define SG_AGENT_ENOSPOOL 10003U   /* an agent that is far (far.h): there is no room for a file on its way */
#define SG_AGENT_TAGS_MAX 16U      /* of one condition */

enum sg_agent_type {
    /* server to agent */
    SG_AGENT_SPAWN = 1,
    SG_AGENT_SIGNAL,
    SG_AGENT_KILL,
    SG_AGENT_OPEN,
    SG_AGENT_COMMIT,
    SG_AGENT_STAT,
    SG_AGENT_LIST,
    SG_AGENT_MKDIR,
    SG_AGENT_RENAME,
    SG_AGENT_REMOVE,
    SG_AGENT_SOCKET,
    SG_AGENT_LINK,
    SG_AGENT_ATTRIBUTES,
    SG_AGENT_MERGE,
    SG_AGENT_RESIZE,
    SG_AGENT_LISTEN,
    SG_AGENT_ACCEPT,
    /* agent to server */
    SG_AGENT_HELLO = 64,
    SG_AGENT_STARTED,
    SG_AGENT_SPAWN_FAILED,
    SG_AGENT_EXITED,
    SG_AGENT_DONE,
    SG_AGENT_TERMINAL,
};

enum sg_agent_isolation { SG_AGENT_UID = 1, SG_AGENT_DUMPABLE = 2, SG_AGENT_HOST = 3 };

#define SG_AGENT_HELLO_NO_NEW_PRIVS 1U
#define SG_AGENT_HELLO_NOT_DUMPABLE 2U

#define SG_AGENT_SPAWN_STDIN 1U  /* a stdin descriptor is passed; else the command reads end of file */
#define SG_AGENT_SPAWN_BLOB 2U   /* the strings are in a memfd */
#define SG_AGENT_SPAWN_HELPER 4U /* under a subreaper helper, for KILL */
#define SG_AGENT_SPAWN_GROUP 8U  /* into a cgroup v2 group */
#define SG_AGENT_SPAWN_TTY 16U   /* on a terminal of its own */
#define SG_AGENT_SPAWN_FLAGS 31U

enum sg_agent_stage {
    SG_AGENT_STAGE_FORK = 1,
    SG_AGENT_STAGE_CGROUP,
    SG_AGENT_STAGE_CWD,
    SG_AGENT_STAGE_USER,
    SG_AGENT_STAGE_TTY
};

enum sg_agent_how {
    SG_AGENT_OPEN_READ = 1,
    SG_AGENT_OPEN_APPEND,
    SG_AGENT_OPEN_TEMP,
    SG_AGENT_OPEN_SCRATCH,
    SG_AGENT_OPEN_CONTENT /* as READ; only to a relay (relay.h), which reads it */
};

/* With OPEN_CONTENT the answer's descriptor is a stream socket: what is wanted goes there, once, and comes. */
struct sg_agent_wanted {
    uint64_t first, len; /* len > 0 */
};

#define SG_AGENT_SET_MODE 1U   /* COMMIT: mode is the caller's, else 0644, or that of the file replaced; ATTRIBUTES */
#define SG_AGENT_COMMIT_NEW 2U /* only when there is nothing of that name: EEXIST */
#define SG_AGENT_COMMIT_APPEND 8U /* to what there is of that name, whole or not at all */
#define SG_AGENT_SET_MTIME 4U  /* COMMIT, LINK, ATTRIBUTES: mtime_ns is the caller's, else of COMMIT the present */
#define SG_AGENT_RECURSIVE 1U  /* LIST, REMOVE */
#define SG_AGENT_STAGE 1U      /* MKDIR */
#define SG_AGENT_SYMBOLIC 1U   /* LINK */
#define SG_AGENT_RESOLVE 1U    /* STAT */
#define SG_AGENT_NO_LINKS 16U  /* all of them */

/* What must be so of the file, before it is replaced or removed. */
enum sg_agent_kind { SG_AGENT_ALWAYS, SG_AGENT_EXISTS, SG_AGENT_ABSENT, SG_AGENT_MATCHES, SG_AGENT_DIFFERS };

struct sg_agent_tag {
    uint64_t dev, ino;
    int64_t mtime_ns, ctime_ns;
    uint64_t size;
};

struct sg_agent_condition {
    uint32_t kind;
    uint32_t n; /* tags of MATCHES and DIFFERS */
    struct sg_agent_tag tags[SG_AGENT_TAGS_MAX];
};

#define SG_AGENT_DONE_STAT 1U      /* stat is filled */
#define SG_AGENT_DONE_CREATED 2U   /* COMMIT: the name was new */
#define SG_AGENT_DONE_NAMED 4U     /* OPEN_TEMP: the temp file has a path, in text */
#define SG_AGENT_DONE_TRUNCATED 8U /* LIST: something is too deep to be listed */
#define SG_AGENT_DONE_MORE 16U     /* LIST: there are names behind the last one */
#define SG_AGENT_DONE_FLAGS 31U

struct sg_agent_stat {
    uint32_t type; /* S_IFMT bits */
    uint32_t mode; /* 07777 */
    uint32_t uid;  /* as the sandbox sees it */
    uint64_t size;
    int64_t mtime_ns, ctime_ns;
    uint64_t ino;
    uint64_t dev;
};

/* One message, either direction. Strings are borrowed: from the caller to encode, from the packet when
 * decoded. */
struct sg_agent_msg {
    enum sg_agent_type type;
    unsigned nfds;
    uint64_t id;
    union {
        struct {
            uint32_t pid, isolation, uid, gid, command_uid, command_gid, flags;
            uint64_t caps, netns_cookie;
        } hello;
        struct {
            uint32_t flags, argc, envc, rows, cols, len;
            const char *strings; /* len bytes; NULL with SG_AGENT_SPAWN_BLOB */
        } spawn;
        struct {
            uint32_t pid;
        } started;
        struct {
            uint32_t stage, error;
        } failed;
        struct {
            uint32_t status, signal;
        } exited;
        struct {
            uint32_t signo;
        } signal;
        struct {
            uint32_t flags;
            uint32_t how;  /* OPEN */
            uint32_t mode; /* COMMIT, MKDIR, ATTRIBUTES */
            uint32_t max_entries;
            uint64_t max_bytes;
            int64_t mtime_ns; /* COMMIT, LINK, ATTRIBUTES */
            struct sg_agent_condition condition; /* OPEN, COMMIT, REMOVE */
            const char *path;
            const char *path2; /* RENAME, MERGE: to; COMMIT: the temp file's, or ""; LINK: the text;
                                * LIST: after, or "" */
        } file;                /* OPEN COMMIT STAT LIST MKDIR RENAME REMOVE LINK ATTRIBUTES MERGE */
        struct {
            uint32_t family, port;
        } socket;
        struct {
            uint32_t port;
        } listen;
        struct {
            uint64_t command;
            uint32_t rows, cols;
        } resize;
        struct {
            uint32_t error, flags;
            uint64_t size;
            struct sg_agent_stat stat;
            const char *text;
        } done;
    } u;
};

/* Packs m (m->nfds included) into buf; its length, or 0 when it does not fit cap or breaks a limit. */
size_t sg_agent_encode(const struct sg_agent_msg *m, void *buf, size_t cap);

enum sg_agent_side { SG_AGENT_FROM_SERVER, SG_AGENT_FROM_AGENT };

/* Unpacks one packet of len bytes that came with nfds descriptors. 0, or -1 for anything but a message that
 * this side may send, complete, within the limits, with nothing after it and the right number of descriptors.
 */
int sg_agent_decode(const void *buf, size_t len, unsigned nfds, enum sg_agent_side from,
                    struct sg_agent_msg *m);
/* Is it, which cannot be unpacked, the HELLO of a program of another version? */
bool sg_agent_other_version(const void *buf, size_t len);

/* Splits the strings of a SPAWN. argv has room for argc + 1 pointers, envp for envc + 1; both get a NULL at
 * the end. 0, or -1 when the number of strings is not exactly 1 + argc + envc. */
int sg_agent_spawn_split(const char *strings, size_t len, uint32_t argc, uint32_t envc, const char **cwd,
                         char **argv, char **envp);

/* One entry of a LIST in the memfd: this, name_len bytes of name, target_len bytes of target, nothing
 * between. */
struct sg_agent_record {
    struct sg_agent_stat stat;
    uint32_t name_len;   /* 1 .. SG_AGENT_PATH_MAX; a path below the listed directory */
    uint32_t target_len; /* of a link, cut at SG_AGENT_TARGET_MAX */
};

/* Takes one record off *p (of *len bytes). 1: rec, *name, *target point into it; 0: nothing left; -1:
 * malformed. */
int sg_agent_record_next(const char **p, size_t *len, struct sg_agent_record *rec, const char **name,
                         const char **target);

/* Is a file system of this statfs type one whose files are never handed over (proc, sysfs, cgroup, fuse,
 * ...)? */
bool sg_agent_fs_refused(unsigned long f_type);

#endif
