/* Builds, ends and exec groups on many threads at a time; for ThreadSanitizer, and useful without it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include "backends/spawner/cgroup.h"
#include "backends/spawner/spawner.h"
#include "base/clock.h"
#include "base/fd.h"

#define SLOTS 4
#define ROUNDS 5

static void check(bool ok, const char *what, const struct sg_error *err)
{
    if (!ok) {
        (void)fprintf(stderr, "failed: %s: %s\n", what, err != NULL ? err->message : "");
        abort();
    }
}

struct one {
    struct sg_spawner *sp;
    struct sg_reactor *reactor;
    struct sg_task build, destroy, free_groups;
    uint32_t n;
    struct sg_slot_built b;
    struct sg_cgroups *groups;
    sem_t done;
};

static struct one *one_of(struct sg_task *t, size_t offset)
{
    return (struct one *)((char *)t - offset);
}

static void wait_for(struct one *o)
{
    while (sem_wait(&o->done) < 0) {
        check(errno == EINTR, "sem_wait", NULL);
    }
}

static void built(void *arg, struct sg_slot_built *b, const struct sg_error *err)
{
    struct one *o = arg;
    check(err == NULL, "build", err);
    o->b = *b;
    check(sem_post(&o->done) == 0, "sem_post", NULL);
}

static void destroyed(void *arg, const struct sg_error *err)
{
    struct one *o = arg;
    check(err == NULL, "destroy", err);
    check(sem_post(&o->done) == 0, "sem_post", NULL);
}

static void do_build(struct sg_task *t)
{
    struct one *o = one_of(t, offsetof(struct one, build));
    const struct sg_slot_spec spec = {
        .slot = o->n, .disk_bytes = 1 << 20, .deadline_ms = sg_now_ms() + 30000};
    sg_spawner_build(o->sp, &spec, built, o);
}

static void do_destroy(struct sg_task *t)
{
    struct one *o = one_of(t, offsetof(struct one, destroy));
    sg_spawner_destroy(o->sp, o->n, destroyed, o);
}

static void do_free_groups(struct sg_task *t)
{
    struct one *o = one_of(t, offsetof(struct one, free_groups));
    o->groups = sg_cgroups_free(o->groups);
    check(sem_post(&o->done) == 0, "sem_post", NULL);
}

/* Two threads of each slot take, kill and give back groups at the same time. */
static void *use_groups(void *arg)
{
    struct one *o = arg;
    for (unsigned i = 0; i < 50 && o->groups != NULL; i++) {
        struct sg_error err = {0};
        struct sg_cgroup *g[3];
        for (unsigned k = 0; k < SG_COUNT_OF(g); k++) {
            check(sg_cgroups_acquire(o->groups, &g[k], &err) == 0, "acquire", &err);
        }
        if (i % 3 == 0) {
            sg_cgroup_kill(g[1]);
        }
        for (unsigned k = 0; k < SG_COUNT_OF(g); k++) {
            sg_cgroup_release(g[k]);
        }
    }
    return NULL;
}

static void *live(void *arg)
{
    struct one *o = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct sg_error err = {0};
        pthread_t other;
        sg_reactor_post(o->reactor, &o->build);
        wait_for(o);
        if (o->b.cgroup_fd >= 0) {
            check(sg_cgroups_new(&o->groups, o->reactor, sg_steal_fd(&o->b.cgroup_fd), o->b.agent_uid,
                                 &err) == 0,
                  "groups", &err);
        }
        check(pthread_create(&other, NULL, use_groups, o) == 0, "thread", NULL);
        use_groups(o);
        check(pthread_join(other, NULL) == 0, "join", NULL);
        sg_reactor_post(o->reactor, &o->free_groups);
        wait_for(o);
        sg_slot_built_finish(&o->b);
        sg_reactor_post(o->reactor, &o->destroy);
        wait_for(o);
    }
    return NULL;
}

static void died(void *arg)
{
    (void)arg;
    check(false, "the spawner died", NULL);
}

int main(void)
{
    char state[] = "/tmp/sg-stress-spawner-XXXXXX";
    struct sg_error err = {0};
    struct sg_spawner *sp;
    struct sg_reactor *reactor;
    static struct one ones[SLOTS];
    pthread_t threads[SLOTS];
    check(mkdtemp(state) != NULL, "mkdtemp", NULL);
    const struct sg_spawner_config cfg = {.state_dir = state,
                                          .agent_path = AGENT_PATH,
                                          .uid_base = 400000000U + 4096U * (uint32_t)(getpid() % 400000)};
    check(sg_spawner_start(&sp, &cfg, &err) == 0, "start", &err);
    check(sg_reactor_new(&reactor, &err) == 0, "reactor", &err);
    check(sg_spawner_attach(sp, reactor, died, NULL, &err) == 0, "attach", &err);
    for (uint32_t i = 0; i < SLOTS; i++) {
        ones[i] = (struct one){.sp = sp,
                               .reactor = reactor,
                               .n = i,
                               .build.run = do_build,
                               .destroy.run = do_destroy,
                               .free_groups.run = do_free_groups};
        check(sem_init(&ones[i].done, 0, 0) == 0, "sem_init", NULL);
        check(pthread_create(&threads[i], NULL, live, &ones[i]) == 0, "thread", NULL);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        check(pthread_join(threads[i], NULL) == 0, "join", NULL);
        (void)sem_destroy(&ones[i].done);
    }
    sg_spawner_free(sp);
    sg_reactor_free(reactor);
    int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(sg_remove_tree(tmp, state + strlen("/tmp/"), &err) == 0, "clean up", &err);
    sg_close(tmp);
    return 0;
}
