# RPM packages.
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_RELEASE 1)
set(CPACK_RPM_PACKAGE_LICENSE MIT)
set(CPACK_RPM_PACKAGE_GROUP Applications/Text)
set(CPACK_RPM_COMPRESSION_TYPE gzip) # weights do not get smaller with more effort
set(CPACK_RPM_PACKAGE_AUTOREQPROV ON)
# The same files give the same package.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define use_source_date_epoch_as_buildtime 1
%define clamp_mtime_to_source_date_epoch 1
%define source_date_epoch_from_changelog 0
%define _buildhost localhost
%define _build_id_links none")

set(name_program flashmoe)
set(name_library flashmoe-libs)
set(name_development flashmoe-devel)
set(name_gpu flashmoe-cuda)
set(name_cluster flashmoe-mpi)
foreach(group program library development gpu cluster)
    string(TOUPPER ${group} GROUP)
    set(CPACK_RPM_${GROUP}_PACKAGE_NAME ${name_${group}})
    set(CPACK_RPM_${GROUP}_PACKAGE_SUMMARY "${summary_${group}}")
    set(CPACK_RPM_${GROUP}_PACKAGE_DESCRIPTION "${description_${group}}")
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/${name_${group}}
            COMPONENT ${group} EXCLUDE_FROM_ALL)
endforeach()

set(same "= ${PROJECT_VERSION}-${CPACK_RPM_PACKAGE_RELEASE}")
set(CPACK_RPM_PROGRAM_USER_FILELIST
    "%config(noreplace) %attr(600, root, root) /etc/flashmoe/serve.env")
set(CPACK_RPM_PROGRAM_PACKAGE_SUGGESTS "libcurl, ca-certificates")
set(CPACK_RPM_PROGRAM_POST_INSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/packaging/rpm/post)
set(CPACK_RPM_PROGRAM_PRE_UNINSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/packaging/rpm/preun)
set(CPACK_RPM_PROGRAM_POST_UNINSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/packaging/rpm/postun)
set(CPACK_RPM_LIBRARY_POST_INSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/packaging/rpm/ldconfig)
set(CPACK_RPM_LIBRARY_POST_UNINSTALL_SCRIPT_FILE ${PROJECT_SOURCE_DIR}/packaging/rpm/ldconfig)
set(CPACK_RPM_DEVELOPMENT_PACKAGE_REQUIRES "${name_library} ${same}")
set(CPACK_RPM_GPU_PACKAGE_REQUIRES "${name_program} ${same}")
set(CPACK_RPM_CLUSTER_PACKAGE_REQUIRES "${name_program} ${same}")
# Folders of other packages.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc /usr/lib/systemd /usr/lib/systemd/system
    /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/fish
    /usr/share/fish/vendor_completions.d /usr/share/licenses /usr/share/zsh
    /usr/share/zsh/site-functions /usr/share/man /usr/share/man/man1 /usr/lib64/pkgconfig)
