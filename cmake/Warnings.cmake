# Warnings are errors everywhere, in every build type.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
  -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wformat=2 -Wundef
  -Wpointer-arith -Wwrite-strings -Wnull-dereference -Wimplicit-fallthrough)
