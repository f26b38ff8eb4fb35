#!/bin/sh
# Makes a folder with which several ranks run on a Linux machine that has no Open MPI.
#
# usage: mpi_kit.sh KIT PROGRAM
#
# PROGRAM is build/flashmoe; libflashmoe_mpi.so lies beside it. KIT must not exist. The other
# machine needs the same processor family, a C library that is not older, and taskset. Then, there,
# with KIT anywhere:
#
#     KIT/ranks 4 4 bench prefill MODEL --tokens 2048      4 ranks, each on 4 processors of its own
#     KIT/ranks 1 4 bench prefill MODEL --tokens 2048      one rank on 4 processors
#
# What a copy of Open MPI needs besides mpirun and the libraries that ldd names:
#     plugins       every part of Open MPI is one; mpirun without them ends at once, or crashes.
#                   OPAL_PKGLIBDIR says where they are, since their path is compiled in
#     their own     libraries that only plugins need, above all libpmix
#     help files    the texts of all errors (OPAL_PKGDATADIR); without them an error has no reason
#     settings      openmpi-mca-params.conf (OPAL_SYSCONFDIR)
#     PMIx          it has plugins and texts of its own (PMIX_PREFIX, PMIX_PKGLIBDIR,
#                   PMIX_PKGDATADIR)
# OPAL_PREFIX alone is not enough where plugins do not lie in PREFIX/lib/openmpi, as in Debian.
# Plugins for networks and batch systems stay behind: they need further libraries.
set -eu
kit=$1 program=$2
[ ! -e "$kit" ] || { echo "mpi_kit.sh: '$kit' exists" >&2; exit 1; }
module=$(dirname "$program")/libflashmoe_mpi.so
[ -e "$module" ] || { echo "mpi_kit.sh: '$module' is missing: build with Open MPI" >&2; exit 1; }
path() { ompi_info --parsable --path "$1" | sed 's/^path:[^:]*://'; }

mkdir -p "$kit/bin" "$kit/lib" "$kit/plugins" "$kit/texts" "$kit/settings" "$kit/pmix/lib/pmix" \
    "$kit/pmix/share/pmix"
cp -L "$program" "$module" "$(command -v mpirun)" "$(command -v orted)" "$kit/bin/"
strip --strip-debug "$kit"/bin/* 2>/dev/null || true
for plugin in "$(path pkglibdir)"/mca_*.so; do
    case $plugin in
    *_ucx.so | *_ofi.so | *_psm*.so | *_openib.so | *_slurm.so | *_flux.so | *_jsm.so) ;;
    *_gridengine.so | *_romio*.so | *_monitoring.so | */mca_io_* | */mca_fs_* | */mca_fbtl_*) ;;
    */mca_fcoll_* | */mca_sharedfp_* | */mca_scoll_* | */mca_spml_* | */mca_sshmem_*) ;;
    */mca_memheap_*) ;;
    *) cp -L "$plugin" "$kit/plugins/" ;;
    esac
done
cp -L "$(path pkgdatadir)"/*.txt "$kit/texts/"
cp -L "$(path sysconfdir)"/*.conf "$kit/settings/" 2>/dev/null || true

# Libraries: those of the programs and plugins, without the C library's own.
needed() { ldd "$@" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u; }
for library in $(needed "$kit"/bin/* "$kit"/plugins/*.so); do
    case $(basename "$library") in
    ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.*) ;;
    *) cp -L "$library" "$kit/lib/" ;;
    esac
done
pmix=$(needed "$kit"/plugins/mca_pmix_*.so | grep '/libpmix\.so' | head -n 1)
[ -n "$pmix" ] || { echo "mpi_kit.sh: no plugin needs libpmix: it may be built in" >&2; exit 1; }
pmix=$(dirname "$(readlink -f "$pmix")")
cp -L "$pmix"/pmix/*.so "$kit/pmix/lib/pmix/"
cp -L "$pmix"/../share/pmix/*.txt "$kit/pmix/share/pmix/"

cat >"$kit/ranks" <<'RANKS'
#!/bin/sh
# usage: ranks N PROCESSORS COMMAND...: flashmoe on N ranks, each on so many processors of its own
set -eu
here=$(cd "$(dirname "$0")" && pwd)
n=$1 own=$2
shift 2
export OPAL_PREFIX="$here" OPAL_BINDIR="$here/bin" OPAL_LIBDIR="$here/lib" \
    OPAL_PKGLIBDIR="$here/plugins" OPAL_PKGDATADIR="$here/texts" OPAL_SYSCONFDIR="$here/settings" \
    PMIX_PREFIX="$here/pmix" PMIX_PKGLIBDIR="$here/pmix/lib/pmix" \
    PMIX_PKGDATADIR="$here/pmix/share/pmix" \
    LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    PATH="$here/bin:${PATH:-/usr/bin:/bin}" HOME="${HOME:-/}" \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# One machine: no ssh, no network beyond the loopback, messages through shared memory.
exec mpirun --mca plm isolated --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
    --mca oob_tcp_if_include lo --oversubscribe --bind-to none -n "$n" \
    "$here/bound" "$own" "$here/bin/flashmoe" "$@" --threads "$own"
RANKS
cat >"$kit/bound" <<'BOUND'
#!/bin/sh
# usage: bound N COMMAND...: a rank's own N processors, of those that this process may use. They are
# taken in their order, or in that of RANK_PROCESSORS, such as 0,4,1,5 where 0 and 4 are one core.
set -eu
n=$1
shift
list=${RANK_PROCESSORS:-$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)}
all=
for part in $(echo "$list" | tr ',' ' '); do
    at=${part%-*} end=${part#*-}
    while [ "$at" -le "$end" ]; do
        all="$all $at"
        at=$((at + 1))
    done
done
set -- "$((OMPI_COMM_WORLD_LOCAL_RANK * n))" "$@"
skip=$1
shift
mine=
i=0
for cpu in $all; do
    [ "$i" -lt "$skip" ] || [ "$i" -ge $((skip + n)) ] || mine="$mine,$cpu"
    i=$((i + 1))
done
if [ "$i" -lt $((skip + n)) ]; then
    echo "bound: rank $OMPI_COMM_WORLD_RANK needs $((skip + n)) processors and finds $i" >&2
    exit 1
fi
exec taskset -c "${mine#,}" "$@"
BOUND
chmod +x "$kit/ranks" "$kit/bound"
