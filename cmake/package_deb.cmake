# Debian packages: what dpkg wants to know, and the files that its policy wants in each package.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# Packages of the distribution begin with 1 and replace these.
set(CPACK_DEBIAN_PACKAGE_RELEASE 0upstream1)
set(CPACK_DEBIAN_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip) # weights do not get smaller with more effort

set(name_program flashmoe)
set(name_library libflashmoe${FLASHMOE_ABI})
set(name_development libflashmoe-dev)
set(name_gpu flashmoe-cuda)
set(name_cluster flashmoe-mpi)
set(section_library libs)
set(section_development libdevel)

# Policy wants changelog, copyright and the reasons for lintian in each package.
string(TIMESTAMP FLASHMOE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC) # of SOURCE_DATE_EPOCH
configure_file(packaging/deb/changelog.in package/changelog.Debian @ONLY)
file(READ LICENSE FLASHMOE_LICENCE)
string(REGEX REPLACE "^.*\n\n(Permission.*)$" "\\1" FLASHMOE_LICENCE "${FLASHMOE_LICENCE}")
string(REGEX REPLACE "\n\n" "\n.\n" FLASHMOE_LICENCE "${FLASHMOE_LICENCE}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" FLASHMOE_LICENCE "${FLASHMOE_LICENCE}")
configure_file(packaging/deb/copyright.in package/copyright @ONLY)
execute_process(COMMAND gzip -9nkf package/changelog.Debian
                WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} COMMAND_ERROR_IS_FATAL ANY)

foreach(group program library development gpu cluster)
    string(TOUPPER ${group} GROUP)
    set(CPACK_DEBIAN_${GROUP}_PACKAGE_NAME ${name_${group}})
    set(CPACK_DEBIAN_${GROUP}_DESCRIPTION "${summary_${group}}\n${description_${group}}")
    if(section_${group})
        set(CPACK_DEBIAN_${GROUP}_PACKAGE_SECTION ${section_${group}})
    endif()
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/package/copyright
                  ${CMAKE_CURRENT_BINARY_DIR}/package/changelog.Debian.gz
            DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name_${group}}
            COMPONENT ${group} EXCLUDE_FROM_ALL)
    if(EXISTS ${PROJECT_SOURCE_DIR}/packaging/deb/${name_${group}}.lintian)
        install(FILES packaging/deb/${name_${group}}.lintian RENAME ${name_${group}}
                DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides
                COMPONENT ${group} EXCLUDE_FROM_ALL)
    endif()
endforeach()

set(same "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
# libcurl is loaded when something is downloaded.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libcurl4 | libcurl3-gnutls, ca-certificates")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/packaging/deb/postinst;${PROJECT_SOURCE_DIR}/packaging/deb/prerm"
    "${PROJECT_SOURCE_DIR}/packaging/deb/postrm;${PROJECT_SOURCE_DIR}/packaging/deb/conffiles")
# What programs that are linked to the library depend on. CPack would call ldconfig too: the trigger
# does that.
set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/deb/no_ldconfig.cmake)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/package/shlibs
     "libflashmoe ${FLASHMOE_ABI} ${name_library} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/packaging/deb/triggers"
    "${CMAKE_CURRENT_BINARY_DIR}/package/shlibs")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "${name_library} ${same}, libjansson-dev, libxxhash-dev, pkg-config")
set(CPACK_DEBIAN_GPU_PACKAGE_DEPENDS "${name_program} ${same}")
set(CPACK_DEBIAN_CLUSTER_PACKAGE_DEPENDS "${name_program} ${same}, openmpi-bin")
