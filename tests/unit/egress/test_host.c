/* Hosts have one form each, and rules say exactly what they say. */
#include <arpa/inet.h>
#include <criterion/criterion.h>

#include "backends/egress/rules.h"

Test(egress_host, names_and_addresses_have_one_form)
{
    static const struct {
        const char *text, *form;
        bool address;
    } all[] = {
        {"example.com", "example.com", false},
        {"EXAMPLE.Com.", "example.com", false},
        {"a_b-c.1a", "a_b-c.1a", false},
        {"10.0.0.1", "10.0.0.1", true},
        {"10.0.0.1.", "10.0.0.1", true},
        {"[::FFFF:10.0.0.1]", "10.0.0.1", true},
        {"[::ffff:a00:1]", "10.0.0.1", true},
        {"[2001:DB8:0:0::1]", "2001:db8::1", true},
    };
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        struct sg_host h;
        cr_assert(sg_host_parse(all[i].text, strlen(all[i].text), &h), "%s", all[i].text);
        cr_expect_str_eq(h.text, all[i].form);
        cr_expect_eq(h.is_address, all[i].address, "%s", all[i].text);
    }
}

Test(egress_host, what_some_take_for_an_address_is_no_name)
{
    static const char *const all[] = {"",           ".",          "a..b",     ".a",         "127.1",        "0x7f.1",    "2130706433", "0177.0.0.1",
                                      "10.0.0.01",  "10.0.0.256", "1.2.3.4.5", "a.0x1f",     "a.1",          "::1",       "[::1",       "[]",
                                      "[10.0.0.1]", "[fe80::1%1]", "a b",      "a/b",        "user@a",       "a:b",       "*.a",        "\xc3\xa4.de",
                                      "-\t",        "0x",         "[::1]x",    "10.0.0.1..", "a.com..",      "10.0.0.1\n"};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        struct sg_host h;
        cr_expect_not(sg_host_parse(all[i], strlen(all[i]), &h), "%s", all[i]);
    }
    struct sg_host h;
    char longest[260];
    memset(longest, 'a', sizeof longest);
    for (size_t i = 60; i < 250; i += 61) {
        longest[i] = '.';
    }
    cr_expect(sg_host_parse(longest, 253, &h));
    cr_expect_not(sg_host_parse(longest, 254, &h));
    cr_expect_not(sg_host_parse(longest, sizeof longest, &h));
    cr_expect_not(sg_host_parse("a\0b", 3, &h));
}

Test(egress_host, what_is_public)
{
    static const struct {
        const char *text;
        bool is_public;
    } all[] = {
        {"::ffff:8.8.8.8", true},      {"::ffff:10.1.2.3", false},     {"::ffff:172.15.0.1", true},   {"::ffff:172.16.0.1", false},
        {"::ffff:172.31.9.9", false},  {"::ffff:172.32.0.1", true},    {"::ffff:192.168.0.1", false}, {"::ffff:127.9.9.9", false},
        {"::ffff:169.254.169.254", false}, {"::ffff:100.64.0.1", false}, {"::ffff:100.128.0.1", true}, {"::ffff:0.0.0.0", false},
        {"::ffff:224.0.0.1", false},   {"::ffff:255.255.255.255", false}, {"::ffff:240.0.0.1", false}, {"::ffff:198.18.0.1", false},
        {"::1", false},                {"::", false},                  {"::127.0.0.1", false},        {"fe80::1", false},
        {"fd00::1", false},            {"fec0::1", false},             {"ff02::1", false},            {"2606:4700::1111", true},
        {"64:ff9b::8.8.8.8", true},    {"64:ff9b::10.0.0.1", false},   {"64:ff9b:1::8.8.8.8", false}, {"2002:0a00:0001::1", false},
        {"2001::1", false},            {"4000::1", false},             {"100::1", false},
    };
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        struct in6_addr a;
        cr_assert_eq(inet_pton(AF_INET6, all[i].text, &a), 1);
        cr_expect_eq(sg_address_is_public(&a), all[i].is_public, "%s", all[i].text);
    }
}

static enum sg_egress_match match(const struct sg_egress_rules *r, const char *target)
{
    struct sg_host h;
    uint16_t port;
    cr_assert(sg_host_port_parse(target, strlen(target), &h, &port), "%s", target);
    return sg_egress_rules_match(r, &h, port);
}

Test(egress_rules, match_what_they_name)
{
    static const char *const list[] = {"Example.com:443", "*.example.com:443", "example.com:80", "10.0.0.5:5432", "[2001:db8::1]:443", NULL};
    struct sg_egress_rules *r = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_egress_rules_new(list, &r, &err), 0, "%s", err.message);
    cr_expect_eq(match(r, "example.com:443"), SG_EGRESS_MATCH);
    cr_expect_eq(match(r, "example.com:80"), SG_EGRESS_MATCH);
    cr_expect_eq(match(r, "a.b.EXAMPLE.com.:443"), SG_EGRESS_MATCH);
    cr_expect_eq(match(r, "a.example.com:80"), SG_EGRESS_OTHER_PORT);
    cr_expect_eq(match(r, "badexample.com:443"), SG_EGRESS_NO_MATCH);
    cr_expect_eq(match(r, "example.com.evil.org:443"), SG_EGRESS_NO_MATCH);
    cr_expect_eq(match(r, "10.0.0.5:5432"), SG_EGRESS_MATCH);
    cr_expect_eq(match(r, "[::ffff:10.0.0.5]:5432"), SG_EGRESS_MATCH);
    cr_expect_eq(match(r, "10.0.0.5:22"), SG_EGRESS_OTHER_PORT);
    cr_expect_eq(match(r, "10.0.0.6:5432"), SG_EGRESS_NO_MATCH);
    cr_expect_eq(match(r, "[2001:db8:0::1]:443"), SG_EGRESS_MATCH);
    sg_egress_rules_free(r);
}

Test(egress_rules, bad_ones_are_named)
{
    static const char *const all[] = {"",       "a",       "a:",      "a:0",        "a:65536", "*:1",      "*.:1",      "a.*.b:1",
                                      "*.10.0.0.1:1", "::1:80", "[::1]", "http://a:1", "a:1/",    "a:1,b:2", "*.[::1]:1", "1.2:80"};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        const char *const list[] = {"ok.example:1", all[i], NULL};
        struct sg_egress_rules *r = NULL;
        struct sg_error err = {0};
        cr_expect_eq(sg_egress_rules_new(list, &r, &err), -1, "%s", all[i]);
        cr_expect_str_eq(err.field, "egress_allow");
    }
}
