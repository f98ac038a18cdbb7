/* What the routes of files share; nobody else includes it. */
#ifndef SG_ROUTES_FILES_PRIV_H
#define SG_ROUTES_FILES_PRIV_H

#include "base/digest.h"
#include "http/api.h"
#include "http/fields.h"
#include "service/files.h"

/* The query parameter `path`; NULL with err when it is missing. */
const char *sg_file_path(struct sg_request *r, struct sg_error *err);
/* A list-valued header: what its lines say together, malloc'd, or NULL when there is none. */
char *sg_file_list_header(struct sg_request *r, const char *name);
/* If-Match or If-None-Match of a write. */
int sg_file_write_condition(struct sg_request *r, struct sg_condition *ret, struct sg_error *err);
/* Refuses bodies that are not whole files as they are, and reads the digests they should have. */
int sg_file_body_headers(struct sg_request *r, struct sg_digests *ret, struct sg_error *err);

/* The body of r, from when on it is wanted; r must be referenced until then. */
struct sg_upload_body sg_file_body(struct sg_request *r);

/* {path, entries, bytes} of an archive that was unpacked. */
json_t *sg_file_unpacked_json(const char *path, uint64_t entries, uint64_t bytes);

#endif
