#include "model/audit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"

/* What is signed starts with what it is, so that no record can pass for a head or the reverse. */
static const char record_tag[] = "sandgate-audit-record-1";

#define SIGNED_MAX ((size_t)SG_AUDIT_PAYLOAD_MAX + 65536)
#define SEQ_DIGITS 20
#define HEX_LEN ((size_t)2 * SG_SHA256_LEN)

/* ---- what is signed: every part with its length before it, so that no two records sign alike ---- */

static int add_part(struct sg_buf *b, const void *data, size_t len)
{
    uint8_t size[8];
    for (unsigned i = 0; i < sizeof size; i++)
        size[i] = (uint8_t)((uint64_t)len >> (56U - 8U * i));
    return sg_buf_add(b, size, sizeof size) < 0 || (len && sg_buf_add(b, data, len) < 0) ? -1 : 0;
}

/* NULL and "" sign differently. */
static int add_text(struct sg_buf *b, const char *s)
{
    static const uint8_t none[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    return s ? add_part(b, s, strlen(s)) : sg_buf_add(b, none, sizeof none);
}

static int add_number(struct sg_buf *b, int64_t n)
{
    char text[SEQ_DIGITS + 2];
    int len = snprintf(text, sizeof text, "%" PRId64, n);
    return add_part(b, text, (size_t)len);
}

static int record_mac(const void *key, size_t key_len, const struct sg_audit_record *r,
                      uint8_t mac[SG_SHA256_LEN])
{
    struct sg_buf b;
    sg_buf_init(&b, SIGNED_MAX);
    int rc = add_text(&b, record_tag) < 0 || add_part(&b, r->prev, SG_SHA256_LEN) < 0 ||
                     add_number(&b, r->seq) < 0 || add_number(&b, r->time_us) < 0 ||
                     add_text(&b, r->kind) < 0 || add_text(&b, r->tenant) < 0 ||
                     add_text(&b, r->lease_id) < 0 || add_text(&b, r->receipt_id) < 0 ||
                     add_text(&b, r->payload) < 0
                 ? -1
                 : 0;
    if (rc == 0)
        sg_hmac_sha256(key, key_len, b.data, b.len, mac);
    sg_buf_finish(&b);
    return rc;
}

int sg_audit_append(const void *key, size_t key_len, struct sg_audit_head *head, struct sg_audit_record *r,
                    struct sg_error *err)
{
    if (key_len < SG_AUDIT_KEY_MIN)
        return sg_error_set(err, SG_INTERNAL, "the audit key is shorter than %u bytes", SG_AUDIT_KEY_MIN);
    if (!r->kind || !*r->kind || !r->payload || strlen(r->payload) > SG_AUDIT_PAYLOAD_MAX || head->seq < 0 ||
        head->seq == INT64_MAX)
        return sg_error_set(err, SG_INTERNAL,
                            "an audit record needs a kind and a payload of at most %zu bytes",
                            SG_AUDIT_PAYLOAD_MAX);
    r->seq = head->seq + 1;
    memcpy(r->prev, head->mac, SG_SHA256_LEN);
    if (record_mac(key, key_len, r, r->mac) < 0)
        return sg_error_set(err, SG_INTERNAL, "an audit record is too long, or memory is out");
    head->seq = r->seq;
    memcpy(head->mac, r->mac, SG_SHA256_LEN);
    return 0;
}

/* ---- the head kept apart, and the base ---- */

struct line_kind {
    const char *tag, *word;
};
static const struct line_kind head_kind = {"sandgate-audit-head-1", "sandgate-audit 1 "};
static const struct line_kind base_kind = {"sandgate-audit-base-1", "sandgate-audit-base 1 "};

static void line_seal(const struct line_kind *k, const void *key, size_t key_len, const struct sg_audit_head *head,
                      char hex[HEX_LEN + 1])
{
    uint8_t seal[SG_SHA256_LEN];
    char mac[HEX_LEN + 1];
    char text[64 + SEQ_DIGITS + HEX_LEN];
    sg_hex(head->mac, SG_SHA256_LEN, mac);
    int len = snprintf(text, sizeof text, "%s %" PRId64 " %s", k->tag, head->seq, mac);
    sg_hmac_sha256(key, key_len, text, (size_t)len, seal);
    sg_hex(seal, SG_SHA256_LEN, hex);
}

static void line_write(const struct line_kind *k, const void *key, size_t key_len, const struct sg_audit_head *head,
                       char out[SG_AUDIT_HEAD_LINE])
{
    char mac[HEX_LEN + 1];
    char seal[HEX_LEN + 1];
    sg_hex(head->mac, SG_SHA256_LEN, mac);
    line_seal(k, key, key_len, head, seal);
    snprintf(out, SG_AUDIT_HEAD_LINE, "%s%" PRId64 " %s %s\n", k->word, head->seq, mac, seal);
}

static int line_read(const struct line_kind *k, const void *key, size_t key_len, const char *line, size_t len,
                     struct sg_audit_head *ret, struct sg_error *err)
{
    struct sg_audit_head head = {0};
    char wanted[SG_AUDIT_HEAD_LINE];
    size_t at = strlen(k->word);
    bool good = len > at && len < sizeof wanted && memcmp(line, k->word, at) == 0;
    size_t digits = at;
    while (good && at < len && line[at] >= '0' && line[at] <= '9' && head.seq <= (INT64_MAX - 9) / 10)
        head.seq = head.seq * 10 + (line[at++] - '0');
    char mac[HEX_LEN + 1] = "";
    good = good && at > digits && len - at > HEX_LEN + 1 && line[at] == ' ';
    if (good)
        memcpy(mac, line + at + 1, HEX_LEN);
    good = good && sg_unhex(mac, head.mac, SG_SHA256_LEN);
    if (!good)
        return sg_error_set(err, SG_INVALID_REQUEST, "an end of the audit log is malformed");
    /* One way to write one: what was read must be that, seal and all. */
    line_write(k, key, key_len, &head, wanted);
    if (strlen(wanted) != len || !sg_equal_const_time(wanted, line, len))
        return sg_error_set(err, SG_INVALID_REQUEST, "an end of the audit log was not written with this key");
    *ret = head;
    return 0;
}

void sg_audit_head_write(const void *key, size_t key_len, const struct sg_audit_head *head, char out[SG_AUDIT_HEAD_LINE])
{
    line_write(&head_kind, key, key_len, head, out);
}

int sg_audit_head_read(const void *key, size_t key_len, const char *line, size_t len, struct sg_audit_head *ret,
                       struct sg_error *err)
{
    return line_read(&head_kind, key, key_len, line, len, ret, err);
}

void sg_audit_base_write(const void *key, size_t key_len, const struct sg_audit_head *base, char out[SG_AUDIT_HEAD_LINE])
{
    line_write(&base_kind, key, key_len, base, out);
}

int sg_audit_base_read(const void *key, size_t key_len, const char *line, size_t len, struct sg_audit_head *ret,
                       struct sg_error *err)
{
    return line_read(&base_kind, key, key_len, line, len, ret, err);
}

/* ---- checking ---- */

static bool fault(struct sg_audit_check *c, int64_t seq, const char *reason)
{
    c->ok = false;
    c->bad_seq = seq;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    return false;
}

void sg_audit_check_init(struct sg_audit_check *c, const void *key, size_t key_len,
                         const struct sg_audit_head *base, const struct sg_audit_head *kept)
{
    *c = (struct sg_audit_check){.key = key, .key_len = key_len, .ok = true};
    c->at = *base;
    c->kept = *kept;
    c->kept_seen = kept->seq <= base->seq; /* an old head, or none */
}

bool sg_audit_check_next(struct sg_audit_check *c, const struct sg_audit_record *r)
{
    uint8_t mac[SG_SHA256_LEN];
    int64_t wanted = c->at.seq + 1;
    if (!c->ok)
        return false;
    if (r->seq > wanted)
        return fault(c, wanted, "record_missing");
    if (r->seq < wanted)
        return fault(c, r->seq, "record_out_of_order");
    if (!r->kind || !r->payload || record_mac(c->key, c->key_len, r, mac) < 0 ||
        !sg_equal_const_time(mac, r->mac, sizeof mac))
        return fault(c, r->seq, "record_changed");
    if (!sg_equal_const_time(c->at.mac, r->prev, sizeof r->prev))
        return fault(c, r->seq, "chain_broken");
    c->at.seq = r->seq;
    memcpy(c->at.mac, r->mac, sizeof mac);
    if (c->at.seq == c->kept.seq) {
        c->kept_seen = true;
        if (!sg_equal_const_time(c->at.mac, c->kept.mac, sizeof mac))
            return fault(c, r->seq, "head_mismatch");
    }
    return true;
}

bool sg_audit_check_end(struct sg_audit_check *c)
{
    if (c->ok && !c->kept_seen)
        return fault(c, c->at.seq + 1, "tail_cut");
    return c->ok;
}
