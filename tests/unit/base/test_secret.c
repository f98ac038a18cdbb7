#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/secret.h"

Test(secret, from_the_environment_or_a_file)
{
    struct sg_secret *s = NULL;
    struct sg_error err = {0};
    size_t len = 0;
    char path[] = "/tmp/sg-test-secret-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), 0);
    cr_assert_null(s);

    cr_assert_eq(sg_write_file(path, "from file\n\n", 11, 0600, &err), 0);
    setenv("SG_TEST_KEY_FILE", path, 1);
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), 1, "%s", err.message);
    cr_assert_str_eq(sg_secret_expose(s, &len), "from file\n");
    cr_assert_eq(len, 10);
    s = sg_secret_free(s);

    setenv("SG_TEST_KEY", "direct", 1);
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), 1);
    cr_assert_str_eq(sg_secret_expose(s, NULL), "direct");
    s = sg_secret_free(s);

    setenv("SG_TEST_KEY", "", 1);
    cr_assert_eq(sg_write_file(path, "a\0b", 3, 0600, &err), 0);
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), -1);
    cr_assert_str_eq(err.field, "SG_TEST_KEY_FILE");
    cr_assert_eq(sg_write_file(path, "\n", 1, 0600, &err), 0);
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), -1);
    unlink(path);
    cr_assert_eq(sg_secret_from_env("SG_TEST_KEY", &s, &err), -1, "a file that was named must be there");
    cr_assert_null(s);
    cr_assert_null(sg_secret_free(NULL));
}
