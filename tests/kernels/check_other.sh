#!/bin/sh
# Builds checkkernel for the other architecture and runs it in an emulator with all instructions.
# Usage: tests/kernels/check_other.sh PROCESSOR BUILD-FOLDER; the processor is this machine's.
# Fails when a tool is missing: tools/deps.sh test-all installs them.
set -eu

case $1 in
x86_64 | AMD64) other=aarch64 packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" ;;
aarch64 | arm64) other=x86_64 packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross qemu-user" ;;
*) echo "no other architecture is known for '$1'"; exit 1 ;;
esac
build=$2
compiler=$other-linux-gnu-gcc
emulator=qemu-$other
here=$(dirname "$0")

for tool in "$compiler" "$emulator"; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing; tools/deps.sh test-all installs $packages"
        exit 1
    }
done

# Linked statically, so that the emulator needs no libraries of the other architecture.
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR="$other" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_EXE_LINKER_FLAGS=-static
cmake --build "$build" --parallel "${JOBS:-2}"

# Tests all levels that the emulator has; the named one must be among them. qemu 7.2 reads even the
# bytes that an x86 masked load leaves out, so there no buffer may end at the end of memory. It is
# also slow.
case $other in
aarch64) best=i8mm rounds=16 options= ;;
x86_64) best=avx2 rounds=4 options=--no-pages ;;
esac
check() {
    # shellcheck disable=SC2086
    "$emulator" -cpu max "$build/checkkernel" $options "$@"
}
check --level $best --kernel matmul --format q8_0 --rounds 4
check --rounds $rounds
