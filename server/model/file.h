/* What is known of a file in a sandbox: plain values. */
#ifndef SG_FILE_H
#define SG_FILE_H

#include "base/error.h"

enum sg_file_type { SG_FILE_REGULAR, SG_FILE_DIRECTORY, SG_FILE_SYMLINK, SG_FILE_FIFO, SG_FILE_SOCKET, SG_FILE_DEVICE, SG_FILE_OTHER };
/* "file", "directory", "symlink", "fifo", "socket", "device", "other". */
const char *sg_file_type_name(enum sg_file_type t);

/* Octal permission bits up to 0777, as in "0644". */
bool sg_file_mode_parse(const char *s, uint32_t *ret);

struct sg_file_stat {
    enum sg_file_type type;
    uint64_t size;
    uint32_t mode; /* permission bits only */
    int64_t mtime_ns;
    int64_t ctime_ns; /* when anything of it changed last; nobody in the sandbox can set it */
    uint64_t ino;
    uint64_t dev;
    uint32_t uid; /* as the sandbox sees it */
    char target[256]; /* symlinks: where it points, cut; any bytes but NUL */
};

/* What a tag is made of. */
struct sg_file_tag {
    uint64_t dev, ino;
    int64_t mtime_ns, ctime_ns;
    uint64_t size;
};

/* What must be so of a file before it is read, replaced or removed. MATCHES: it exists and has one of the tags; DIFFERS: it does
 * not exist or has none of them. */
enum sg_condition_kind { SG_IF_ALWAYS, SG_IF_EXISTS, SG_IF_ABSENT, SG_IF_MATCHES, SG_IF_DIFFERS };
#define SG_CONDITION_TAGS_MAX 16
struct sg_condition {
    enum sg_condition_kind kind;
    unsigned n;
    struct sg_file_tag tags[SG_CONDITION_TAGS_MAX];
};
/* st NULL: there is no file. c NULL: always. */
bool sg_condition_holds(const struct sg_condition *c, const struct sg_file_stat *st);

/* Strong tag of the content as far as the file system tells: quotes included, e.g. "\"1f-...\"". */
#define SG_ETAG_MAX 96
void sg_file_etag(const struct sg_file_stat *st, char out[SG_ETAG_MAX]);
/* The inside of such a tag, without the quotes, taken apart; false when it is none of ours. */
bool sg_file_tag_parse(const char *text, size_t len, struct sg_file_tag *ret);

struct sg_file_entry {
    char *name; /* of a recursive list: path below the listed directory; any bytes but NUL */
    struct sg_file_stat stat;
};

struct sg_file_list {
    struct sg_file_entry *entries; /* sorted by name, bytewise */
    size_t n;
    bool more;      /* there are further names behind the last one */
    bool truncated; /* something cannot be listed, because it is too deep */
};
void sg_file_list_finish(struct sg_file_list *l);

#endif
