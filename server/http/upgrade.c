/* Connections handed over after 101. */
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "http/request_priv.h"

struct sg_upgrade {
    struct MHD_UpgradeResponseHandle *handle;
    struct sg_request *request; /* one reference */
};

static void taken(void *arg, struct MHD_Connection *mhd, void *con_cls, const char *early, size_t early_len,
                  MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
    struct sg_request *r = arg;
    int one = 1;
    (void)mhd;
    (void)con_cls;
    struct sg_upgrade *up = sg_xcalloc(1, sizeof *up);
    up->handle = handle;
    up->request = sg_req_get(r);
    atomic_store(&r->upgraded, true);
    sg_conn_unwait(r->conn, r); /* from here on the relay sees hang-ups itself */
    sg_http_async_add(r->http, r);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    r->answer.taken(r->answer.taken_arg, up, fd, early, early_len);
}

struct MHD_Response *sg_upgrade_response(struct sg_request *r)
{
    return MHD_create_response_for_upgrade(taken, r);
}

void sg_upgrade_close(struct sg_upgrade *up)
{
    struct sg_request *r = up->request;
    MHD_upgrade_action(up->handle, MHD_UPGRADE_ACTION_CLOSE);
    free(up);
    sg_req_put(r);
}
