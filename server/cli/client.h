/* A client of a running server: one request per connection, JSON out, plain HTTP/1.1.
 *
 * The server is at --url, else SANDGATE_URL, else http://127.0.0.1:8080; the token is the secret SANDGATE_TOKEN. For a server
 * behind TLS, talk to it from its own machine or use curl.
 */
#ifndef SG_CLI_CLIENT_H
#define SG_CLI_CLIENT_H

#include "cli/cli.h"

#define SG_CLI_URL_OPTION {"url", "URL", "the server; default $SANDGATE_URL or http://127.0.0.1:8080; a token for it is in $SANDGATE_TOKEN"}
#define SG_CLI_JSON_OPTION {"json", NULL, "print JSON"}

/* Sends a request without a body. path begins with '/'. 0: *ret is the answer (NULL when it is empty) and *ret_status its
 * status, whatever it is; -1: there was no whole answer within 30 s. */
int sg_cli_request(const struct sg_cli_args *a, const char *method, const char *path, int *ret_status, json_t **ret,
                   struct sg_error *err);
/* The same, and a status of 400 or above is an error too: its detail and code. */
int sg_cli_call(const struct sg_cli_args *a, const char *method, const char *path, json_t **ret, struct sg_error *err);
/* All items of a list, following its cursors. */
int sg_cli_list(const struct sg_cli_args *a, const char *path, json_t **ret, struct sg_error *err);
/* Percent-encodes what goes into a path or query. Caller frees. */
char *sg_cli_quote(const char *text);

#endif
