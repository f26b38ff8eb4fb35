# The GPU's kernels and their device in a library of its own, where nvcc 12 or newer is found. The
# program does not need it: without it there is only the processor.
find_program(FLASHMOE_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin /usr/local/cuda/bin /opt/cuda/bin
             DOC "The CUDA compiler; empty: no GPU")
if(NOT FLASHMOE_NVCC OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR FLASHMOE_STATIC)
    return()
endif()
execute_process(COMMAND ${FLASHMOE_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
if(NOT version MATCHES "release ([0-9]+)\\." OR CMAKE_MATCH_1 LESS 12)
    message(STATUS "${FLASHMOE_NVCC} is older than CUDA 12: no GPU")
    return()
endif()
# Machine code for four architectures, and PTX, which a driver compiles for newer ones.
set(FLASHMOE_CUDA_ARCHITECTURES "80;86;89;90" CACHE STRING "Compute capabilities without the point")
set(codes)
foreach(architecture ${FLASHMOE_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
    set(newest ${architecture})
endforeach()
list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
set(FLASHMOE_CUDA_LIBRARY ${CMAKE_CURRENT_BINARY_DIR}/libflashmoe_cuda.so)
# The flags that define the bits of a result, as in language.h.
add_custom_command(
    OUTPUT ${FLASHMOE_CUDA_LIBRARY}
    COMMAND ${FLASHMOE_NVCC} -std=c++17 -O2 -shared -cudart static --threads 0 ${codes}
            -DFLASHMOE_VERSION="${PROJECT_VERSION}"
            -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
            -Xcompiler -fPIC,-fvisibility=hidden -I${PROJECT_SOURCE_DIR}/src
            -I${PROJECT_SOURCE_DIR}/include -MD -MF ${FLASHMOE_CUDA_LIBRARY}.d
            -MT ${FLASHMOE_CUDA_LIBRARY} -o ${FLASHMOE_CUDA_LIBRARY}
            ${PROJECT_SOURCE_DIR}/src/backend/cuda/device_cuda.cu
    DEPENDS src/backend/cuda/device_cuda.cu
    DEPFILE ${FLASHMOE_CUDA_LIBRARY}.d
    COMMENT "Compiling the GPU's kernels"
    VERBATIM)
add_custom_target(flashmoe_cuda ALL DEPENDS ${FLASHMOE_CUDA_LIBRARY})
install(FILES ${FLASHMOE_CUDA_LIBRARY} DESTINATION ${CMAKE_INSTALL_LIBDIR}/flashmoe COMPONENT gpu)
set(FLASHMOE_HAS_CUDA 1)
