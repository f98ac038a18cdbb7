/* A configuration file: YAML that is taken has a form as JSON, and whatever is loaded can be shown. */
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "config.h"

static void check_load(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[32];
    struct sg_error err = {0};
    struct sg_config *c = NULL;
    if (fd < 0)
        fd = memfd_create("config", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    fuzz_require(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "a file");
    const struct sg_config_args args = {.file = path};
    if (sg_config_load(&args, &c, &err) < 0) {
        fuzz_require(c == NULL && err.message[0] != '\0', "a refusal says why");
        sg_error_clear(&err);
        return;
    }
    json_t *shown = sg_config_explain(c);
    fuzz_require(json_is_array(shown), "every value can be shown");
    sg_json_unref(shown);
    size_t n;
    struct sg_local_pool_config *pools = sg_config_local_pools(c, &n);
    fuzz_require(n > 0, "the default pool");
    free(pools);
    sg_config_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *v = NULL;
    struct sg_error err = {0};
    if (size > 16384)
        return 0;
    if (sg_yaml_to_json((const char *)data, size, &v, &err) == 0) {
        char *text = sg_json_dump(v, NULL);
        fuzz_require(text != NULL, "it has a form as JSON");
        free(text);
    }
    sg_json_unref(v);
    sg_error_clear(&err);
    check_load(data, size);
    return 0;
}
