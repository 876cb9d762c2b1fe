"""Reasons for changes of memory, phrased for people.

Programs write reasons too. Their reasons are summaries of a change, or a verb with a block's label.
"""

import re

# Written by `memory.text.change_summary`.
_SUMMARY = re.compile(r'[^"\n]{1,255}: (?P<sign>[+-]) "(?P<line>.*)"', re.DOTALL)
_DAY = re.compile(r"\s*(?:[-*+]\s+)?(?:\d{4}-\d{2}-\d{2}:\s+)?")
_COPIED = "Copy of the agent's block"
_UNDONE = re.compile(r"Undo run-\S+")
# Verbs that stand before a block's label.
_VERBS = {
    "Make": "Begun",
    "Create": "Begun",
    "Edit": "Changed",
    "Change": "Changed",
    "Delete": "Deleted",
    "Restore": "An earlier text came back",
}


def shown_reason(reason: str | None, label: str = "") -> str:
    """Return the reason for a block's change, phrased for people."""
    text = (reason or "").strip()
    if summary := _SUMMARY.fullmatch(text):
        line = _DAY.sub("", summary["line"], count=1).lstrip("\\#").strip(' "“”')
        return f"{'Added' if summary['sign'] == '+' else 'Removed'}: {line}"
    return _words(text, label) or text or "Changed"


def own_reason(reason: str | None, label: str = "") -> str:
    """Return the reason; "" if it only repeats the change."""
    text = (reason or "").strip()
    return "" if _SUMMARY.fullmatch(text) or _words(text, label) else text


def _words(text: str, label: str) -> str:
    """Return the text to show for a reason that a program wrote; "" for any other reason."""
    if text == _COPIED:
        return "Started by an agent"
    if _UNDONE.fullmatch(text):
        return "The changes of a turn were undone"
    verb, _, rest = text.partition(" ")
    return _VERBS.get(verb, "") if label and rest.startswith(label) else ""
