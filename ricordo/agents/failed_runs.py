"""Messages of failed runs, at which the model may fail again.

After a failure that does not blame the request, the run's messages stay in the window. But some
servers fail whenever they read a certain text. So if the next turn fails too, it tries once without
those messages. Only if that works do they leave the window; they stay in the history.
"""

import logging

from ricordo.agents.turn_context import TurnContext
from ricordo.errors import ModelError
from ricordo.storage import runs

log = logging.getLogger(__name__)
_KINDS = ("llm_error", "llm_empty_response", "llm_timeout")


async def leave_out_failed_runs(turn: TurnContext, error: ModelError) -> bool:
    """Remove the messages of the failed runs right before the turn; return False without any.

    The stored window changes with the next step that is saved.

    Args:
        turn: The turn, whose window is changed.
        error: The failure of the turn's request.
    """
    if error.kind not in _KINDS or error.is_lasting:
        return False
    earlier = turn.window.messages[1 : turn.window.first]
    run_ids = {message.run_id for message in earlier if message.run_id}
    rows = await turn.runtime.store.read(lambda tx: runs.by_ids(tx, tuple(run_ids)))
    failed_ids = {run.id for run in rows if run.status == "failed"}
    kept = len(earlier)
    while kept and earlier[kept - 1].run_id in failed_ids:
        if earlier[kept - 1].role == "summary":
            break  # it replaces messages of other runs too
        kept -= 1
    if kept == len(earlier):
        return False
    log.warning(
        "asking again without the messages of failed runs",
        extra={"run": turn.run.id, "messages": len(earlier) - kept, "kind": error.kind},
    )
    turn.window.cut_before_turn(kept + 1)
    return True
