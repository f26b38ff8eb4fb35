# Toolchain: macOS on arm64 from another system, with the compiler of PyPI's ziglang. It has the
# headers and the list of symbols of the system, so everything is compiled and linked, and nothing
# is run.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_C_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-macos cc)
set(CMAKE_C_COMPILER_TARGET "")
# CMake wants one program for each of these.
set(CMAKE_AR ${CMAKE_CURRENT_LIST_DIR}/zig-macos CACHE FILEPATH "")
set(CMAKE_RANLIB ${CMAKE_CURRENT_LIST_DIR}/zig-macos CACHE FILEPATH "")
set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")
set(CMAKE_INSTALL_NAME_TOOL /bin/true CACHE FILEPATH "")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Only what packaging/libraries.sh has built: nothing of this machine. To try the compiler, CMake
# reads this file again in the same process, without the path.
if(CMAKE_FIND_ROOT_PATH OR NOT DEFINED ENV{PKG_CONFIG_LIBDIR})
    set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_FIND_ROOT_PATH}/lib/pkgconfig")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
