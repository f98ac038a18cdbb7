# Run with cmake -P: writes OUT, a C file that defines `const char NAME[]` with the bytes of IN and a NUL.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
string(REGEX REPLACE "(('[^']*',){24})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* Generated from ${IN}. */\nextern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes} '\\0'};\n")
