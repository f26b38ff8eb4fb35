#!/bin/sh
# Checks the products of AMX tiles on an x86-64 processor with AVX-512, with or without tiles: tile
# instructions are emulated in C. Usage: tests/kernels/check_tiles.sh BUILD-FOLDER COMPILER
# Exit status 77: this processor has no AVX-512 VNNI.
set -eu

here=$(dirname "$0")
grep -q avx512_vnni /proc/cpuinfo || {
    echo "skipped: this processor has no AVX-512 with VNNI"
    exit 77
}
cmake -S "$here" -B "$1" -G Ninja -DCMAKE_C_COMPILER="$2" -DFLASHMOE_EMULATE_TILES=ON
cmake --build "$1" --parallel "${JOBS:-2}"
"$1/checkkernel" --level avx512 --kernel matmul --rounds 30 | tee "$1/cases"
grep -q "^[1-9][0-9]* cases, 0 failures" "$1/cases"
