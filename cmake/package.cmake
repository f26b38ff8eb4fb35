# Packages, made by CPack from the components of install.cmake. packaging/release.sh configures each
# kind as it must be: -DFLASHMOE_PACKAGE=deb or rpm, and the prefix /usr.
set(FLASHMOE_CONTACT "Flash-MoE authors <authors@flashmoe.example.org>" CACHE STRING
    "Who answers for the packages")
if(NOT FLASHMOE_PACKAGE)
    return()
elseif(NOT FLASHMOE_PACKAGE MATCHES "^(deb|rpm)$")
    message(FATAL_ERROR "FLASHMOE_PACKAGE is '${FLASHMOE_PACKAGE}': say deb or rpm, or nothing")
endif()
string(TOUPPER ${FLASHMOE_PACKAGE} CPACK_GENERATOR)

# Settings of the service. `make install` leaves /etc alone; packages know what the user changed.
install(FILES contrib/serve.env DESTINATION /etc/flashmoe COMPONENT settings EXCLUDE_FROM_ALL
        PERMISSIONS OWNER_READ OWNER_WRITE)

set(CPACK_PACKAGE_NAME flashmoe)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${FLASHMOE_CONTACT})
set(CPACK_PACKAGE_VENDOR "the Flash-MoE authors")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON) # the settings have an absolute path
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL program settings library development)
set(CPACK_COMPONENT_PROGRAM_GROUP program)
set(CPACK_COMPONENT_SETTINGS_GROUP program)
set(CPACK_COMPONENT_LIBRARY_GROUP library)
set(CPACK_COMPONENT_DEVELOPMENT_GROUP development)
if(FLASHMOE_HAS_CUDA)
    list(APPEND CPACK_COMPONENTS_ALL gpu)
    set(CPACK_COMPONENT_GPU_GROUP gpu)
endif()
if(FLASHMOE_HAS_MPI)
    list(APPEND CPACK_COMPONENTS_ALL cluster)
    set(CPACK_COMPONENT_CLUSTER_GROUP cluster)
endif()

# summary_PACKAGE and description_PACKAGE; lines of at most 78 characters.
set(summary_program "run Mixture-of-Experts language models larger than memory")
set(description_program
"Keeps the dense part of a model in memory and its experts on the SSD. Each
token reads only the experts that its routers pick. The results have the same
bits whatever the memory budget.
This package has the program with a server for the APIs of OpenAI, Anthropic
and Ollama, its web page, a small model to try it with, and a systemd service
that is not enabled by installing it.")
set(summary_library "library that runs Mixture-of-Experts language models")
set(description_library "The shared library of Flash-MoE, for programs that are linked to it.")
set(summary_development "headers and static library of Flash-MoE")
set(description_development
"What programs need that are compiled against libflashmoe: headers, the static
library and the pkg-config file.")
set(summary_gpu "NVIDIA GPUs for Flash-MoE")
set(description_gpu
"The kernels with which Flash-MoE computes on an NVIDIA GPU of compute
capability 8.0 or newer. The driver of the GPU must be installed.")
set(summary_cluster "several machines for Flash-MoE")
set(description_cluster
"Connects the processes of Flash-MoE that run one model on several machines,
with Open MPI.")

include(cmake/package_${FLASHMOE_PACKAGE}.cmake)
include(CPack)
foreach(group program library development gpu cluster)
    cpack_add_component_group(${group} DISPLAY_NAME ${group} DESCRIPTION "${description_${group}}")
endforeach()
