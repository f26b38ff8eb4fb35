# The kernel files of this architecture and their flags; those of the other one are not compiled.
set(FLASHMOE_FLAGS_ref -O3)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(FLASHMOE_LEVELS ref avx2 avx512 amx)
    set(FLASHMOE_FLAGS_avx2 -O3 -mavx2 -mfma -mf16c)
    set(FLASHMOE_FLAGS_avx512 -O3 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
                              -mavx512vnni)
    set(FLASHMOE_FLAGS_amx ${FLASHMOE_FLAGS_avx512} -mamx-tile -mamx-int8)
else()
    set(FLASHMOE_LEVELS ref dotprod i8mm)
    # GCC's scheduler before register allocation moves loads up until accumulators spill.
    set(FLASHMOE_NEON_FLAGS -O3 $<$<C_COMPILER_ID:GNU>:-fno-schedule-insns>)
    set(FLASHMOE_FLAGS_dotprod ${FLASHMOE_NEON_FLAGS} -march=armv8.2-a+dotprod)
    set(FLASHMOE_FLAGS_i8mm ${FLASHMOE_NEON_FLAGS} -march=armv8.2-a+dotprod+i8mm)
endif()

# With instrumentation, each of these files takes more than twelve minutes and 2 GB to compile.
# checkkernel finds accesses beyond their arrays with guard pages instead. The reference, k_ref.c,
# is instrumented.
if(FLASHMOE_SANITIZE)
    foreach(level ${FLASHMOE_LEVELS})
        if(NOT level STREQUAL ref)
            list(APPEND FLASHMOE_FLAGS_${level} -fno-sanitize=all)
        endif()
    endforeach()
endif()

set(FLASHMOE_LEVEL_FILES)
foreach(level ${FLASHMOE_LEVELS})
    set(file ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cpu/k_${level}.c)
    list(APPEND FLASHMOE_LEVEL_FILES ${file})
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${FLASHMOE_FLAGS_${level}}")
endforeach()
list(REMOVE_ITEM FLASHMOE_KERNELS ${FLASHMOE_LEVEL_FILES})
set_source_files_properties(${FLASHMOE_KERNELS} PROPERTIES HEADER_FILE_ONLY ON)
