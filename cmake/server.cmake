# The server: part of the program, not of the library, so the library does not need libmicrohttpd.
# The files of the web page become byte arrays in one generated C file.
file(GLOB FLASHMOE_SERVER_SOURCES CONFIGURE_DEPENDS src/server/*.c)
list(FILTER FLASHMOE_SERVER_SOURCES EXCLUDE REGEX "_test\\.c$")
file(GLOB FLASHMOE_WEB_FILES CONFIGURE_DEPENDS src/server/web/*)

set(FLASHMOE_WEB_C ${CMAKE_CURRENT_BINARY_DIR}/web_files.c)
add_custom_command(
    OUTPUT ${FLASHMOE_WEB_C}
    COMMAND ${CMAKE_COMMAND} "-DDIRECTORY=${PROJECT_SOURCE_DIR}/src/server/web"
            "-DOUTPUT=${FLASHMOE_WEB_C}" -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${FLASHMOE_WEB_FILES} cmake/embed.cmake
    COMMENT "Embedding the page"
    VERBATIM)

add_library(flashmoe_server STATIC ${FLASHMOE_SERVER_SOURCES} ${FLASHMOE_WEB_C})
target_compile_definitions(flashmoe_server PRIVATE $<$<CONFIG:Release>:NDEBUG>)
target_link_libraries(flashmoe_server PUBLIC flashmoe_static PkgConfig::MICROHTTPD)
