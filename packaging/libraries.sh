#!/bin/sh
# Builds the libraries that the program links, as static libraries, for one compiler.
#
#   packaging/libraries.sh PREFIX [SYSTEM]
#
# PREFIX gets include/, lib/ and lib/pkgconfig/. SYSTEM says what they are built for:
#   (nothing)   this machine and its C library
#   musl        this machine and musl (Debian: musl-tools)
#   macos       macOS on arm64, with the compiler of PyPI's ziglang
# A static program needs libcurl, so musl gets it, with Mbed TLS. The others get its headers: there
# the program loads the system's.
# CC, AR and RANLIB name the tools where the defaults of SYSTEM are not wanted.
#
# The sources are the distribution's source packages, with its security fixes; apt checks their
# signatures. SOURCES (default: build-sources) keeps them, so that the network is used once.
set -eu

[ $# -ge 1 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
system=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
sources=${SOURCES:-$root/build-sources}
jobs=${JOBS:-2}
packages="jansson xxhash libmicrohttpd curl"
host=
cmake_system=
flags="-O2 -fPIC"
: "${AR:=ar}" "${RANLIB:=ranlib}"
case $system in
"") : "${CC:=cc}" ;;
musl)
    : "${CC:=musl-gcc}"
    packages="jansson xxhash libmicrohttpd mbedtls curl"
    # For configure: it runs here, but is not linked as this system's programs are.
    host=$(uname -m)-linux-musl
    ;;
macos)
    : "${CC:=$root/packaging/zig-macos cc}"
    AR="$root/packaging/zig-macos ar"
    RANLIB="$root/packaging/zig-macos ranlib"
    host=aarch64-apple-darwin
    cmake_system="-DCMAKE_TOOLCHAIN_FILE=$root/packaging/macos-arm64.cmake"
    ;;
*) echo "libraries.sh: '$system' is no system: say musl, macos or nothing" >&2; exit 2 ;;
esac

# fetch NAME...: unpacks source packages as $sources/NAME, with the distribution's patches.
fetch() {
    wanted=
    for name; do [ -d "$sources/$name" ] || wanted="$wanted $name"; done
    [ -n "$wanted" ] || return 0
    command -v dpkg-source >/dev/null || { echo "libraries.sh: install dpkg-dev" >&2; exit 1; }
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p "$sources/apt/lists/partial" "$sources/packages"
    {
        echo "deb-src https://mirror.example/debian $suite main"
        echo "deb-src https://mirror.example/debian $suite-updates main"
        echo "deb-src https://mirror.example/debian-security $suite-security main"
    } >"$sources/apt/sources.list"
    (
        cd "$sources/packages"
        set -- -o "Dir::Etc::SourceList=$sources/apt/sources.list" \
            -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$sources/apt/lists" \
            -o APT::Sandbox::User=root
        apt-get -qq "$@" update
        # shellcheck disable=SC2086
        apt-get -qq "$@" source --download-only $wanted
    )
    for name in $wanted; do
        rm -rf "$sources/$name.new"
        dpkg-source --no-check -x "$sources/packages/${name}"_*.dsc "$sources/$name.new" >/dev/null
        mv "$sources/$name.new" "$sources/$name"
    done
}

# pc NAME VERSION LIBS: writes a pkg-config file.
pc() {
    printf 'prefix=%s\nName: %s\nDescription: %s\nVersion: %s\n' "$prefix" "$1" "$1" "$2"
    printf 'Cflags: -I${prefix}/include\nLibs: -L${prefix}/lib %s\n' "$3"
}

version_of() { head -1 "$sources/$1/debian/changelog" | sed 's/.*(\([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/'; }

with_cmake() {
    name=$1
    shift
    # shellcheck disable=SC2086
    cmake -S "$sources/$name" -B "$work/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_FLAGS="$flags" $cmake_system ${cmake_system:--DCMAKE_C_COMPILER="$CC"} "$@"
    cmake --build "$work/$name" -j "$jobs"
    cmake --install "$work/$name"
}

build_jansson() {
    with_cmake jansson -DJANSSON_BUILD_DOCS=OFF -DJANSSON_EXAMPLES=OFF -DJANSSON_WITHOUT_TESTS=ON
}

build_xxhash() {
    mkdir -p "$work/xxhash" "$prefix/include" "$prefix/lib/pkgconfig"
    parts=xxhash
    [ "$system" = macos ] || [ "$(uname -m)" != x86_64 ] || parts="xxhash xxh_x86dispatch"
    objects=
    for part in $parts; do
        $CC $flags -O3 -c "$sources/xxhash/$part.c" -o "$work/xxhash/$part.o"
        cp "$sources/xxhash/$part.h" "$prefix/include/"
        objects="$objects $work/xxhash/$part.o"
    done
    cp "$sources/xxhash/xxh3.h" "$prefix/include/"
    rm -f "$prefix/lib/libxxhash.a"
    $AR rc "$prefix/lib/libxxhash.a" $objects
    $RANLIB "$prefix/lib/libxxhash.a"
    pc libxxhash "$(version_of xxhash)" -lxxhash >"$prefix/lib/pkgconfig/libxxhash.pc"
}

build_libmicrohttpd() {
    mkdir -p "$work/libmicrohttpd"
    (
        cd "$work/libmicrohttpd"
        # The distribution's patches make generated files look old: nothing is generated again.
        "$sources/libmicrohttpd/configure" -q --prefix="$prefix" --libdir="$prefix/lib" \
            ${host:+--host=$host} --disable-shared --enable-static --disable-https \
            --disable-curl --disable-doc --disable-examples --disable-tools --disable-dauth \
            CC="$CC" AR="$AR" RANLIB="$RANLIB" CFLAGS="$flags" ACLOCAL=: AUTOCONF=: AUTOHEADER=: \
            AUTOMAKE=: MAKEINFO=:
        make -s -j "$jobs" -C src/microhttpd
        make -s -C src/microhttpd install
        make -s -C src/include install
        make -s install-data-am
    )
}

build_mbedtls() {
    with_cmake mbedtls -DENABLE_PROGRAMS=OFF -DENABLE_TESTING=OFF -DGEN_FILES=OFF
}

# HTTP only. The program says where the certificates are (apps/pull/web.c).
build_curl() {
    if [ "$system" != musl ]; then
        mkdir -p "$prefix/include/curl"
        cp "$sources"/curl/include/curl/*.h "$prefix/include/curl/"
        pc libcurl "$(version_of curl)" "" >"$prefix/lib/pkgconfig/libcurl.pc"
        return
    fi
    with_cmake curl -DBUILD_CURL_EXE=OFF -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF \
        -DHTTP_ONLY=ON -DCURL_USE_MBEDTLS=ON -DCURL_USE_OPENSSL=OFF -DCURL_USE_LIBSSH2=OFF \
        -DCURL_ZLIB=OFF -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_CA_BUNDLE=none \
        -DCURL_CA_PATH=none -DENABLE_MANUAL=OFF
    pc libcurl "$(version_of curl)" "-lcurl -lmbedtls -lmbedx509 -lmbedcrypto" \
        >"$prefix/lib/pkgconfig/libcurl.pc"
}

# shellcheck disable=SC2086
fetch $packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Paths of this machine do not reach the libraries.
flags="$flags -ffile-prefix-map=$sources=. -ffile-prefix-map=$work=."
if [ "$system" = musl ]; then
    # The kernel's headers, which musl does not bring: for io_uring, and for Mbed TLS's random bits.
    mkdir -p "$prefix/include"
    for name in linux asm-generic; do ln -sfn "/usr/include/$name" "$prefix/include/$name"; done
    ln -sfn "/usr/include/$(uname -m)-linux-gnu/asm" "$prefix/include/asm"
    flags="$flags -isystem $prefix/include"
fi
for name in $packages; do
    log=$prefix/$name.log
    "build_$name" >"$log" 2>&1 || { cat "$log"; echo "libraries.sh: $name failed" >&2; exit 1; }
    echo "$name $(head -1 "$sources/$name/debian/changelog" | sed 's/.*(\(.*\)).*/\1/')"
done >"$prefix/versions"
cat "$prefix/versions"
