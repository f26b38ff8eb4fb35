# Installs the program, both libraries, the public headers, the nano model, the pkg-config file, the
# service, examples for running the server for others, and the man page and completions that the
# program prints. Packages divide it by component (cmake/package.cmake):
#   program      what `flashmoe` needs, everything that is not named below
#   library      the shared library; development: what programs are compiled with
#   gpu, cluster the modules (cuda.cmake, mpi.cmake)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)

install(TARGETS flashmoe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/nano.fmoe DESTINATION ${CMAKE_INSTALL_DATADIR}/flashmoe)
install(FILES docs/DEPLOY.md contrib/nginx.conf contrib/Caddyfile contrib/serve.env
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Files with the prefix in them. They are configured twice: now with what the build knows, at
# `cmake --install --prefix` with the prefix.
function(flashmoe_configured file name directory component)
    configure_file(${file} share/${name}.in @ONLY)
    install(CODE "configure_file(\"${CMAKE_CURRENT_BINARY_DIR}/share/${name}.in\"
                                 \"${CMAKE_CURRENT_BINARY_DIR}/share/${name}\" @ONLY)"
            COMPONENT ${component})
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/share/${name} DESTINATION ${directory}
            COMPONENT ${component})
endfunction()
set(FLASHMOE_PREFIX "@CMAKE_INSTALL_PREFIX@")

if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    flashmoe_configured(contrib/flashmoe.service.in flashmoe.service lib/systemd/system program)
endif()

if(NOT FLASHMOE_STATIC)
    install(TARGETS flashmoe_static flashmoe_shared
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
            NAMELINK_COMPONENT development
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
    install(FILES include/flashmoe.h include/flashmoe_error.h include/flashmoe_lab.h
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

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
    flashmoe_configured(cmake/flashmoe.pc.in flashmoe.pc ${CMAKE_INSTALL_LIBDIR}/pkgconfig
                        development)
endif()

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
    set(installed ${output})
    # Packages have compressed man pages.
    if(FLASHMOE_PACKAGE AND name MATCHES "[.][1-9]$")
        set(installed ${output}.gz)
        string(APPEND name .gz)
        add_custom_command(OUTPUT ${installed} COMMAND gzip -9nkf ${output} DEPENDS ${output}
                           VERBATIM)
    endif()
    install(FILES ${installed} DESTINATION ${directory} RENAME ${name})
    set(FLASHMOE_SHARE ${FLASHMOE_SHARE} ${installed} PARENT_SCOPE)
endfunction()

flashmoe_prints(flashmoe.1 ${CMAKE_INSTALL_MANDIR}/man1 flashmoe.1 help --man)
flashmoe_prints(flashmoe.bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions flashmoe
                completions bash)
if(FLASHMOE_PACKAGE STREQUAL "deb")
    set(FLASHMOE_ZSH ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
else()
    set(FLASHMOE_ZSH ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
flashmoe_prints(_flashmoe ${FLASHMOE_ZSH} _flashmoe completions zsh)
flashmoe_prints(flashmoe.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d flashmoe.fish
                completions fish)
add_custom_target(share ALL DEPENDS ${FLASHMOE_SHARE})
