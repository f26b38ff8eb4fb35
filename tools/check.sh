#!/bin/sh
# Configures a preset with its tests, builds it and runs ctest.
# Usage: tools/check.sh PRESET [ctest options]; JOBS=N limits the parallelism.
set -eu

preset=$1
shift
dir=build-$preset
[ "$preset" = release ] && dir=build
jobs=${JOBS:-2}

if ! grep -q '^FLASHMOE_TESTS:BOOL=ON$' "$dir/CMakeCache.txt" 2>/dev/null ||
    [ ! -f "$dir/build.ninja" ] || [ CMakePresets.json -nt "$dir/build.ninja" ]; then
    cmake --preset "$preset" -DFLASHMOE_TESTS=ON
fi
cmake --build --preset "$preset" --parallel "$jobs"

report=$dir/ctest.xml
rm -f "$report"
status=0
# Programs under test keep nothing in the cache folder of whoever runs them.
export XDG_CACHE_HOME=/dev/null/none
ctest --preset "$preset" --parallel "$jobs" --output-junit ctest.xml "$@" || status=$?

# The totals, from ctest's own report; a test that could not be started counts as failed.
awk -v status="$status" '
    /<testcase / { total++ }
    /<testcase / && /status="run"/ { passed++ }
    /<testcase / && /status="disabled"/ { skipped++ }
    /<skipped message="SKIP_/ { skipped++ }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, total - passed - skipped, skipped
        if (total == 0 && status == 0) {
            print "no test was run (the second tier runs in make test-all)"
            exit 1
        }
    }' "$report"
exit "$status"
