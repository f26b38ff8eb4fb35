"""Faults of flashmoe bench all: its figures, what it leaves out, how it ends."""
from fault import Fault

NUMBERS, LEFT_OUT, ENDS = ['cli.BenchAllNumbers'], ['cli.BenchAllLeftOut'], ['cli.BenchAllEnds']

FAULTS = [
    Fault('the median of all rounds is the lowest one', 'apps/bench/all_result.c',
          's.median = (sorted[(s.n - 1) / 2] + sorted[s.n / 2]) / 2;',
          's.median = sorted[0];', NUMBERS),
    Fault('the other program always runs second', 'apps/bench/all_run.c',
          'n > 1 ? (round + i) % 2 : ALL_THIS', 'i', NUMBERS),
    Fault('a shorter time counts as slower', 'apps/bench/all_result.c',
          'return strcmp(regime->unit, "s") == 0;', 'return regime->unit[0] == 0;', NUMBERS),
    Fault('other logits of another version pass', 'apps/bench/all_run.c',
          'strcmp(other->hash, run->hash) != 0;', 'other->hash == run->hash;', NUMBERS),
    Fault('a budget may be larger than what is free', 'apps/bench/all_regimes.c',
          'if (*bytes <= all->usable_bytes)', 'if (*bytes > 0)', LEFT_OUT),
    Fault('a case that failed is run again', 'apps/bench/all_run.c',
          "if (one->failed[0] != '\\0' || !fits_now(one)) {", 'if (!fits_now(one)) {', LEFT_OUT),
    Fault('the processor is measured with the GPU', 'apps/bench/all_regimes.c',
          "if (all->facts.gpu[0] != '\\0' && !with_gpu) {", 'if (false && !with_gpu) {', LEFT_OUT),
    Fault('Ctrl-C forgets what was measured', 'apps/bench/cmd_bench_all.c',
          '    if (!all->is_cut)\n        return rc;\n    return save(all, err);',
          '    return rc;', ENDS),
    Fault('any program passes as another version', 'apps/bench/cmd_bench_all.c',
          'strncmp(child.out, "flashmoe ", 9) != 0', 'false', ENDS),
    Fault("the program's own work counts as others'", 'apps/bench/quiet.c',
          ' - (after->own_s - before->own_s)', '', ['cli.quiet']),
    Fault('processors that the host takes away do not count', 'apps/bench/quiet.c',
          'v->stolen <= QUIET_STOLEN_SHARE * n_cpus;', 'v->stolen >= 0;', ['cli.quiet']),
    Fault('a busy machine marks nothing', 'apps/bench/all_result.c',
          'out->n_busy += run->was_run && !run->quiet.is_quiet;',
          'out->n_busy += run->was_run && false;', ['cli.BenchAllBusy']),
]
