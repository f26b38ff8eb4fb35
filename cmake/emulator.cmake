# The GPU's kernels over the emulator, for tests: C++ that runs on any processor. Without a C++
# compiler the tests that need it are left out.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "No C++ compiler: the GPU's kernels are not tested")
    return()
endif()
enable_language(CXX)
add_library(flashmoe_emulated STATIC src/backend/cuda/device_emulated.cc
                                     src/backend/cuda/emulator.cc)
target_include_directories(flashmoe_emulated PUBLIC include src)
# Parts of kernels that tests call alone.
target_compile_definitions(flashmoe_emulated PUBLIC FLASHMOE_GPU_PIECES)
target_compile_features(flashmoe_emulated PRIVATE cxx_std_17)
set_target_properties(flashmoe_emulated PROPERTIES CXX_EXTENSIONS OFF)
