/* Slots come up, run commands, go, and leave nothing. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "rig.h"

static void one_slot(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    rig_start(&r, flags);
    rig_up(&r, 3, &s);
    cr_assert_eq(rig_sh(&s, &res,
                        "echo hello; id -u; id -un; hostname; pwd; echo x >/workspace/f && cat /workspace/f"),
                 0, "%s", res.out);
    cr_assert_str_eq(res.out, "hello\n1000\nsandbox\nsandbox\n/workspace\nx\n");
    cr_assert_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(build, root_server)
{
    one_slot(0);
}

Test(build, root_server_without_cgroups)
{
    one_slot(RIG_NO_CGROUPS);
}

Test(build, ordinary_user)
{
    one_slot(RIG_USER_SERVER);
}
