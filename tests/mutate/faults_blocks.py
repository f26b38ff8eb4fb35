"""Faults of the blocks that many input rows are divided into."""
from fault import Fault

CPU = 'src/backend/cpu/cpu_products.c'
FAULTS = [
    Fault('a block has the sums of the first block', CPU,
          '        m.in.sum += first;\n', '', ['unit.cpu_products_test']),
    Fault('a block has the rows that the first block picks', CPU,
          '        m.pick += begin;\n', '        m.pick += 0;\n', ['unit.cpu_products_test']),
    Fault('a block puts its rows where the first block does', CPU,
          '        m.place += begin;\n', '        m.place += 0;\n', ['unit.cpu_products_test']),
    Fault('a block has the codes of the first block', CPU,
          '        m.in.q += begin * m.w->n_cols;\n', '', ['unit.cpu_products_test']),
    Fault('a block has the scales of the first block', CPU,
          '        m.in.scale += first;\n', '', ['unit.cpu_products_test']),
    Fault('a block of floats is the first block', CPU,
          '        m.in.x += begin * m.w->n_cols;\n', '', ['unit.cpu_products_test']),
    Fault('a block is written to the place of the first block', CPU,
          '        m.y += begin * m.y_stride;\n', '        m.y += 0;\n',
          ['unit.cpu_products_test']),
    Fault('packed experts have the file of the first layer', 'src/model/binder_experts.c',
          '            extents[0] = found[0];\n', '            extents[0].file = 1;\n',
          ['nano.greedy']),
]
