# cmake -DDIRECTORY=DIR -DOUTPUT=FILE.c -P embed.cmake: converts the files of a folder to the
# table of src/server/web.h. A file type without an entry here stops the build.
cmake_minimum_required(VERSION 3.21)

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

file(GLOB files RELATIVE ${DIRECTORY} ${DIRECTORY}/*)
list(SORT files)
list(REMOVE_ITEM files index.html)
list(PREPEND files index.html)

set(arrays "")
set(entries "")
set(n 0)
foreach(file ${files})
    string(REGEX REPLACE "^.*\\." "" suffix ${file})
    if(NOT DEFINED type_${suffix})
        message(FATAL_ERROR "${DIRECTORY}/${file}: no media type is known for '.${suffix}'")
    endif()
    file(READ ${DIRECTORY}/${file} hex HEX)
    file(SHA256 ${DIRECTORY}/${file} hash)
    string(SUBSTRING ${hash} 0 16 hash)
    string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND arrays "static const unsigned char file_${n}[] = {\n${hex}\n};\n")
    set(path "/${file}")
    if(file STREQUAL index.html)
        set(path "/")
    endif()
    string(APPEND entries "    {\"${path}\", \"${type_${suffix}}\", file_${n}, sizeof file_${n}, "
                          "\"\\\"${hash}\\\"\"},\n")
    math(EXPR n "${n} + 1")
endforeach()

file(WRITE ${OUTPUT} "/* Made by cmake/embed.cmake. */\n#include \"server/web.h\"\n\n${arrays}\n"
                     "const struct web_file web_files[] = {\n${entries}};\n"
                     "const size_t web_n_files = ${n};\n")
