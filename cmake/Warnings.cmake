# Warnings are errors everywhere, in every build type.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
  -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wformat=2 -Wundef
  -Wpointer-arith -Wwrite-strings -Wnull-dereference -Wimplicit-fallthrough)
# clang builds the fuzz targets only. It also warns where a case falls into a bare `break` and where a designated initialiser leaves
# members out; gcc's reading is the one the code is held to.
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
  add_compile_options(-Wno-implicit-fallthrough -Wno-missing-field-initializers)
endif()
