#include "model/manifest.h"

#include "base/base64.h"
#include "model/exec_json.h"
#include "model/file.h"

#include <stdio.h>

/* Seconds far beyond any maximum a server can have: larger numbers mean "above the maximum" all the same. */
#define TIMEOUT_CEILING_MS INT64_C(4000000000000)
#define FILE_BYTES_MAX (64U * 1024U * 1024U)
#define PATH_BYTES_MAX 4095U
#define REF_BYTES_MAX 255U
#define SNAPSHOT_BYTES_MAX 128U

/* ---- names ---- */

/* Absolute, no "." or "..", no empty part, more than "/". */
static bool root_valid(const char *s)
{
    size_t len = strlen(s);

    if (s[0] != '/' || len < 2 || len > PATH_BYTES_MAX)
        return false;
    for (const char *p = s; *p == '/';) {
        size_t n = strcspn(++p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
    }
    return true;
}

bool sg_ref_valid(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-@#%=,!";
    size_t len = strlen(s);

    if (len == 0 || len > REF_BYTES_MAX || s[0] == '-' || s[0] == '/' || s[len - 1] == '/' || s[len - 1] == '.')
        return false;
    for (size_t i = 0; i < len; i++) /* letters of other alphabets are fine */
        if ((unsigned char)s[i] < 0x80 && !strchr(letters, s[i]))
            return false;
    return !strstr(s, "..") && !strstr(s, "//") && !strstr(s, "/.") && !strstr(s, "/-") && !strstr(s, "@{") && s[0] != '.';
}

static bool repo_name_valid(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n < 64 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

/* ---- members ---- */

static int parse_repo(struct sg_json_reader *top, struct sg_manifest *m, struct sg_error *err)
{
    struct sg_json_reader r;
    json_t *v;
    const char *name, *url, *ref;
    int has = sg_json_object(top, "repo", &v, err);

    if (has <= 0)
        return has;
    if (sg_json_begin(&r, v, "manifest.repo", err) < 0)
        return -1;
    int has_name = sg_json_str(&r, "name", &name, err);
    int has_url = has_name < 0 ? -1 : sg_json_str(&r, "url", &url, err);
    int has_ref = has_url < 0 ? -1 : sg_json_str(&r, "ref", &ref, err);
    if (has_ref < 0)
        return -1;
    if (has_name + has_url != 1)
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.repo", "needs either name or url");
    if (has_name && !repo_name_valid(name))
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.repo.name", "must be 1 to 63 letters, digits, '.', '_' or '-'");
    if (has_url && (url[0] == '\0' || strlen(url) > PATH_BYTES_MAX))
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.repo.url", "must be 1 to %u bytes", PATH_BYTES_MAX);
    if (has_url && strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.repo.url", "must be an http:// or https:// URL");
    if (has_ref && !sg_ref_valid(ref))
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.repo.ref", "must be the name of a branch or tag, or a commit id");
    m->repo_name = has_name ? sg_xstrdup(name) : NULL;
    m->repo_url = has_url ? sg_xstrdup(url) : NULL;
    m->repo_ref = has_ref ? sg_xstrdup(ref) : NULL;
    return sg_json_end(&r, err);
}

static int parse_content(struct sg_json_reader *r, struct sg_manifest_file *f, const char *path, struct sg_error *err)
{
    const char *text, *b64;
    char field[96];
    int has_text = sg_json_str(r, "content", &text, err);
    int has_b64 = has_text < 0 ? -1 : sg_json_str(r, "content_base64", &b64, err);

    if (has_b64 < 0)
        return -1;
    if (has_text + has_b64 != 1)
        return sg_error_field(err, SG_INVALID_REQUEST, path, "needs either content or content_base64");
    if (has_text) {
        f->len = strlen(text);
        f->data = (uint8_t *)strdup(text);
        return f->data ? 0 : sg_error_set(err, SG_NO_MEMORY, "no memory for the manifest's files");
    }
    if (sg_base64_decode(b64, strlen(b64), FILE_BYTES_MAX, &f->data, &f->len, err) == 0)
        return 0;
    sg_json_path(path, "content_base64", field, sizeof field);
    snprintf(err->field, sizeof err->field, "%s", field);
    return -1;
}

/* Octal text as everywhere in the API, or the number itself. */
static int parse_mode(struct sg_json_reader *r, struct sg_manifest_file *f, const char *path, struct sg_error *err)
{
    json_t *v;
    char field[96];

    if (!sg_json_any(r, "mode", &v) || json_is_null(v))
        return 0;
    f->mode_given = true;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= 0777) {
        f->mode = (uint32_t)json_integer_value(v);
        return 0;
    }
    if (json_is_string(v) && sg_file_mode_parse(json_string_value(v), &f->mode))
        return 0;
    sg_json_path(path, "mode", field, sizeof field);
    return sg_error_field(err, SG_INVALID_REQUEST, field, "must be octal permission bits up to 0777, for example \"0644\"");
}

static int parse_file(const json_t *v, const char *path, struct sg_manifest_file *f, struct sg_error *err)
{
    struct sg_json_reader r;
    const char *name;
    char field[96];

    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    int has = sg_json_str(&r, "path", &name, err);
    if (has < 0)
        return -1;
    sg_json_path(path, "path", field, sizeof field);
    if (!has)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "is required");
    if (name[0] == '\0' || strlen(name) > PATH_BYTES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be a path of 1 to %u bytes", PATH_BYTES_MAX);
    f->path = sg_xstrdup(name);
    if (parse_content(&r, f, path, err) < 0 || parse_mode(&r, f, path, err) < 0)
        return -1;
    return sg_json_end(&r, err);
}

static int parse_files(struct sg_json_reader *r, struct sg_manifest *m, struct sg_error *err)
{
    json_t *list;
    int has = sg_json_array(r, "files", &list, err);
    size_t n = has > 0 ? json_array_size(list) : 0;

    if (has <= 0 || n == 0)
        return has;
    if (n > SG_MANIFEST_FILES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.files", "has more than %u entries", SG_MANIFEST_FILES_MAX);
    m->files = calloc(n, sizeof *m->files);
    if (!m->files)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the manifest's files");
    for (size_t i = 0; i < n; i++) {
        char path[48];
        snprintf(path, sizeof path, "manifest.files[%zu]", i);
        m->n_files = i + 1;
        if (parse_file(json_array_get(list, i), path, &m->files[i], err) < 0)
            return -1;
    }
    return 0;
}

int sg_manifest_parse(const json_t *v, struct sg_manifest *ret, struct sg_env *env, int64_t *timeout_ms, struct sg_error *err)
{
    struct sg_json_reader r;
    json_t *member;
    const char *root;

    if (sg_json_begin(&r, v, "manifest", err) < 0)
        return -1;
    int has = sg_json_str(&r, "root", &root, err);
    if (has < 0 || sg_json_seconds_ms(&r, "timeout_seconds", TIMEOUT_CEILING_MS, timeout_ms, err) < 0)
        return -1;
    if (has && !root_valid(root))
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.root", "must be an absolute path below / without \".\" and \"..\"");
    ret->root = has ? sg_xstrdup(root) : NULL;
    if (sg_json_any(&r, "env", &member) && sg_env_parse(member, "manifest.env", env, err) < 0)
        return -1;
    const char *snapshot;
    int has_snapshot = sg_json_str(&r, "snapshot", &snapshot, err);
    if (has_snapshot < 0)
        return -1;
    if (has_snapshot && (snapshot[0] == '\0' || strlen(snapshot) > SNAPSHOT_BYTES_MAX))
        return sg_error_field(err, SG_INVALID_REQUEST, "manifest.snapshot", "must be the id of a snapshot, or its digest");
    ret->snapshot = has_snapshot ? sg_xstrdup(snapshot) : NULL;
    if (parse_repo(&r, ret, err) < 0 || parse_files(&r, ret, err) < 0)
        return -1;
    return sg_json_end(&r, err);
}

void sg_manifest_finish(struct sg_manifest *m)
{
    free(m->root);
    free(m->snapshot);
    free(m->repo_name);
    free(m->repo_url);
    free(m->repo_ref);
    for (size_t i = 0; i < m->n_files; i++) {
        free(m->files[i].path);
        free(m->files[i].data);
    }
    free(m->files);
    *m = (struct sg_manifest){0};
}
