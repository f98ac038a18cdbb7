#include "http/ws_offer.h"

#include <criterion/criterion.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define GOOD {"Connection", "Upgrade"}, {"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}
#define KEY {"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}

static enum sg_code code_of(const struct sg_header *h, size_t n, struct sg_ws_offer *o)
{
    struct sg_error err = {0};
    enum sg_code code = sg_ws_offer_read(h, n, o, &err) == 0 ? SG_OK : err.code;
    sg_error_clear(&err);
    return code;
}

Test(ws_offer, the_example_of_the_specification)
{
    const struct sg_header h[] = {GOOD, KEY};
    struct sg_ws_offer o;
    cr_assert_eq(code_of(h, N(h), &o), SG_OK);
    cr_expect_str_eq(o.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    cr_expect(!o.protocol);
}

Test(ws_offer, lists_in_any_case_and_several_lines)
{
    const struct sg_header h[] = {{"connection", "keep-alive ,  UPGRADE"}, {"upgrade", "h2c"}, {"UPGRADE", ",WebSocket,"},
                                  {"sec-websocket-version", "13"}, KEY, {"Sec-WebSocket-Protocol", "a"},
                                  {"sec-websocket-protocol", " b, sandgate.v1 ,"}};
    struct sg_ws_offer o;
    cr_assert_eq(code_of(h, N(h), &o), SG_OK);
    cr_expect(o.protocol);
}

Test(ws_offer, what_is_none)
{
    const struct sg_header whole[] = {GOOD, KEY};
    struct sg_ws_offer o;
    for (size_t i = 0; i < N(whole); i++) { /* without one of them */
        struct sg_header h[N(whole)];
        size_t n = 0;
        for (size_t k = 0; k < N(whole); k++)
            if (k != i)
                h[n++] = whole[k];
        cr_expect_eq(code_of(h, n, &o), i < 3 ? SG_UPGRADE_REQUIRED : SG_INVALID_REQUEST, "%zu", i);
    }
    cr_expect_eq(code_of(NULL, 0, &o), SG_UPGRADE_REQUIRED);
    static const char *const keys[] = {"", "x", "dGhlIHNhbXBsZSBub25jZQ=", "dGhlIHNhbXBsZSBub25jZ", "dGhlIHNhbXBsZSBub25jZSE=", "!GhlIHNhbXBsZSBub25jZQ==",
                                       "dGhlIHNhbXBsZSBub25jZQ==="};
    for (size_t i = 0; i < N(keys); i++) {
        const struct sg_header h[] = {GOOD, {"Sec-WebSocket-Key", keys[i]}};
        cr_expect_eq(code_of(h, N(h), &o), SG_INVALID_REQUEST, "%s", keys[i]);
    }
    const struct sg_header twice[] = {GOOD, KEY, KEY};
    cr_expect_eq(code_of(twice, N(twice), &o), SG_INVALID_REQUEST);
    static const char *const protocols[] = {"chat", "Sandgate.v1", "sandgate.v11", "bearer.eA"};
    for (size_t i = 0; i < N(protocols); i++) {
        const struct sg_header h[] = {GOOD, KEY, {"Sec-WebSocket-Protocol", protocols[i]}};
        cr_expect_eq(code_of(h, N(h), &o), SG_INVALID_REQUEST, "%s", protocols[i]);
    }
}

Test(ws_offer, tokens)
{
    static const struct {
        const char *offer, *token;
    } cases[] = {
        {"sandgate.v1, bearer.dG9rZW4", "token"}, {"bearer.dG9rZW4tYg,sandgate.v1", "token-b"}, {"bearer.fn4_Pz8", "~~???"},
        {"sandgate.v1", NULL},                    {"bearer.", NULL},                             {"bearer.dG9rZW4tYg==", NULL},
        {"bearer.dG9rZW4=", NULL},                {"bearer.A", NULL},                            {"bearer.fn4/Pz8", NULL},
        {"bearer.dG9rZW4tYgA", NULL},             {"bearer.!!!!", NULL},                         {"Bearer.dG9rZW4", NULL},
    };
    for (size_t i = 0; i < N(cases); i++) {
        const struct sg_header h[] = {{"Sec-WebSocket-Protocol", cases[i].offer}};
        sg_cleanup(sg_free_p) char *token = sg_ws_offer_token(h, 1);
        bool right = cases[i].token ? token && strcmp(token, cases[i].token) == 0 : !token;
        cr_expect(right, "%s: %s", cases[i].offer, token ? token : "none");
    }
    static char longest[SG_WS_TOKEN_MAX + 64] = "bearer.";
    memset(longest + 7, 'a', SG_WS_TOKEN_MAX + 4);
    const struct sg_header h[] = {{"Sec-WebSocket-Protocol", longest}};
    cr_expect_null(sg_ws_offer_token(h, 1));
    longest[7 + SG_WS_TOKEN_MAX] = '\0';
    sg_cleanup(sg_free_p) char *token = sg_ws_offer_token(h, 1);
    cr_expect_not_null(token);
}
