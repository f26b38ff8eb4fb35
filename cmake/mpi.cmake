# The transport over Open MPI in a module of its own, where Open MPI is found. The program does not
# need it: without it a model runs on one machine.
option(FLASHMOE_MPI "Build the module for several machines, where Open MPI is found" ON)
# The module looks up symbols as only the dynamic linker of Linux shows them (transport_mpi.c).
if(NOT FLASHMOE_MPI OR FLASHMOE_STATIC OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()
endif()
pkg_check_modules(OMPI IMPORTED_TARGET ompi-c)
if(NOT OMPI_FOUND)
    message(STATUS "Open MPI is not found: no clusters")
    return()
endif()
add_library(flashmoe_mpi MODULE src/cluster/mpi/transport_mpi.c)
target_include_directories(flashmoe_mpi PRIVATE include src)
target_link_libraries(flashmoe_mpi PRIVATE PkgConfig::OMPI)
# Nothing of MPI's own headers is ours to warn about, and a sanitizer's runtime is the program's.
target_compile_options(flashmoe_mpi PRIVATE -Wno-pedantic)
set_target_properties(flashmoe_mpi PROPERTIES OUTPUT_NAME flashmoe_mpi PREFIX lib SUFFIX .so)
install(TARGETS flashmoe_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/flashmoe COMPONENT cluster)
set(FLASHMOE_HAS_MPI 1)
