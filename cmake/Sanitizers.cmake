# -DSANITIZE=address,undefined or -DSANITIZE=thread. The agent is static and carries none (SG_STATIC).
if(NOT SANITIZE STREQUAL "")
  add_compile_options($<$<NOT:$<BOOL:$<TARGET_PROPERTY:SG_STATIC>>>:-fsanitize=${SANITIZE}>
    -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -Og -Wno-maybe-uninitialized)
  add_link_options($<$<NOT:$<BOOL:$<TARGET_PROPERTY:SG_STATIC>>>:-fsanitize=${SANITIZE}>)
endif()
define_property(TARGET PROPERTY SG_STATIC BRIEF_DOCS "statically linked, never sanitized" FULL_DOCS
  "statically linked, never sanitized")

# libFuzzer wants to see which branches the code under test takes.
if(SG_FUZZ)
  add_compile_options($<$<NOT:$<BOOL:$<TARGET_PROPERTY:SG_STATIC>>>:-fsanitize=fuzzer-no-link>)
endif()
