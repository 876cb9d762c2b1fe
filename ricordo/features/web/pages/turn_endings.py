"""Sentences about answers that are missing or cut off."""

from ricordo.storage.conversation_overviews import RunEnd

# Sentences about turns that ended early, and the reasons of turns that should have an answer.
_ENDINGS = {
    "cancelled": "This turn was stopped.",
    "max_steps": "The agent stopped at its limit of steps. Send another message to let it continue.",
    "max_tokens_exceeded": "The answer is cut off, since it reached the limit of tokens.",
}
_COMPLETE = ("end_turn", "no_tool_call")


def ending_of(end: RunEnd, *, has_answer: bool) -> str:
    """Return the sentence about an answer that is missing or cut off; "" if it is complete.

    Args:
        end: The end of the run.
        has_answer: The agent said something to the user in this run.
    """
    if end.error:
        return end.error
    if end.reason == "max_tokens_exceeded" and not has_answer:
        return "The model reached its limit of tokens before it gave an answer."
    if end.reason in _ENDINGS:
        return _ENDINGS[end.reason]
    if end.reason in _COMPLETE and not has_answer:
        return "The model gave no answer. Say it again, or use another model."
    return ""
