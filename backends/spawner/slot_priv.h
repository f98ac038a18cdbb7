/* Between slot.c (up) and slot_end.c (down). */
#ifndef SG_SLOT_PRIV_H
#define SG_SLOT_PRIV_H

#include "backends/spawner/slot.h"

#define SG_SLOT_END_MS 10000

enum state { EMPTY, BUILDING, UP, ENDING };

struct sg_slot {
    uint32_t n;
    enum state state;
    struct sg_wire_request build; /* what is being built or was */
    uint64_t destroy_id;          /* a DESTROY to answer, 0: none */
    bool build_owed;              /* BUILD is to be answered */
    struct sg_error error;        /* why the build failed */
    int64_t deadline_ms;

    bool has_namespaces; /* kept from build to build, like the groups */
    struct sg_namespaces ns;
    struct sg_slot_groups groups;

    pid_t monitor; /* bwrap outside the sandbox, our child; 0: reaped */
    pid_t wiper;   /* removes the disk directory; 0: none */
    bool has_dir;  /* there is a disk directory */
    pid_t agent;
    int pidfd; /* of the agent */
    bool agent_dead;
    bool hello;
    int server_end; /* the server's end of the agent's socket */
    int info, errors, empty;
    pid_t net;  /* the helper of an open network, our child; 0: none, or reaped */
    bool net_up;
    int net_fd, net_ready, net_errors; /* pidfd, and what it says */
    char info_text[256], error_text[512];
    size_t info_len, error_len;
};

/* By what a limit of the slot is enforced; NONE for none. */
uint32_t slot_means(const struct sg_daemon *d, enum sg_controller c, int64_t limit);
struct sg_wire_answer slot_answer_to(uint32_t op, uint64_t id, const struct sg_error *err);
void slot_answer_destroy(struct sg_daemon *d, struct sg_slot *s, const struct sg_error *err);
void slot_close_build_fds(struct sg_slot *s);
/* Reads what was written to fd into the slot's error text, for people. */
void slot_read_errors(struct sg_slot *s, int fd);
/* Is pid a child of parent now? */
bool slot_is_child_of(pid_t pid, pid_t parent);

/* Any state but EMPTY: kills what there is and goes to ENDING. */
void slot_begin_end(struct sg_daemon *d, struct sg_slot *s);
/* BUILDING: the same, with why and what bwrap said as the answer. */
void slot_fail(struct sg_daemon *d, struct sg_slot *s, const char *why);
/* ENDING: goes on as far as possible now, to EMPTY and the answers if nothing is left. Else no-op. */
void slot_advance_end(struct sg_daemon *d, struct sg_slot *s);
void slot_wiper_ended(struct sg_daemon *d, struct sg_slot *s);
/* ENDING takes too long: answers so. */
void slot_give_up(struct sg_daemon *d, struct sg_slot *s);

#endif
