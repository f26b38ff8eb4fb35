"""Faults of the order that GGUF's blocks have in memory."""
from fault import Fault

FAULTS = [
    Fault('the order of rows in memory is a part of what snapshots are for',
          'src/engine/identity.c',
          '        interleave_restore(w->quant, w->n_cols, bytes, rows);\n',
          '        memcpy(rows, bytes, n);\n',
          ['stream.gguf_text.q4_k']),
    Fault('the scale behind a block is not moved', 'src/quant/interleave.c',
          '        copy_odd(from + tail, row_bytes, to + ROWS * tail, u.tail, u.tail);\n',
          '',
          ['unit.interleave_test']),
    Fault('the last words of a block are not turned', 'src/quant/interleave.c',
          'return i + 4 < n && i + 8 > n ? n - 4 : i + 4;',
          'return i + 8 > n ? n : i + 4;',
          ['unit.interleave_test']),
    Fault('kernels multiply with the scales of the next row', 'src/backend/cpu/lanes_formats.h',
          '        return vf_load_f16(rows.p + LANES * at);\n',
          '        return vf_load_f16(rows.p + LANES * at + 2);\n',
          ['kernels.check']),
    Fault('a GPU gets blocks in an order that it does not know', 'src/quant/interleave.c',
          '{.changes = interleave_changes,',
          '{.changes = all_changes,',
          ['unit.interleave_test']),
]
