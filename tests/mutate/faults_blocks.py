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
]
