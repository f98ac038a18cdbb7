/* Where the control group hierarchies are mounted and which group is ours. */
#include <stdio.h>

#include "backends/spawner/groups.h"

/* Is `word` one of the comma-separated words of list (up to end)? */
static bool list_has(const char *list, const char *end, const char *word)
{
    size_t n = strlen(word);
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma != NULL ? comma : end;
        if ((size_t)(stop - list) == n && memcmp(list, word, n) == 0) {
            return true;
        }
        list = stop + 1;
    }
    return false;
}

/* One line of mountinfo: "id parent dev root mount options [tags] - type source superoptions". */
static bool is_mount_of(const char *line, const char *end, const char *controller, char *root, char *mount,
                        size_t size)
{
    int at = 0;
    char type[32];
    if (size < 4096 || sscanf(line, "%*d %*d %*s %4095s %4095s %n", root, mount, &at) != 2) {
        return false;
    }
    const char *dash = memmem(line + at, (size_t)(end - line - at), " - ", 3);
    if (dash == NULL || sscanf(dash + 3, "%31s", type) != 1 || strchr(mount, '\\') != NULL) {
        return false;
    }
    if (controller == NULL) {
        return sg_streq(type, "cgroup2");
    }
    const char *super = end;
    while (super > dash && super[-1] != ' ') {
        super--;
    }
    return sg_streq(type, "cgroup") && list_has(super, end, controller);
}

/* Own path in one hierarchy: lines "id:controllers:path", id 0 and no controllers for v2. */
static bool own_path(const char *own, const char *controller, char *path, size_t size)
{
    for (const char *line = own; *line != '\0';) {
        const char *end = strchrnul(line, '\n');
        const char *one = memchr(line, ':', (size_t)(end - line));
        const char *two = one != NULL ? memchr(one + 1, ':', (size_t)(end - one - 1)) : NULL;
        if (two != NULL && (controller == NULL ? two == one + 1 && strncmp(line, "0:", 2) == 0
                                               : list_has(one + 1, two, controller))) {
            size_t n = (size_t)(end - two - 1);
            if (n == 0 || n >= size) {
                return false;
            }
            memcpy(path, two + 1, n);
            path[n] = '\0';
            return true;
        }
        line = *end == '\0' ? end : end + 1;
    }
    return false;
}

bool sg_groups_locate(const char *mountinfo, const char *own, const char *controller, char *mount, char *path,
                      size_t size)
{
    char root[4096], whole[4096];
    bool found = false;
    for (const char *line = mountinfo; *line != '\0' && !found;) {
        const char *end = strchrnul(line, '\n');
        found = is_mount_of(line, end, controller, root, mount, size);
        line = *end == '\0' ? end : end + 1;
    }
    if (!found) {
        return false;
    }
    /* The mount may show a part of the hierarchy only; a group outside it counts as the top of the mount. */
    size_t n = sg_streq(root, "/") ? 0 : strlen(root);
    bool inside = own_path(own, controller, whole, sizeof whole) && strncmp(whole, root, n) == 0 &&
                  (whole[n] == '/' || whole[n] == '\0') && strstr(whole, "/..") == NULL;
    const char *rest = inside && !sg_streq(whole + n, "/") ? whole + n : "";
    return (size_t)snprintf(path, size, "%s", rest) < size;
}
