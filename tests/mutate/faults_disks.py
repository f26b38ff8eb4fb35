"""Faults of models on several disks."""
from fault import Fault

FAULTS = [
    Fault('a lost mirror is an error', 'src/store/expert_store.c',
          '    if (!ok && goes_on_elsewhere(read, (unsigned)mine, result))\n        return;\n', '',
          ['pack.Mirror']),
    Fault('a damaged copy is an error', 'src/store/expert_store.c',
          '    if (tries_copies(read))\n        return;\n', '', ['pack.Mirror']),
    Fault('disks get equal shares whatever their speed', 'src/store/disk_share.c',
          'return (double)(before + bytes) / expected_speed(disk, fastest);',
          'return (double)(before + bytes) + 0 * fastest;', ['unit.disk_share_test']),
    Fault('a slow disk is never tried again', 'src/store/disk_share.c',
          'if (deserves_try(disk, bytes, fastest))', 'if (false)', ['unit.disk_share_test']),
    Fault('a folder of another model is taken', 'src/format/packed_open.c',
          'if (rc == 0 && (bytes != o->text_bytes || memcmp(text, o->text, bytes) != 0))',
          'if (false)', ['pack.Split', 'pack.Mirror']),
    Fault('records are cut at the wrong place', 'src/pack/encode.c',
          'rc = write_file(to, f, data, n, record * part + within, err);',
          'rc = write_file(to, f, data, n, at, err);', ['pack.Split']),
    Fault('a part of another place is taken', 'src/format/packed_open.c',
          '(theirs.n != o->disks.n || theirs.here != i)', '(theirs.n != o->disks.n)',
          ['pack.Split']),
    Fault('a folder of another packing is taken', 'src/pack/folders.c',
          'if (rc == 0 && has_plan && (n_ours != n_theirs || memcmp(ours, theirs, n_ours) != 0))',
          'if (false)', ['pack.Killed']),
]
