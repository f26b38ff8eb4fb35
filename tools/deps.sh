#!/bin/sh
# Installs the distribution packages that are missing.
# Usage: tools/deps.sh build|test|test-all|package
# Silent, and makes no use of the network, when everything is there.
#
#   group  what it is for                         check                  Debian            Homebrew
#   build  the C compiler                         cc, gcc or clang       gcc               (Xcode)
#   build  the C library's headers (Linux)        /usr/include/stdio.h   libc6-dev         (Xcode)
#   build  configures the build                   cmake                  cmake             cmake
#   build  runs the build                         ninja                  ninja-build       ninja
#   build  finds the libraries                    pkg-config             pkg-config        pkgconf
#   build  JSON                                   jansson.pc             libjansson-dev    jansson
#   build  checksums                              libxxhash.pc           libxxhash-dev     xxhash
#   build  HTTP                                   libmicrohttpd.pc       libmicrohttpd-dev (same)
#   build  edited lines in chat (Linux)           libedit.pc             libedit-dev       -
#   build  downloads models                       libcurl.pc             libcurl4-openssl-dev  curl
#   test   unit tests                             cmocka.pc              libcmocka-dev     cmocka
#   test   lint and test scripts                  python3                python3           python3
#   test   checks answers held to a schema        import jsonschema      python3-jsonschema  (pip)
#   test   headers must be usable from C++        g++, c++ or clang++    g++               (Xcode)
#   test   another HTTP client                    curl                   curl              curl
#   test   several machines (Linux)               ompi-c.pc              libopenmpi-dev    -
#          starts their processes                 mpirun                 openmpi-bin       -
#   all    the server's page (Linux): a browser   chromium               chromium          -
#          its driver                             node                   nodejs            -
#          brings the driver's packages           npm                    npm               -
#   all    kernels of the other architecture (Linux; named here for an x86-64 machine):
#          its compiler                           aarch64-linux-gnu-gcc  gcc-aarch64-linux-gnu
#          its C library                          its stdio.h            libc6-dev-arm64-cross
#          runs them                              qemu-aarch64           qemu-user
#
#   pack   packages (Linux): of Debian            dpkg-shlibdeps         dpkg-dev
#          of others                              rpmbuild               rpm
#          the static program                     musl-gcc               musl-tools
#
# test and package (`pack` above) need what build does, and test-all (`all`) what test does.
# Left to the user: clang (make fuzz), mandoc (checks the man page).
set -eu

group=${1:-build}
system=$(uname -s)
missing=
reasons=

# need CHECK-RESULT DEBIAN BREW WHY: the result is 0 when the thing is there.
need() {
    [ "$1" -eq 0 ] && return 0
    if [ "$system" = Darwin ]; then name=$3; else name=$2; fi
    missing="$missing $name"
    reasons="$reasons
  $name: $4"
}

has_command() {
    for candidate in "$@"; do
        if command -v "$candidate" >/dev/null 2>&1; then echo 0; return; fi
    done
    echo 1
}

has_header() {
    if [ "$system" != Linux ] || [ -e "/usr/include/$1" ]; then echo 0; else echo 1; fi
}

has_module() {
    if python3 -c "import $1" >/dev/null 2>&1; then echo 0; else echo 1; fi
}

# has_headers_of COMPILER: the C library that it compiles for is there.
has_headers_of() {
    if echo '#include <stdio.h>' | "$1" -E - >/dev/null 2>&1; then echo 0; else echo 1; fi
}

# has_library PKG-CONFIG-NAME DEBIAN-NAME
has_library() {
    if pkg-config --exists "$1" 2>/dev/null; then echo 0; return; fi
    if dpkg -s "$2" 2>/dev/null | grep -q '^Status: .* installed$'; then echo 0; else echo 1; fi
}

# need_other MACHINE NAME-IN-PACKAGES DEBIAN-ARCHITECTURE: to build for it and to run that here.
need_other() {
    need "$(has_command "$1-linux-gnu-gcc")" "gcc-$2-linux-gnu" - "compiles the $1 kernels"
    need "$(has_headers_of "$1-linux-gnu-gcc")" "libc6-dev-$3-cross" - "links them"
    need "$(has_command "qemu-$1")" qemu-user - "runs them"
}

need "$(has_command cc gcc clang)" gcc "(xcode-select --install)" "the C compiler"
need "$(has_header stdio.h)" libc6-dev "(xcode-select --install)" "the C library's headers"
need "$(has_command cmake)" cmake cmake "configures the build"
need "$(has_command ninja)" ninja-build ninja "runs the build"
need "$(has_command pkg-config)" pkg-config pkgconf "finds the libraries"
need "$(has_library jansson libjansson-dev)" libjansson-dev jansson "JSON"
need "$(has_library libxxhash libxxhash-dev)" libxxhash-dev xxhash "checksums"
need "$(has_library libmicrohttpd libmicrohttpd-dev)" libmicrohttpd-dev libmicrohttpd "HTTP"
need "$(has_library libcurl libcurl4-openssl-dev)" libcurl4-openssl-dev curl "downloads models"
if [ "$system" = Linux ]; then
    need "$(has_library libedit libedit-dev)" libedit-dev - "edited lines in chat"
fi
if [ "$group" = test ] || [ "$group" = test-all ]; then
    need "$(has_command python3)" python3 python3 "lint and test scripts"
    need "$(has_module jsonschema)" python3-jsonschema "(pip3 install jsonschema)" \
         "checks answers held to a schema"
    need "$(has_library cmocka libcmocka-dev)" libcmocka-dev cmocka "unit tests"
    need "$(has_command g++ c++ clang++)" g++ "(xcode-select --install)" "C++ use of the headers"
    need "$(has_command curl)" curl curl "another HTTP client"
fi
if { [ "$group" = test ] || [ "$group" = test-all ]; } && [ "$system" = Linux ]; then
    need "$(has_library ompi-c libopenmpi-dev)" libopenmpi-dev - "models on several machines"
    need "$(has_command mpirun)" openmpi-bin - "starts the processes of a cluster"
fi
if [ "$group" = test-all ] && [ "$system" = Linux ]; then
    need "$(has_command chromium chromium-browser)" chromium - "the server's page in a browser"
    need "$(has_command node)" nodejs - "drives the browser"
    need "$(has_command npm)" npm - "brings the driver's packages"
    case $(uname -m) in
    x86_64) need_other aarch64 aarch64 arm64 ;;
    aarch64) need_other x86_64 x86-64 amd64 ;;
    esac
fi
if [ "$group" = package ] && [ "$system" = Linux ]; then
    need "$(has_command dpkg-shlibdeps)" dpkg-dev - "packages of Debian"
    need "$(has_command rpmbuild)" rpm - "packages of other distributions"
    need "$(has_command musl-gcc)" musl-tools - "the static program"
fi
[ -z "$missing" ] && exit 0

echo "Missing to $group:$reasons"
if [ "$system" = Darwin ]; then
    echo "Install them with:"
    echo "  brew install jansson xxhash libmicrohttpd curl cmake ninja pkgconf cmocka"
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "These are Debian's names; install them with this system's package manager."
    exit 1
fi

install="apt-get install -y --no-install-recommends$missing"
give_up() {
    echo "$1 Type this as root, then run make again:"
    echo "  apt-get update && $install"
    exit 1
}
if [ "$(id -u)" -eq 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null 2>&1; then
    as_root="sudo env"
    [ -t 0 ] || as_root="sudo -n env"
else
    give_up "Installing needs root, and sudo is not there."
fi
echo "Installing: $install"
# A package may be in the local cache even when the lists cannot be refreshed.
$as_root apt-get update -qq || echo "apt-get update failed; trying with the lists at hand."
# shellcheck disable=SC2086
$as_root DEBIAN_FRONTEND=noninteractive $install -qq </dev/null || give_up "apt-get failed."
