#include "backends/worktree/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"

#define SUFFIX ".json"
#define RECORD_MAX 65536U

void sg_record_finish(struct sg_record *r)
{
    free(r->repo);
    free(r->git_dir);
    free(r->home);
    free(r->tree);
    free(r->branch);
    *r = (struct sg_record){0};
}

bool sg_record_id_valid(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n < SG_ID_MAX && strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n && id[0] != '-';
}

static char *path_of(const char *dir, const char *id)
{
    return sg_xasprintf("%s/%s" SUFFIX, dir, id);
}

int sg_record_write(const char *dir, const struct sg_record *r, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = path_of(dir, r->id);
    sg_cleanup(sg_json_p) json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "repo", r->repo, "git_dir", r->git_dir, "home", r->home,
                                                "tree", r->tree, "branch", r->branch, "commit", r->commit);
    size_t len = 0;
    sg_cleanup(sg_free_p) char *text = v != NULL ? sg_json_dump(v, &len) : NULL;
    if (text == NULL)
        return sg_error_set(err, SG_UNAVAILABLE, "a path of the worktree is not valid UTF-8, or memory is out");
    return sg_write_file(path, text, len, 0600, err);
}

int sg_record_time(const char *dir, const char *id, struct timespec *ret)
{
    sg_cleanup(sg_free_p) char *path = path_of(dir, id);
    struct stat st;
    if (lstat(path, &st) < 0)
        return -1;
    *ret = st.st_mtim;
    return 0;
}

int sg_record_remove(const char *dir, const char *id, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = path_of(dir, id);
    if (unlink(path) < 0 && errno != ENOENT)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", path);
    return 0;
}

static int take(struct sg_json_reader *r, const char *key, char **ret)
{
    const char *s;
    if (sg_json_str(r, key, &s, NULL) <= 0 || s[0] == '\0')
        return -1;
    *ret = sg_xstrdup(s);
    return 0;
}

/* Under an ordinary user's server its commands could have written it, too: paths must be what such a record has. */
static int check(const struct sg_record *r)
{
    const char *last = strrchr(r->home, '/');
    size_t n = strlen(r->home);
    bool good = r->home[0] == '/' && sg_streq(last + 1, r->id) && strncmp(r->tree, r->home, n) == 0 && r->tree[n] == '/' &&
                strstr(r->home, "/../") == NULL && strstr(r->tree, "/../") == NULL && r->git_dir[0] == '/';
    return good ? 0 : -1;
}

static int load(const char *dir, struct sg_record *r)
{
    sg_cleanup(sg_free_p) char *path = path_of(dir, r->id);
    sg_cleanup(sg_free_p) char *text = NULL;
    sg_cleanup(sg_json_p) json_t *v = NULL;
    struct sg_json_reader reader;
    const char *commit;
    size_t len;
    if (sg_read_file(path, RECORD_MAX, &text, &len, NULL) < 0 || sg_json_parse_object(text, len, &v, NULL) < 0 ||
        sg_json_begin(&reader, v, "", NULL) < 0 || take(&reader, "repo", &r->repo) < 0 || take(&reader, "git_dir", &r->git_dir) < 0 ||
        take(&reader, "home", &r->home) < 0 || take(&reader, "tree", &r->tree) < 0 || take(&reader, "branch", &r->branch) < 0 ||
        sg_json_str(&reader, "commit", &commit, NULL) <= 0 || strlen(commit) >= sizeof r->commit)
        return -1;
    (void)snprintf(r->commit, sizeof r->commit, "%s", commit);
    return check(r);
}

int sg_record_each(const char *dir, void (*found)(void *arg, struct sg_record *r), void *arg, size_t *ret_bad, struct sg_error *err)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", dir);
    *ret_bad = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        struct sg_record r = {0};
        size_t n = strlen(e->d_name), cut = sizeof SUFFIX - 1;
        if (n <= cut || !sg_streq(e->d_name + n - cut, SUFFIX))
            continue;
        (void)snprintf(r.id, sizeof r.id, "%.*s", (int)(n - cut), e->d_name);
        if (n - cut < sizeof r.id && sg_record_id_valid(r.id) && load(dir, &r) == 0)
            found(arg, &r);
        else
            ++*ret_bad;
        sg_record_finish(&r);
    }
    (void)closedir(d);
    return 0;
}
