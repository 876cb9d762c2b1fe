"""Answers that only repeat an instruction: a small model may copy a sentence of its prompt in place of an answer."""

import re
from functools import cache

from ricordo.domain.model import ModelRequest
from ricordo.prompt.texts import all_texts

# Characters. A shorter piece may be anybody's words; a longer one was asked for.
SHORTEST, LONGEST = 30, 600
_BLANKS = re.compile(r"\s+")
_AROUND = " \t\n\"'`*_.,:;!-–—“”„«»‘’()[]<>"


def copies_instructions(text: str, request: ModelRequest) -> bool:
    """Return whether the text is word for word a piece of Ricordo's own instructions in this request.

    Instructions that a person wrote are theirs to have repeated, and so is what the last message asks to be said.
    """
    answer = _plain(text) if len(text) <= 2 * LONGEST else ""
    if not SHORTEST <= len(answer) <= LONGEST:
        return False
    system = "\n".join(message.text for message in request.messages if message.role == "system")
    if not any(answer in plain for own, plain in _own_texts() if own in system):
        return False
    said = next(
        (message.text for message in reversed(request.messages) if message.role == "user"), ""
    )
    return answer not in _plain(said)


@cache
def _own_texts() -> tuple[tuple[str, str], ...]:
    """Return each text of ours as prompts hold it, and without differences."""
    return tuple((own, _plain(own)) for own in all_texts())


def _plain(text: str) -> str:
    """Return the text without differences of letter case, blanks, and signs around it."""
    return _BLANKS.sub(" ", text.casefold()).strip(_AROUND)
