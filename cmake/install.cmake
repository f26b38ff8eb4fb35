# Installs the program, both libraries, the public headers, the nano model, the pkg-config file,
# examples for running the server for others, and the man page and completions that the program
# prints.

install(TARGETS flashmoe flashmoe_static flashmoe_shared
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/flashmoe.h include/flashmoe_error.h include/flashmoe_lab.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY models/nano.fmoe DESTINATION ${CMAKE_INSTALL_DATADIR}/flashmoe)
install(FILES docs/DEPLOY.md contrib/flashmoe.service contrib/nginx.conf contrib/Caddyfile
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Requires.private is derived from the libraries it is linked to.
set(FLASHMOE_PC_REQUIRES)
get_target_property(linked flashmoe_objects LINK_LIBRARIES)
foreach(library ${linked})
    if(library MATCHES "^PkgConfig::(.+)$")
        list(APPEND FLASHMOE_PC_REQUIRES ${${CMAKE_MATCH_1}_MODULE_NAME})
    endif()
endforeach()
list(JOIN FLASHMOE_PC_REQUIRES ", " FLASHMOE_PC_REQUIRES)

set(FLASHMOE_PC_DL)
if(CMAKE_DL_LIBS)
    set(FLASHMOE_PC_DL -l${CMAKE_DL_LIBS})
endif()

# Configured twice: now with what the build knows, at `cmake --install --prefix` with the prefix.
set(FLASHMOE_PC_PREFIX "@CMAKE_INSTALL_PREFIX@")
configure_file(cmake/flashmoe.pc.in share/flashmoe.pc.in @ONLY)
install(CODE "configure_file(\"${CMAKE_CURRENT_BINARY_DIR}/share/flashmoe.pc.in\"
                             \"${CMAKE_CURRENT_BINARY_DIR}/share/flashmoe.pc\" @ONLY)")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/share/flashmoe.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A cross build without an emulator cannot run the program and installs without these.
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    message(STATUS "cross build: no man page and no completions")
    return()
endif()

set(FLASHMOE_SHARE)
function(flashmoe_prints file directory name)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/share/${file})
    add_custom_command(
        OUTPUT ${output}
        COMMAND ${CMAKE_COMMAND}
                "-DCOMMAND=${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:flashmoe>;${ARGN}"
                "-DOUTPUT=${output}" -P ${PROJECT_SOURCE_DIR}/cmake/capture.cmake
        DEPENDS flashmoe cmake/capture.cmake
        COMMENT "Generating share/${file}"
        VERBATIM)
    install(FILES ${output} DESTINATION ${directory} RENAME ${name})
    set(FLASHMOE_SHARE ${FLASHMOE_SHARE} ${output} PARENT_SCOPE)
endfunction()

flashmoe_prints(flashmoe.1 ${CMAKE_INSTALL_MANDIR}/man1 flashmoe.1 help --man)
flashmoe_prints(flashmoe.bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions flashmoe
                completions bash)
flashmoe_prints(_flashmoe ${CMAKE_INSTALL_DATADIR}/zsh/site-functions _flashmoe completions zsh)
flashmoe_prints(flashmoe.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d flashmoe.fish
                completions fish)
add_custom_target(share ALL DEPENDS ${FLASHMOE_SHARE})
