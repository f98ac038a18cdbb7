/* What slots are made of: disks, root file systems, many at a time. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "rig.h"

/* ---- directories of the host ---- */

static void dir_slot(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    struct sg_error err = {0};
    char path[128], victim[128], script[1024];
    rig_start(&r, flags);
    struct sg_slot_spec spec = rig_spec(4);
    spec.disk_dir = true;
    cr_assert_eq(rig_build(&r, &spec, &s, &err), 0, "%s", err.message);
    cr_expect_eq(s.b.disk, SG_MEANS_NONE);
    snprintf(victim, sizeof victim, "%s/victim", r.state);
    cr_assert_eq(sg_write_file(victim, "x", 1, 0666, &err), 0);
    cr_assert_eq(chmod(r.state, 0777), 0);
    /* A tree that resists removal and points out of itself. */
    snprintf(
        script, sizeof script,
        "cd /workspace && ln -s %s link && ln -s / root && ln -s .. up && mkdir -p a/b/c && touch a/b/c/f && "
        "chmod 0 a/b/c a/b a && mkfifo fifo && touch \"$(printf 'new\\nline')\" && mkdir -p deep && cd deep "
        "&& "
        "perl -e 'for (1..150) { mkdir \"d\" x 40; chdir \"d\" x 40 } open(F, \">end\")'; "
        "touch /tmp/t /home/sandbox/h /dev/shm/s; stat -c %%u:%%a /workspace /tmp",
        r.state);
    cr_assert_eq(rig_sh(&s, &res, script), 0, "%s", res.out);
    cr_expect_str_eq(res.out, "1000:755\n1000:1777\n");
    snprintf(path, sizeof path, "%s/slots/4/workspace/link", r.state);
    if (!(flags & RIG_USER_SERVER)) {
        struct stat st;
        cr_expect_eq(lstat(path, &st), 0);
        cr_expect_eq(st.st_uid, r.uid_base + 9, "owned by the commands' uid");
    }
    cr_assert_eq(rig_destroy(&r, &s, &err), 0, "%s", err.message);
    snprintf(path, sizeof path, "%s/slots/4", r.state);
    cr_expect(access(path, F_OK) < 0, "the directory is gone");
    cr_expect_eq(access(victim, F_OK), 0, "and nothing else");
    cr_assert_eq(rig_build(&r, &spec, &s, &err), 0, "%s", err.message);
    cr_expect_eq(
        rig_sh(&s, &res, "ls -A /workspace /tmp /home/sandbox /run | grep -v : | grep . && exit 1; true"), 0,
        "%s", res.out);
    cr_assert_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(files, directory_root_server)
{
    dir_slot(0);
}

Test(files, directory_ordinary_user)
{
    dir_slot(RIG_USER_SERVER);
}

/* ---- a configured root ---- */

static void make(const char *root, const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, dir);
    cr_assert_eq(sg_mkdirs(path, 0755, NULL), 0, "%s", path);
}

static void write_at(const char *root, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert_eq(sg_write_file(path, text, strlen(text), 0644, NULL), 0, "%s", path);
}

/* A root of links to the host's /usr would be no test of one, so it gets the static busybox, if there is one.
 */
static void image_slot(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    char image[128], *bytes = NULL, busybox[160], sh[160];
    size_t len;
    rig_prepare(&r, flags);
    if (sg_read_file("/bin/busybox", 16 << 20, &bytes, &len, NULL) < 0) {
        rig_stop(&r);
        cr_skip_test("no busybox");
    }
    snprintf(image, sizeof image, "%s/image", r.state);
    static const char *const dirs[] = {"bin",  "etc", "usr/share", "var/lib/thing",
                                       "proc", "tmp", "opt/tool",  "root"};
    for (size_t i = 0; i < SG_COUNT_OF(dirs); i++) {
        make(image, dirs[i]);
    }
    snprintf(busybox, sizeof busybox, "%s/bin/busybox", image);
    snprintf(sh, sizeof sh, "%s/bin/sh", image);
    cr_assert_eq(sg_write_file(busybox, bytes, len, 0755, &err), 0);
    cr_assert_eq(symlink("busybox", sh), 0);
    free(bytes);
    write_at(image, "etc/passwd", "image:x:0:0::/:/bin/sh\n");
    write_at(image, "etc/motd", "of the image\n");
    write_at(image, "opt/tool/data", "tool\n");
    const char *const images[] = {image, NULL};
    rig_config(&r, &cfg, flags);
    cfg.rootfs = images;
    cr_assert_eq(sg_spawner_start(&r.sp, &cfg, &err), 0, "%s", err.message);
    rig_attach(&r);
    struct sg_slot_spec spec = rig_spec(0);
    spec.rootfs = image;
    cr_assert_eq(rig_build(&r, &spec, &s, &err), 0, "%s", err.message);
    cr_expect_eq(
        rig_sh(&s, &res,
               "b=/bin/busybox; $b cat /etc/motd /opt/tool/data; $b whoami; $b ls /usr; $b ls -d "
               "/var/lib/thing; "
               "$b touch /workspace/x && echo writable; $b touch /etc/x /opt/x /var/x /x 2>/dev/null; "
               "$b ls /etc"),
        0, "%s", res.out);
    cr_expect_str_eq(res.out, "of the image\ntool\nsandbox\nshare\n/var/lib/thing\nwritable\nmotd\npasswd\n");
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(files, image_root_server)
{
    image_slot(0);
}

Test(files, image_ordinary_user)
{
    image_slot(RIG_USER_SERVER);
}

Test(files, environment_of_a_slot)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    rig_start(&r, RIG_USER_SERVER);
    rig_up(&r, 0, &s);
    cr_expect_eq(
        rig_sh(&s, &res,
               "hostname; cat /etc/hostname; df -P /workspace /home/sandbox /tmp /run /dev/shm | "
               "awk 'NR>1 {print $2}' | sort -u; stat -c %U /workspace; getent hosts localhost >/dev/null "
               "&& echo localhost; grep -E '^Sig(Blk|Ign)' /proc/self/status | grep -v 0000000000000000; "
               "test -t 0 || echo no tty; ulimit -c; tty; ls /proc/self/fd"),
        0, "%s", res.out);
    cr_expect_str_eq(res.out,
                     "sandbox\nsandbox\n65536\nsandbox\nlocalhost\nno tty\n0\nnot a tty\n0\n1\n2\n3\n");
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

/* ---- many ---- */

struct one {
    struct rig *r;
    unsigned n, rounds;
    bool failed;
};

static void *build_and_destroy(void *arg)
{
    struct one *o = arg;
    struct rig_slot s;
    struct rig_result res;
    for (unsigned i = 0; i < o->rounds; i++) {
        rig_up(o->r, o->n, &s);
        o->failed = o->failed || rig_sh(&s, &res, "test ! -e /tmp/x && touch /tmp/x") != 0;
        o->failed = o->failed || rig_destroy(o->r, &s, NULL) != 0;
    }
    return NULL;
}

static void side_by_side(unsigned flags)
{
    struct rig r;
    struct one ones[8];
    pthread_t threads[SG_COUNT_OF(ones)];
    rig_start(&r, flags);
    for (unsigned i = 0; i < SG_COUNT_OF(ones); i++) {
        ones[i] = (struct one){.r = &r, .n = i, .rounds = 4};
        cr_assert_eq(pthread_create(&threads[i], NULL, build_and_destroy, &ones[i]), 0);
    }
    for (unsigned i = 0; i < SG_COUNT_OF(ones); i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_expect_not(ones[i].failed);
    }
    rig_stop(&r);
}

Test(files, side_by_side_root_server)
{
    side_by_side(0);
}

Test(files, side_by_side_ordinary_user)
{
    side_by_side(RIG_USER_SERVER);
}

/* Slots do not see each other. */
Test(files, neighbours)
{
    struct rig r;
    struct rig_slot a, b;
    struct rig_result res;
    char script[512];
    int out;
    rig_start(&r, 0);
    rig_up(&r, 0, &a);
    rig_up(&r, 1, &b);
    rig_start_sh(
        &a, NULL,
        "echo secret >/workspace/s; echo secret >/tmp/s; echo secret >/dev/shm/s; echo up; exec sleep 777",
        &out);
    cr_assert(rig_readable(out, RIG_WAIT_MS));
    snprintf(
        script, sizeof script,
        "cat /workspace/s /tmp/s /dev/shm/s 2>/dev/null; ls /proc | grep -E '^[0-9]+$' | while read p; do tr "
        "'\\0' ' ' "
        "2>/dev/null </proc/$p/cmdline | grep -x 'sleep 777 '; done; kill -9 %d 2>/dev/null && echo killed; "
        "true",
        (int)a.b.agent_pid);
    cr_expect_eq(rig_sh(&b, &res, script), 0);
    cr_expect_str_empty(res.out, "%s", res.out);
    close(out);
    cr_expect_eq(rig_destroy(&r, &a, NULL), 0);
    cr_expect_eq(rig_sh(&b, &res, "echo alive"), 0);
    cr_expect_eq(rig_destroy(&r, &b, NULL), 0);
    rig_stop(&r);
}

static void probe(unsigned flags)
{
    struct rig r;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    rig_prepare(&r, flags);
    rig_config(&r, &cfg, flags);
    cr_expect_eq(sg_spawner_probe(&cfg, &err), 0, "%s", err.message);
    rig_stop(&r);
}

Test(files, probe_root_server)
{
    probe(0);
}

Test(files, probe_ordinary_user)
{
    probe(RIG_USER_SERVER);
}
