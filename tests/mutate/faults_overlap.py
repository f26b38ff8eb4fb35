"""Faults of what is read ahead of the layer that needs it."""
from fault import Fault

FAULTS = [
    Fault('lookahead takes the routers for generated routes', 'src/engine/forward_experts.c',
          '        replace_ids(f, f->options.predict_ids, next, f->ahead_ids);\n',
          '        replace_ids(f, f->options.predict_ids, next, f->ids);\n',
          ['cli.BenchPredicted']),
    Fault('generated routes are always predicted', 'src/lab/routes.c',
          '>= routes->recall &&', '>= 1000000 &&', ['unit.routes_test', 'cli.BenchPredicted']),
]
