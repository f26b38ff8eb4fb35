# The page of the server, compiled into the library; made anew when one of its files changes.
file(GLOB FLASHMOE_WEB_FILES CONFIGURE_DEPENDS src/server/web/*)
set(FLASHMOE_WEB_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/web_files.c)
add_custom_command(
    OUTPUT ${FLASHMOE_WEB_SOURCE}
    COMMAND ${CMAKE_COMMAND} "-DDIRECTORY=${CMAKE_CURRENT_SOURCE_DIR}/src/server/web"
            "-DOUTPUT=${FLASHMOE_WEB_SOURCE}" -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${FLASHMOE_WEB_FILES} cmake/embed.cmake
    COMMENT "Generating web_files.c"
    VERBATIM)
target_sources(flashmoe_objects PRIVATE ${FLASHMOE_WEB_SOURCE})
