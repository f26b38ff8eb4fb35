"""Faults of drafts: tokens that are computed before they are known to be right."""
from fault import Fault

FAULTS = [
    Fault('rows of drafts share one state', 'src/arch/recurrent.c',
          '            row.state[i] = to;\n',
          '',
          ['stream.draft.qwen3_next']),
    Fault('a rejected draft stays in the state', 'src/engine/sequence.c',
          '    s->slot = slot_at(s, position);\n',
          '',
          ['stream.draft.qwen3_next']),
    Fault('drafts count as uses before they are accepted', 'src/engine/forward_experts.c',
          'if (after < wanted->n_drafts || after - wanted->n_drafts >= n_remembered(wanted))',
          'if (after >= wanted->n_tokens)',
          ['stream.draft.qwen3_moe']),
    Fault('accepted drafts are no uses', 'src/session/session.c',
          '        engine_accept_experts(&m->engine, l, experts + l * k);\n',
          '        (void)experts;\n',
          ['stream.draft.qwen3_moe']),
    Fault('a draft that fails ends the session', 'src/session/session.c',
          '        item->rc = 0;\n        s->failure',
          '        s->failure',
          ['stream.draft.fault.qwen3_moe']),
    Fault('logits of drafts count before they are accepted', 'src/session/session.c',
          '    if (done->n_drafts > 0) { /* nobody',
          '    if (done->n_drafts > 0)\n        show_logits(e, s, 0, logits);\n'
          '    if (done->n_drafts > 0) { /* nobody',
          ['stream.draft.qwen3_moe']),
]
