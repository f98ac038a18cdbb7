/* POST /receipts/verify: any JSON gets a verdict, and one that verifies goes on to after a round trip. */
#include "fuzz.h"

#include "base/json.h"
#include "select/receipt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_error err = {0};
    struct sg_receipt_check check;
    json_t *receipt = NULL;
    if (sg_json_parse((const char *)data, size, &receipt, &err) == 0) {
        fuzz_require(sg_receipt_verify(receipt, &check, &err) == 0, "there is a verdict");
        fuzz_require(check.ok == (check.reason[0] == '\0'), "a reason exactly when it is not ok");
        char id[SG_SHA256_HEX];
        if (!check.ok && json_is_object(receipt) && sg_receipt_id(receipt, id, &err) == 0) {
            json_object_set_new(receipt, "id", json_string(id));
            fuzz_require(sg_receipt_verify(receipt, &check, &err) == 0, "there is a verdict on a forged id");
        }
    }
    sg_error_clear(&err);
    json_decref(receipt);
    return 0;
}
