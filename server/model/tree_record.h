/* A directory as a stream of records, which is how it travels to and from sandboxes that are far away: one by one its entries would each cost a
 * trip.
 *
 * A record is seven fields that each end with a NUL: its kind (f, d, l: a symbolic link, h: a hard link, e: the end), its name below the top
 * ("a/b"; "" is the top), and in decimal its mode, the nanoseconds of its time, its owner's number and its size; then the target of a link. Behind
 * that of a file come as many bytes as its size says. A stream without its end has been cut.
 */
#ifndef SG_TREE_RECORD_H
#define SG_TREE_RECORD_H

#include "base/buf.h"

#define SG_TREE_RECORD_MAX 8400U /* bytes of the fields of one */
#define SG_TREE_NAME_MAX 4000U   /* of its name, */
#define SG_TREE_TARGET_MAX 4095U /* and of its target */

/* Strings are somebody else's. Without a target: "". */
struct sg_tree_record {
    char kind;
    const char *name, *target;
    uint32_t mode; /* 0777 */
    uint32_t uid;
    int64_t mtime_ns;
    uint64_t size;
};

/* Appends its fields to b; -1 when they do not fit. */
int sg_tree_record_write(const struct sg_tree_record *r, struct sg_buf *b);

/* What has been seen of a stream that a stranger wrote; zeroed at its start. */
struct sg_tree_walk {
    char *last; /* the name before, and how much of it is a directory that is open */
    size_t open;
};
void sg_tree_walk_finish(struct sg_tree_walk *w);

/* The record at the beginning of len bytes: its length, and *ret, with strings in data; 0: not all of it is there; -1: it is none, or not one that
 * could follow there. A good stream is a walk over a real tree: names are clean and below the top, each directory comes before what is in it, all
 * names in byte order of their parts, none twice. So none can lead through a link. The top itself and hard links are in none. */
ssize_t sg_tree_record_read(const char *data, size_t len, struct sg_tree_walk *w, struct sg_tree_record *ret, struct sg_error *err);

#endif
