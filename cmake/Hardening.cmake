# Release hardening; sanitizer builds leave it out because the two do not mix.
add_compile_options(-fvisibility=hidden -fno-strict-aliasing -fno-common)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND SANITIZE STREQUAL "")
  add_compile_options(-O2 -g1 -fstack-protector-strong -fstack-clash-protection -fcf-protection -U_FORTIFY_SOURCE
    -D_FORTIFY_SOURCE=3)
  add_link_options(-Wl,-z,relro,-z,now -Wl,-z,noexecstack)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<IF:$<BOOL:$<TARGET_PROPERTY:SG_STATIC>>,-static-pie,-pie>>)
endif()
