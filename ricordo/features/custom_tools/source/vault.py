"""Secrets for tools, such as an agent's: passed to the tools, and removed from their output."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ricordo.domain.agent import Agent
from ricordo.secret import Secret
from ricordo.settings import Settings

# The fewest characters of a secret that is removed from output. A shorter one may be part of many
# words.
_SHORTEST = 6
# Blanks and line breaks, also as JSON writes them.
_GAP = r"(?:\s|\\[nrt])"
_GAPS = re.compile(_GAP)
# The most of them between two words of a secret in changed output.
_MOST_GAPS = 100


@dataclass(frozen=True, slots=True)
class _Form:
    """A text by which a secret is recognized: words with any blanks between them.

    A form that is recognized only with its exact blanks is one word.
    """

    name: str
    words: tuple[str, ...]

    @property
    def length(self) -> int:
        return sum(map(len, self.words))

    @property
    def pattern(self) -> str:
        return f"{_GAP}{{0,{_MOST_GAPS}}}".join(map(re.escape, self.words))

    def may_continue(self, text: str, start: int) -> bool:
        """Return whether the text from `start` on may be the beginning of this form."""
        positions = {start}
        for word in self.words:
            following: set[int] = set()
            for first in positions:
                for position in _after_gaps(text, first):
                    if text.startswith(word, position):
                        following.add(position + len(word))
                    elif _may_end_in(word, text, position):
                        return True
            positions = following
        return False


def _places(part: str, text: str, start: int, end: int) -> Iterator[int]:
    """Yield the positions from `start` to before `end` at which the part begins."""
    last = end + len(part) - 1
    position = text.find(part, start, last)
    while position >= 0:
        yield position
        position = text.find(part, position + 1, last)


def _may_end_in(word: str, text: str, position: int) -> bool:
    """Return whether the text ends inside this word, or inside the blank before it."""
    if len(text) - position > len(word):
        return False
    end = text[position:]
    return end == "\\" or word.startswith(end)


def _after_gaps(text: str, position: int) -> Iterator[int]:
    """Yield the position, and the positions after each of the gaps that follow it."""
    yield position
    for _ in range(_MOST_GAPS):
        gap = _GAPS.match(text, position)
        if gap is None:
            return
        position = gap.end()
        yield position


def secrets_of(settings: Settings, agent: Agent) -> dict[str, str]:
    """Return the agent's secrets by name.

    Args:
        settings: The server's settings, with the folder of its secret key.
        agent: The agent, whose settings have the encrypted secrets.

    Raises:
        Unavailable: The secrets were encrypted with another secret key.
    """
    sealed: Mapping[str, str] = agent.settings.get("secrets", {})
    if not sealed:
        return {}
    secret = Secret(settings.data_dir)
    return {name: secret.decrypt(encrypted) for name, encrypted in sealed.items()}


class SecretMask:
    """Replaces the secrets in the output of a tool by their names.

    Mask output before it is cut, because the rest of a secret that was cut is not recognized. A
    secret with blanks or line breaks is also recognized with other blanks in their places.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Prepare the mask.

        Args:
            secrets: The secrets by name. Those that are too short to be recognized are not masked.
        """
        self._forms = sorted(
            {
                form.words: form
                for name, secret in secrets.items()
                if len(secret) >= _SHORTEST
                for form in _forms(name, secret)
            }.values(),
            key=lambda form: form.length,
            reverse=True,
        )
        self._pattern = re.compile("|".join(f"({form.pattern})" for form in self._forms))

    def mask(self, value: Any) -> Any:
        """Replace each secret by its name in all texts of a JSON value.

        Args:
            value: The value; it is not changed. The names of its objects are masked too.
        """
        if not self._forms:
            return value
        if isinstance(value, str):
            return self._pattern.sub(self._placeholder, value)
        if isinstance(value, dict):
            return {self.mask(name): self.mask(field) for name, field in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(element) for element in value]
        return value

    def pieces(self) -> "MaskedPieces":
        """Return a mask for one stream of output that comes in pieces."""
        return MaskedPieces(self)

    def mask_beginning(self, text: str) -> tuple[str, str]:
        """Mask the text up to the first secret that may continue after its end.

        Args:
            text: The unmasked end of a stream so far: the rest of the last call, then the new text.

        Returns:
            The masked beginning, and the rest, which has to be masked with the text that follows.
        """
        if not self._forms:
            return text, ""
        masked: list[str] = []
        position = 0
        rest = self._unfinished(text, position)
        while (match := self._pattern.search(text, position)) and match.start() < rest:
            masked += (text[position : match.start()], self._placeholder(match))
            position = match.end()
            if rest < position:
                rest = self._unfinished(text, position)
        return "".join((*masked, text[position:rest])), text[rest:]

    def _placeholder(self, match: re.Match[str]) -> str:
        return f"[secret {self._forms[(match.lastindex or 1) - 1].name}]"

    def _unfinished(self, text: str, start: int) -> int:
        """Return the position of the first secret that may continue after the text.

        Without such a secret, it is the text's length.
        """
        earliest = len(text)
        for form in self._forms:
            first = form.words[0]
            end = max(start, len(text) - len(first) + 1)
            places = _places(first[0], text, end, earliest)
            if len(form.words) > 1:
                places = chain(_places(first, text, start, min(end, earliest)), places)
            earliest = next((at for at in places if form.may_continue(text, at)), earliest)
        return earliest


class MaskedPieces:
    """Masks a stream of output, also secrets that are split over several pieces."""

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unmasked = ""

    def add(self, piece: bytes) -> str:
        """Return the text that can be shown after this piece, without secrets.

        Args:
            piece: The next bytes of the stream, in UTF-8; they may end inside a character.
        """
        text = self._unmasked + self._decoder.decode(piece)
        masked, self._unmasked = self._mask.mask_beginning(text)
        return masked

    def rest(self) -> str:
        """Return the text that `add` held back, after the end of the stream."""
        text = self._unmasked + self._decoder.decode(b"", final=True)
        self._unmasked = ""
        return str(self._mask.mask(text))


def _forms(name: str, secret: str) -> list[_Form]:
    """Return the forms of a secret: as it is, inside JSON, and with other blanks.

    Other blanks are allowed where the secret has some, if it has enough other characters.
    """
    escaped = [json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    texts = list(dict.fromkeys([secret, *escaped]))
    words = [tuple(filter(None, _GAPS.split(text))) for text in texts]
    exact = [_Form(name, (text,)) for text in texts]
    with_gaps = [_Form(name, parts) for parts in words if len(parts) > 1]
    return [*exact, *(form for form in with_gaps if form.length >= _SHORTEST)]
