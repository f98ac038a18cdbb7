/* The audit chain: every kind of tampering is found, and where. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "model/audit.h"

#define N 6
static const char key[] = "0123456789abcdef0123456789abcdef";
#define KEY key, (sizeof key - 1)

struct chain {
    struct sg_audit_record r[N + 1];
    size_t n;
    struct sg_audit_head head;
};

static void add(struct chain *c, const char *kind, const char *payload)
{
    struct sg_audit_record *r = &c->r[c->n++];
    *r = (struct sg_audit_record){.time_us = 1000 + (int64_t)c->n,
                                  .kind = kind,
                                  .tenant = "t",
                                  .lease_id = c->n % 2 ? "lease_1" : NULL,
                                  .receipt_id = NULL,
                                  .payload = payload};
    cr_assert_eq(sg_audit_append(KEY, &c->head, r, NULL), 0);
}

static struct chain make_chain(void)
{
    struct chain c = {.n = 0};
    for (int i = 0; i < N; i++)
        add(&c, i % 2 ? "lease.created" : "receipt.sealed", i % 2 ? "{}" : "{\"a\":1}");
    return c;
}

static struct sg_audit_check check(const struct chain *c)
{
    struct sg_audit_check k;
    sg_audit_check_init(&k, KEY, &(struct sg_audit_head){0}, &c->head);
    for (size_t i = 0; i < c->n && sg_audit_check_next(&k, &c->r[i]); i++)
        ;
    sg_audit_check_end(&k);
    return k;
}

static void expect(const struct chain *c, int64_t bad, const char *reason)
{
    struct sg_audit_check k = check(c);
    cr_assert(!k.ok);
    cr_assert_str_eq(k.reason, reason);
    cr_assert_eq(k.bad_seq, bad);
}

Test(audit, a_whole_chain_is_whole)
{
    struct chain c = make_chain();
    struct chain empty = {.n = 0};
    cr_assert(check(&c).ok);
    cr_assert(check(&empty).ok);
    cr_assert_eq(c.r[0].seq, 1);
    cr_assert_eq(c.head.seq, N);
    for (size_t i = 0; i < SG_SHA256_LEN; i++)
        cr_assert_eq(c.r[0].prev[i], 0);
}

Test(audit, a_changed_member_is_found)
{
    struct chain good = make_chain();
    for (int what = 0; what < 9; what++) {
        struct chain c = good;
        struct sg_audit_record *r = &c.r[2];
        switch (what) {
        case 0:
            r->time_us++;
            break;
        case 1:
            r->kind = "receipt.sealeD";
            break;
        case 2:
            r->tenant = NULL;
            break;
        case 3:
            r->tenant = "";
            break;
        case 4:
            r->lease_id = "lease_2";
            break;
        case 5:
            r->receipt_id = "";
            break;
        case 6:
            r->payload = "{\"a\":2}";
            break;
        case 7:
            r->mac[31] ^= 1;
            break;
        case 8:
            r->prev[0] ^= 0x80;
            break;
        }
        expect(&c, 3, "record_changed");
    }
}

Test(audit, parts_cannot_be_shifted_into_each_other)
{
    struct chain c = make_chain();
    c.r[2].kind = "receipt.seale";
    c.r[2].tenant = "dt";
    expect(&c, 3, "record_changed");
}

Test(audit, records_taken_out_put_in_or_moved_are_found)
{
    struct chain good = make_chain();
    struct chain c = good;
    memmove(&c.r[2], &c.r[3], 3 * sizeof c.r[0]);
    c.n--;
    expect(&c, 3, "record_missing");
    c = good;
    memmove(&c.r[3], &c.r[2], 4 * sizeof c.r[0]);
    c.n++;
    expect(&c, 3, "record_out_of_order");
    c = good;
    c.r[1] = good.r[2];
    c.r[2] = good.r[1];
    expect(&c, 2, "record_missing");
    c = good;
    memmove(&c.r[0], &c.r[1], 5 * sizeof c.r[0]);
    c.n--;
    expect(&c, 1, "record_missing");
}

Test(audit, a_record_of_another_chain_with_the_same_key_is_found)
{
    struct chain good = make_chain();
    struct chain other = {.n = 0};
    add(&other, "lease.created", "{\"other\":true}");
    add(&other, "lease.created", "{}");
    add(&other, "lease.created", "{}");
    struct chain c = good;
    c.r[2] = other.r[2];
    expect(&c, 3, "chain_broken");
}

Test(audit, a_cut_tail_is_found_by_the_head)
{
    struct chain c = make_chain();
    c.n = 4;
    expect(&c, 5, "tail_cut");
    c.n = 0;
    expect(&c, 1, "tail_cut");
}

Test(audit, a_chain_may_be_ahead_of_its_head)
{
    struct chain c = make_chain();
    struct sg_audit_head before = c.head;
    add(&c, "lease.created", "{}");
    c.head = before;
    cr_assert(check(&c).ok);
}

Test(audit, a_tail_made_anew_does_not_fit_the_head)
{
    struct chain good = make_chain();
    struct chain c = good;
    c.n = N - 1;
    c.head = (struct sg_audit_head){.seq = N - 1};
    memcpy(c.head.mac, good.r[N - 2].mac, SG_SHA256_LEN);
    add(&c, "lease.created", "{\"forged\":1}");
    c.head = good.head;
    expect(&c, N, "head_mismatch");
}

Test(audit, another_key_finds_the_first_record)
{
    struct chain c = make_chain();
    struct sg_audit_check k;
    sg_audit_check_init(&k, "fedcba9876543210fedcba9876543210", 32, &(struct sg_audit_head){0}, &c.head);
    cr_assert(!sg_audit_check_next(&k, &c.r[0]));
    cr_assert(!sg_audit_check_next(&k, &c.r[1]));
    cr_assert_eq(k.bad_seq, 1);
}

Test(audit, the_head_line_round_trips_and_cannot_be_made_up)
{
    struct chain c = make_chain();
    char line[SG_AUDIT_HEAD_LINE];
    struct sg_audit_head back;
    sg_audit_head_write(KEY, &c.head, line);
    size_t len = strlen(line);
    cr_assert_eq(line[len - 1], '\n');
    cr_assert_eq(sg_audit_head_read(KEY, line, len, &back, NULL), 0);
    cr_assert_eq(back.seq, N);
    cr_assert_eq(memcmp(back.mac, c.head.mac, SG_SHA256_LEN), 0);
    for (size_t i = 0; i < len; i++) {
        char bad[SG_AUDIT_HEAD_LINE];
        memcpy(bad, line, sizeof bad);
        bad[i] = bad[i] == '1' ? '2' : '1';
        cr_assert(sg_audit_head_read(KEY, bad, len, &back, NULL) < 0, "byte %zu", i);
        cr_assert(sg_audit_head_read(KEY, line, i, &back, NULL) < 0, "cut at %zu", i);
    }
    struct sg_audit_head empty = {0};
    sg_audit_head_write(KEY, &empty, line);
    cr_assert_eq(sg_audit_head_read(KEY, line, strlen(line), &back, NULL), 0);
    cr_assert_eq(back.seq, 0);
}

Test(audit, what_cannot_be_signed_is_refused)
{
    struct sg_audit_head head = {0};
    struct sg_audit_record r = {.kind = "k", .payload = "{}"};
    struct sg_error err = {0};
    cr_assert(sg_audit_append("short", 5, &head, &r, &err) < 0);
    r.kind = NULL;
    cr_assert(sg_audit_append(KEY, &head, &r, &err) < 0);
    r.kind = "k";
    r.payload = NULL;
    cr_assert(sg_audit_append(KEY, &head, &r, &err) < 0);
    char *big = calloc(1, SG_AUDIT_PAYLOAD_MAX + 2);
    memset(big, 'x', SG_AUDIT_PAYLOAD_MAX + 1);
    r.payload = big;
    cr_assert(sg_audit_append(KEY, &head, &r, &err) < 0);
    cr_assert_eq(head.seq, 0);
    big[SG_AUDIT_PAYLOAD_MAX] = '\0';
    cr_assert_eq(sg_audit_append(KEY, &head, &r, &err), 0);
    free(big);
    sg_error_clear(&err);
}
