#include <criterion/criterion.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/reactor.h"

static struct sg_reactor *reactor;
static sem_t done;

static void setup(void)
{
    struct sg_error err = {0};
    cr_assert_eq(sem_init(&done, 0, 0), 0);
    cr_assert_eq(sg_reactor_new(&reactor, &err), 0, "%s", err.message);
}

static void teardown(void)
{
    reactor = sg_reactor_free(reactor);
    sem_destroy(&done);
}

TestSuite(reactor, .init = setup, .fini = teardown, .timeout = 30);

/* Runs fn on the reactor thread and waits for it. */
struct call {
    struct sg_task task;
    void (*fn)(void);
    sem_t sem;
};

static void call_run(struct sg_task *t)
{
    struct call *c = (struct call *)t;
    c->fn();
    sem_post(&c->sem);
}

static void on_reactor(void (*fn)(void))
{
    struct call c = {.task.run = call_run, .fn = fn};
    sem_init(&c.sem, 0, 0);
    sg_reactor_post(reactor, &c.task);
    sem_wait(&c.sem);
    sem_destroy(&c.sem);
}

/* ---- tasks ---- */

static struct sg_task tasks[3];
static int order[8];
static atomic_int runs;

static void note_order(struct sg_task *t)
{
    cr_assert(sg_reactor_is_current(reactor));
    order[runs++] = (int)(t - tasks);
}

static void post_all_from_inside(void)
{
    for (int i = 0; i < 3; i++) {
        tasks[i].run = note_order;
        sg_reactor_post(reactor, &tasks[i]);
        sg_reactor_post(reactor, &tasks[i]); /* still queued: not a second time */
    }
}

static void nothing(void)
{
}

Test(reactor, tasks_run_once_in_order)
{
    cr_assert_not(sg_reactor_is_current(reactor));
    on_reactor(post_all_from_inside);
    on_reactor(nothing);
    cr_assert_eq(runs, 3);
    cr_assert(order[0] == 0 && order[1] == 1 && order[2] == 2);
    sg_reactor_post(reactor, &tasks[1]); /* may be queued again once it ran */
    on_reactor(nothing);
    cr_assert_eq(runs, 4);
}

static void again(struct sg_task *t)
{
    if (++runs < 1000)
        sg_reactor_post(reactor, t);
    else
        sem_post(&done);
}

static void again_soon(struct sg_timer *t)
{
    static struct sg_task task = {.run = again};
    (void)t;
    sg_reactor_post(reactor, &task);
}

static void start_again_soon(void)
{
    static struct sg_timer timer = {.fire = again_soon};
    sg_timer_set(reactor, &timer, sg_now_ms() + 20);
}

/* Nobody else rings: what the reactor's own callbacks and tasks post must not be slept over. */
Test(reactor, own_posts_need_no_other_event)
{
    on_reactor(start_again_soon);
    sem_wait(&done);
    cr_assert_eq(runs, 1000);
}

static void count(struct sg_task *t)
{
    (void)t;
    runs++;
}

Test(reactor, free_runs_what_was_posted)
{
    static struct sg_task many[100];
    for (size_t i = 0; i < SG_COUNT_OF(many); i++) {
        many[i].run = count;
        sg_reactor_post(reactor, &many[i]);
    }
    reactor = sg_reactor_free(reactor);
    cr_assert_eq(runs, 100);
}

/* ---- timers ---- */

static struct sg_timer timers[200];
static int64_t fired_at[200];
static atomic_int fired;
static int fire_order[200];

static void timer_fire(struct sg_timer *t)
{
    int i = (int)(t - timers);
    fired_at[i] = sg_now_ms();
    fire_order[fired++] = i;
    if (fired == 100) {
        sem_post(&done);
    }
}

static void arm_timers(void)
{
    int64_t now = sg_now_ms();
    for (int i = 0; i < 200; i++) {
        timers[i].fire = timer_fire;
        sg_timer_set(reactor, &timers[i], now + (i * 7919) % 200 / 4);
    }
    for (int i = 0; i < 200; i += 2) {
        sg_timer_cancel(reactor, &timers[i]);
        sg_timer_cancel(reactor, &timers[i]);
    }
    for (int i = 1; i < 200; i += 2) {
        sg_timer_set(reactor, &timers[i], timers[i].due_ms + 1); /* re-arming moves it */
    }
}

Test(reactor, timers_fire_once_in_order_and_not_early)
{
    on_reactor(arm_timers);
    sem_wait(&done);
    on_reactor(nothing);
    cr_assert_eq(fired, 100);
    for (int i = 0; i < 100; i++) {
        struct sg_timer *t = &timers[fire_order[i]];
        cr_assert_eq(fire_order[i] % 2, 1, "cancelled ones do not fire");
        cr_assert_geq(fired_at[fire_order[i]], t->due_ms);
        cr_assert(i == 0 || timers[fire_order[i - 1]].due_ms <= t->due_ms);
        cr_assert_eq(t->slot, 0);
    }
}

static struct sg_timer restless;
static atomic_int restless_runs;

static void rearm_in_the_past(struct sg_timer *t)
{
    restless_runs++;
    sg_timer_set(reactor, t, sg_now_ms() - 1000);
}

static void start_restless(void)
{
    restless.fire = rearm_in_the_past;
    sg_timer_set(reactor, &restless, 0);
}

static void stop_restless(void)
{
    sg_timer_cancel(reactor, &restless);
}

Test(reactor, a_timer_in_the_past_starves_nobody)
{
    on_reactor(start_restless);
    for (int i = 0; i < 20; i++) {
        on_reactor(nothing);
    }
    on_reactor(stop_restless);
    int n = restless_runs;
    cr_assert_geq(n, 10);
    on_reactor(nothing);
    cr_assert_eq(restless_runs, n);
}

static struct sg_timer far, near;

static void near_fire(struct sg_timer *t)
{
    (void)t;
    sg_timer_cancel(reactor, &far);
    sem_post(&done);
}

static void far_fire(struct sg_timer *t)
{
    (void)t;
    cr_assert_fail("was cancelled");
}

static void arm_far_then_near(void)
{
    far.fire = far_fire;
    near.fire = near_fire;
    sg_timer_set(reactor, &far, sg_now_ms() + 3600 * 1000);
    sg_timer_set(reactor, &near, sg_now_ms() + 5);
}

Test(reactor, an_earlier_timer_moves_the_alarm)
{
    on_reactor(arm_far_then_near);
    sem_wait(&done);
}

/* ---- descriptors ---- */

static int pipes[2][2];
static struct sg_watch watches[2];
static atomic_int calls;

static void make_pipes(void)
{
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pipe2(pipes[i], O_CLOEXEC | O_NONBLOCK), 0);
        watches[i].fd = pipes[i][0];
    }
}

/* Both are readable in the same batch; whichever comes first removes the other. */
static void remove_other(struct sg_watch *w, uint32_t events)
{
    cr_assert(events & EPOLLIN);
    struct sg_watch *other = w == &watches[0] ? &watches[1] : &watches[0];
    calls++;
    sg_watch_del(reactor, other);
    sg_watch_del(reactor, other);
    sg_watch_del(reactor, w);
    sem_post(&done);
}

static void add_both(void)
{
    for (int i = 0; i < 2; i++) {
        watches[i].ready = remove_other;
        cr_assert_eq(sg_watch_add(reactor, &watches[i], EPOLLIN, NULL), 0);
    }
}

Test(reactor, a_removed_watch_gets_no_event_already_collected)
{
    make_pipes();
    cr_assert_eq(write(pipes[0][1], "x", 1), 1);
    cr_assert_eq(write(pipes[1][1], "x", 1), 1);
    on_reactor(add_both);
    sem_wait(&done);
    on_reactor(nothing);
    on_reactor(nothing);
    cr_assert_eq(calls, 1);
}

static void read_one(struct sg_watch *w, uint32_t events)
{
    char c;
    (void)events;
    cr_assert_eq(read(w->fd, &c, 1), 1);
    calls++;
    if (c == '2') {
        sg_watch_mod(reactor, w, 0);
    }
    sem_post(&done);
}

static void listen_again(void)
{
    sg_watch_mod(reactor, &watches[0], EPOLLIN);
}

Test(reactor, watches_can_be_silenced)
{
    make_pipes();
    watches[0].ready = read_one;
    cr_assert_eq(sg_watch_add(reactor, &watches[0], EPOLLIN, NULL), 0); /* from another thread */
    cr_assert_eq(write(pipes[0][1], "1", 1), 1);
    sem_wait(&done);
    cr_assert_eq(write(pipes[0][1], "23", 2), 2);
    sem_wait(&done);
    on_reactor(nothing);
    on_reactor(nothing);
    cr_assert_eq(calls, 2, "silent although there is a byte");
    on_reactor(listen_again);
    sem_wait(&done);
    cr_assert_eq(calls, 3);
}

Test(reactor, a_bad_descriptor_is_an_error)
{
    struct sg_error err = {0};
    struct sg_watch w = {.fd = -1, .ready = read_one};
    cr_assert_eq(sg_watch_add(reactor, &w, EPOLLIN, &err), -1);
    cr_assert_not(w.added);
    cr_assert_null(sg_reactor_free(NULL));
}
