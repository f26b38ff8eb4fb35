#!/bin/sh
# run.sh SECONDS [NAME...]: builds the fuzz preset and runs every target, or the named ones, for
# that long from a scratch copy of its corpus. formats:NAME runs the target formats with one dialect
# alone. Answers of models are kept short: each is read four times, byte by byte, and more than half
# of the time goes into traced comparisons, so an input of libFuzzer's 4,096 bytes would take eight
# times as long. Findings are kept in build-fuzz/findings/NAME. Prints one line per target and exits
# with 1 if there is a finding.
set -eu

usage() {
    echo "usage: $0 SECONDS [NAME...]" >&2
    exit 2
}
[ $# -ge 1 ] || usage
seconds=$1
shift
case $seconds in
    '' | *[!0-9]* | 0) usage ;;
esac

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build-fuzz
cd "$root"
cmake --preset fuzz

if [ $# -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        set -- "$@" "${name#fuzz_}"
    done
fi
targets=
for name in "$@"; do
    targets="$targets fuzz_${name%%:*}"
done
# shellcheck disable=SC2086 # several words
cmake --build "$build" --target $targets

failed=0
summary=
for name in "$@"; do
    target=${name%%:*}
    unset FLASHMOE_FUZZ_FORMAT
    case $name in
        formats:*) export FLASHMOE_FUZZ_FORMAT="${name#*:}" ;;
    esac
    scratch=$build/corpus/$name
    findings=$build/findings/$name
    log=$build/fuzz_$name.log
    rm -rf "$scratch"
    mkdir -p "$scratch" "$findings"
    cp "tests/fuzz/corpus/$target"/* "$scratch"/
    before=$(find "$findings" -type f | wc -l)
    dict=
    [ ! -f "tests/fuzz/$target.dict" ] || dict=-dict=tests/fuzz/$target.dict
    length=
    case $target in
        formats | toolcall) length=-max_len=512 ;;
    esac
    echo "fuzzing $name for $seconds s"
    status=0
    # shellcheck disable=SC2086 # an empty $dict or $length must vanish
    "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -print_final_stats=1 -timeout=20 \
        -rss_limit_mb=2048 -artifact_prefix="$findings/" $dict $length "$scratch" \
        >"$log" 2>&1 || status=$?
    found=$(($(find "$findings" -type f | wc -l) - before))
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    line="$name: ${runs:-?} executions, coverage ${coverage:-?}, $found findings"
    if [ "$status" -ne 0 ] || [ "$found" -ne 0 ]; then
        failed=1
        line="$line (exit $status, see $log and $findings)"
        tail -n 40 "$log" >&2
    fi
    summary="$summary$line
"
done
printf '%s' "$summary"
exit "$failed"
