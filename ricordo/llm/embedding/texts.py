"""Texts made fit for a model: short enough, and nothing in them that cannot be sent."""

from ricordo.llm.tokens import text_tokens

MOST_CHARACTERS_A_TOKEN = 4


def shortened(text: str, tokens: int) -> str:
    """The beginning of the text that takes about this many tokens; the whole where it takes fewer."""
    text = text[: tokens * MOST_CHARACTERS_A_TOKEN]
    while (taken := text_tokens(text)) > tokens:
        text = text[: max(1, min(len(text) - 1, len(text) * tokens // taken))]
    return text


def writable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which no encoding can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
