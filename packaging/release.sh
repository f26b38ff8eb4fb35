#!/bin/sh
# Makes the files of a release from the commit that is checked out.
#
#   packaging/release.sh [--out DIR] [--only KIND,...] [--contact "NAME <ADDRESS>"] [--url URL]
#
# Kinds: source, deb, rpm, static, formula, notes; all of them unless --only says which. DIR
# (default: build-release) gets them, with SHA256SUMS. It is new, empty, or from an earlier run: what
# that made of the same commit stays in SHA256SUMS. --url says where the files will be published, for
# the Homebrew formula.
#
# The version is the one in CMakeLists.txt, and CHANGELOG.md must have its section. The tree must have
# no changes: everything is built from an export of the commit. The same commit gives the same bytes
# on machines with the same packages.
set -eu
export LC_ALL=C TZ=UTC
umask 022

fail() { echo "release.sh: $1" >&2; exit 1; }

root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build-release
kinds=source,deb,rpm,static,formula,notes
contact=
url=https://example.org/flashmoe
while [ $# -gt 0 ]; do
    case $1 in
    --out|--only|--contact|--url) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] && exit 0; exit 2 ;;
    esac
    case $1 in
    --out) out=$2 ;;
    --only) kinds=$2 ;;
    --contact) contact=$2 ;;
    --url) url=$2 ;;
    esac
    shift 2
done
[ -n "$(echo "$kinds" | tr -d ', ')" ] || fail "--only needs a kind"
for kind in $(echo "$kinds" | tr , ' '); do
    case $kind in
    source|deb|rpm|static|formula|notes) ;;
    *) fail "--only: '$kind' is no kind: say source, deb, rpm, static, formula or notes" ;;
    esac
done
case $url in
''|*[!A-Za-z0-9:/._~%?=+"&"-]*)
    fail "--url: '$url' is no URL: it may have letters, digits and :/._~%?=&+-" ;;
esac
wants() { case ,$kinds, in *,$1,*) return 0 ;; esac; return 1; }

# need COMMAND PACKAGE: stops with the name of the package that has it.
need() { command -v "$1" >/dev/null || fail "$1 is missing (Debian: $2)"; }
need git git
need cmake cmake
need ninja ninja-build
if wants deb; then need dpkg-shlibdeps dpkg-dev; need cpack cmake; fi
if wants rpm; then need rpmbuild rpm; fi
if wants static; then need musl-gcc musl-tools; fi

cd "$root"
version=$(sed -n 's/^project(flashmoe VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
[ -n "$version" ] || fail "CMakeLists.txt names no version"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: commit or remove them first
$(git status --short | head -10)"
grep -q "^## $version (20[0-9][0-9]-[01][0-9]-[0-3][0-9])\$" CHANGELOG.md ||
    fail "CHANGELOG.md has no section '## $version (YYYY-MM-DD)'"
tagged=$(git rev-parse -q --verify "refs/tags/v$version^{commit}" || true)
[ -z "$tagged" ] || [ "$tagged" = "$(git rev-parse HEAD)" ] ||
    fail "the tag v$version is another commit: raise the version in CMakeLists.txt"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

commit=$(git rev-parse HEAD)

# The marker says that the folder is this script's, and which commit SHA256SUMS is about.
marker=.flashmoe-release
[ ! -e "$out" ] || [ -d "$out" ] || fail "--out: $out is no folder"
[ -f "$out/$marker" ] || [ -z "$(ls -A "$out" 2>/dev/null)" ] ||
    fail "--out: $out is not empty and has no $marker of an earlier run: name a new folder"
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -f "$out/$marker" ] || echo none >"$out/$marker"
work=$out/.flashmoe-work # a fixed path, so that a compiler cache can help
rm -rf "$work"
made=$work/made # what this run makes
mkdir "$work" "$made"
trap 'rm -rf "$work"' EXIT
tree=$work/flashmoe-$version
machine=$(uname -m)
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
export SOURCES="${SOURCES:-$root/build-sources}" JOBS="$jobs"

git archive --format=tar --prefix="flashmoe-$version/" HEAD >"$work/source.tar"
tar -C "$work" -xf "$work/source.tar"
source_tar=flashmoe-$version.tar.gz
if wants source || wants formula; then gzip -9n <"$work/source.tar" >"$made/$source_tar"; fi

# build NAME OPTIONS...: configures and builds the exported tree in $work/NAME.
build() {
    name=$1
    shift
    echo "building for $name"
    flags="-O2 -ffile-prefix-map=$tree=. -fstack-protector-strong -D_FORTIFY_SOURCE=2"
    if ! { cmake -S "$tree" -B "$work/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS_RELEASE="$flags" -DCMAKE_INSTALL_PREFIX=/usr -DFLASHMOE_TESTS=OFF \
        -DCMAKE_EXE_LINKER_FLAGS="-Wl,-z,relro,-z,now" \
        -DCMAKE_SHARED_LINKER_FLAGS="-Wl,-z,relro,-z,now" \
        -DCMAKE_MODULE_LINKER_FLAGS="-Wl,-z,relro,-z,now" \
        ${contact:+"-DFLASHMOE_CONTACT=$contact"} "$@" &&
        cmake --build "$work/$name" -j "$jobs"; } >"$work/$name.log" 2>&1; then
        tail -40 "$work/$name.log" >&2
        fail "building for $name failed"
    fi
}

# pack NAME SUFFIX: runs CPack there and takes the packages.
pack() {
    if ! (cd "$work/$1" && cpack) >"$work/$1.log" 2>&1; then
        tail -40 "$work/$1.log" >&2
        fail "CPack failed for $1"
    fi
    mv "$work/$1"/*"$2" "$made/"
}

# libraries NAME SYSTEM: builds static libraries in $work/NAME.
libraries() {
    echo "building libraries for $1"
    "$tree/packaging/libraries.sh" "$work/$1" "$2" >/dev/null
}

if wants deb; then
    build deb -DFLASHMOE_PACKAGE=deb
    pack deb .deb
fi

if wants rpm; then
    # Other distributions have other versions of the libraries: only the C library is not linked in.
    libraries rpm-libraries ""
    PKG_CONFIG_LIBDIR="$work/rpm-libraries/lib/pkgconfig" \
        build rpm -DFLASHMOE_PACKAGE=rpm -DCMAKE_INSTALL_LIBDIR=lib64 -DFLASHMOE_MPI=OFF
    pack rpm .rpm
fi

if wants static; then
    libraries static-libraries musl
    PKG_CONFIG_LIBDIR="$work/static-libraries/lib/pkgconfig" \
        build static -DCMAKE_C_COMPILER=musl-gcc -DFLASHMOE_STATIC=ON -DFLASHMOE_LIBEDIT=OFF \
        -DCMAKE_C_FLAGS="-isystem $work/static-libraries/include"
    name=flashmoe-$version-linux-$machine
    # The service names /usr/local, where DEPLOY.md unpacks it; the program runs anywhere.
    DESTDIR=$work/stage cmake --install "$work/static" --prefix /usr/local --component program \
        --strip >/dev/null
    mv "$work/stage/usr/local" "$work/stage/$name"
    doc=$work/stage/$name/share/doc/flashmoe/libraries
    mkdir -p "$doc"
    cp "$tree/LICENSE" "$tree/CHANGELOG.md" "${doc%/*}/"
    cp "$work/static-libraries/versions" "$doc/versions"
    while read -r library rest; do
        cp "$SOURCES/$library/debian/copyright" "$doc/$library"
    done <"$doc/versions"
    chmod -R u=rwX,go=rX "$work/stage/$name"
    tar -C "$work/stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner --format=ustar -cf "$work/static.tar" "$name"
    gzip -9n <"$work/static.tar" >"$made/$name.tar.gz"
fi

if wants formula; then
    sum=$(sha256sum "$made/$source_tar" | cut -d ' ' -f 1)
    escaped=$(printf '%s\n' "$url" | sed 's/[&\\]/\\&/g')
    sed -e "s|@URL@|$escaped|g" -e "s|@VERSION@|$version|g" -e "s|@SHA256@|$sum|g" \
        "$tree/packaging/flashmoe.rb.in" >"$made/flashmoe.rb"
fi

if wants notes; then
    awk -v begin="## $version " 'index($0, begin) == 1 { on = 1; next } /^## / { on = 0 } on' \
        "$tree/CHANGELOG.md" | sed '/./,$!d' >"$made/NOTES.md"
fi

# Only now does anything change in $out. Lines of an earlier run stay as they are.
(cd "$made" && sha256sum -- *) >"$work/new"
cp "$work/new" "$work/sums"
if [ -f "$out/SHA256SUMS" ] && [ "$(cat "$out/$marker")" = "$commit" ]; then
    while read -r sum file; do
        if [ ! -e "$made/$file" ] && [ -f "$out/$file" ]; then echo "$sum  $file"; fi
    done <"$out/SHA256SUMS" >>"$work/sums"
fi
while read -r sum file; do mv -fT "$made/$file" "$out/$file"; done <"$work/new"
sort -k 2 "$work/sums" >"$out/SHA256SUMS"
echo "$commit" >"$out/$marker"
if grep -q '^## Next$' CHANGELOG.md; then
    echo "release.sh: CHANGELOG.md has changes under '## Next': they are in these files, but not" \
        "in the notes of $version; before publishing, move them to the section of a new version" >&2
fi
cat "$out/SHA256SUMS"
