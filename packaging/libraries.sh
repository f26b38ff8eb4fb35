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
# signatures. SOURCES (default: build-sources) keeps them; newer ones replace them. OFFLINE=1 takes
# those that are there.
set -eu

[ $# -ge 1 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
system=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
sources=${SOURCES:-$root/build-sources}
mkdir -p "$sources"
sources=$(cd "$sources" && pwd)
fail() { echo "libraries.sh: $1" >&2; exit 1; }
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

# The version of the source package that is there; nothing where there is none.
unpacked() { sed -n '1s/.*(\(.*\)).*/\1/p' "$sources/$1/debian/changelog" 2>/dev/null || true; }

apt() {
    command=$1
    shift
    "$command" -qq -o "Dir::Etc::SourceList=$sources/apt/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$sources/apt/lists" \
        -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any "$@"
}

# candidate NAME: the newest version that the distribution has.
candidate() {
    newest=
    for version in $(apt apt-cache showsrc --only-source "$1" | sed -n 's/^Version: *//p'); do
        if dpkg --compare-versions "$version" gt "$newest"; then newest=$version; fi
    done
    echo "$newest"
}

# fetch NAME...: unpacks source packages as $sources/NAME, with the distribution's patches.
fetch() {
    if [ "${OFFLINE:-}" = 1 ]; then
        for name; do
            [ -n "$(unpacked "$name")" ] || fail "OFFLINE=1, and $sources/$name is no source package"
        done
        return
    fi
    command -v dpkg-source >/dev/null || fail "install dpkg-dev"
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p "$sources/apt/lists/partial"
    # The sources of where this machine's packages come from.
    apt-get indextargets --format 'deb-src $(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sort -u >"$sources/apt/sources.list"
    [ -s "$sources/apt/sources.list" ] || fail "apt knows no repository: run apt-get update"
    apt apt-get update || fail "no list of source packages (OFFLINE=1 takes those in $sources)"
    for name; do
        newest=$(candidate "$name")
        [ -n "$newest" ] || fail "the distribution ($suite) has no source package $name"
        [ "$(unpacked "$name")" = "$newest" ] || replace "$name" "$newest"
    done
}

# replace NAME VERSION: fetches that version in place of the one that is there.
replace() {
    mark=debian/.fetched # a folder without it is somebody's work
    [ ! -e "$sources/$1" ] || [ -f "$sources/$1/$mark" ] ||
        fail "$sources/$1 is not $1 $2, and not fetched by this script: move it away"
    download=$sources/apt/download
    rm -rf "$download"
    mkdir "$download"
    (cd "$download" && apt apt-get source --only-source --download-only "$1=$2")
    dpkg-source --no-check -x "$download/$1"_*.dsc "$download/unpacked" >/dev/null
    : >"$download/unpacked/$mark"
    rm -rf "${sources:?}/$1"
    mv "$download/unpacked" "$sources/$1"
    rm -rf "$download"
    [ "$(unpacked "$1")" = "$2" ] || fail "$1: wanted version $2, got $(unpacked "$1")"
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
    # No part of a condition: there the shell would go on after a command that failed.
    set +e
    (set -e; "build_$name") >"$log" 2>&1
    status=$?
    set -e
    [ "$status" -eq 0 ] || { cat "$log" >&2; fail "$name failed"; }
    echo "$name $(unpacked "$name")"
done >"$prefix/versions"
cat "$prefix/versions"
