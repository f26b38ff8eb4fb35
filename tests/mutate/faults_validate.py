"""Faults of flashmoe validate: what it must notice, and how it must end."""
from fault import Fault

FAULTS = [
    Fault('validate takes every answer for the same', 'apps/validate/runner.c',
          'if (strcmp(a->hashes[i], b->hashes[i]) != 0)', 'if (false)', ['cli.ValidateReadPath']),
    Fault('validate names the layer after the wrong one', 'apps/validate/trail.c',
          '*layer = (int)l - 1;', '*layer = (int)l;', ['cli.ValidateReadPath']),
    Fault('validate passes damaged files', 'apps/validate/budgets_part.c',
          'if (!item->is_bad)', 'if (item->is_bad)', ['cli.ValidateSwapped']),
    Fault('a layer of another report is taken for the same', 'apps/validate/against.c',
          'if (text == NULL || ours[same] != text[same])', 'if (text == NULL)',
          ['cli.ValidateAgainst']),
    Fault('validate ends with 0 after a failure', 'apps/validate/cmd_validate.c',
          'int status = v->n_failures == 0 ? STATUS_OK : STATUS_FAILED;',
          'int status = STATUS_OK;', ['cli.ValidateSwapped', 'cli.ValidateReadPath']),
    Fault('the other process takes more than it may', 'apps/validate/holder.c',
          'if (p->report.held_bytes + HOLDER_PIECE_BYTES <= target &&',
          'if (p->report.held_bytes <= target &&',
          ['cli.ValidatePressure']),
    Fault('a wrong answer has the mark of a right one', 'apps/validate/budgets_part.c',
          'answer->is_same = at->token < 0;', 'answer->is_same = true;', ['cli.ValidateReadPath']),
]
