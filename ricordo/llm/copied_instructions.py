"""Answers that only repeat an instruction.

A small model may copy a sentence of its prompt instead of answering.
"""

import re
from functools import cache

from ricordo.domain.model import ModelRequest
from ricordo.prompt.texts import all_texts

# In characters. A shorter copy may be a coincidence; a longer copy may be what the user asked for.
SHORTEST = 30
LONGEST = 600
_BLANKS = re.compile(r"\s+")
_AROUND = " \t\n\"'`*_.,:;!-–—“”„«»‘’()[]<>"


def copies_instructions(text: str, request: ModelRequest) -> bool:
    """Return whether the text is a literal piece of Ricordo's own instructions in this request.

    Instructions that a person wrote do not count, nor does text that the last user message repeats.
    """
    answer = _plain(text) if len(text) <= 2 * LONGEST else ""
    if not SHORTEST <= len(answer) <= LONGEST:
        return False
    system = "\n".join(message.text for message in request.messages if message.role == "system")
    if not any(answer in plain for own_text, plain in _own_texts() if own_text in system):
        return False
    user_texts = (message.text for message in reversed(request.messages) if message.role == "user")
    return answer not in _plain(next(user_texts, ""))


@cache
def _own_texts() -> tuple[tuple[str, str], ...]:
    """Return each text of our prompts, as it is and in its plain form."""
    return tuple((text, _plain(text)) for text in all_texts())


def _plain(text: str) -> str:
    """Return the text in lower case, with single blanks and no surrounding punctuation."""
    return _BLANKS.sub(" ", text.casefold()).strip(_AROUND)
