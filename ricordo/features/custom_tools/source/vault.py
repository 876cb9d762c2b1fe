"""An agent's secrets: passed to its tools, and removed from their output."""

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any

from ricordo.domain.agent import Agent
from ricordo.secret import Secret
from ricordo.settings import Settings

# The fewest characters of a secret that is removed from output. A shorter one may be part of many
# words.
_SHORTEST = 6


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

    Mask output before it is cut or its blanks are changed, because the rest of a secret that was
    cut or changed is not recognized.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Prepare the mask.

        Args:
            secrets: The secrets by name. Those that are too short to be recognized are not masked.
        """
        self._names = {
            form: name
            for name, secret in secrets.items()
            if len(secret) >= _SHORTEST
            for form in _forms(secret)
        }
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mask(self, value: Any) -> Any:
        """Replace each secret by its name in all texts of a JSON value.

        Args:
            value: The value; it is not changed. The names of its objects are masked too.
        """
        if not self._names:
            return value
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._placeholder(match[0]), value)
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
        if not self._names:
            return text, ""
        masked: list[str] = []
        position = 0
        rest = self._unfinished(text, position)
        while (match := self._pattern.search(text, position)) and match.start() < rest:
            masked += (text[position : match.start()], self._placeholder(match[0]))
            position = match.end()
            if rest < position:
                rest = self._unfinished(text, position)
        return "".join((*masked, text[position:rest])), text[rest:]

    def _placeholder(self, secret: str) -> str:
        return f"[secret {self._names[secret]}]"

    def _unfinished(self, text: str, start: int) -> int:
        """Return the position of the first secret that may continue after the text.

        Without such a secret, it is the text's length.
        """
        earliest = len(text)
        for secret in self._names:
            position = text.find(secret[0], max(start, len(text) - len(secret) + 1), earliest)
            while position >= 0:
                if secret.startswith(text[position:]):
                    earliest = position
                    break
                position = text.find(secret[0], position + 1, earliest)
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


def _forms(secret: str) -> list[str]:
    """Return the secret, and its forms inside JSON."""
    escaped = [json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    return list(dict.fromkeys([secret, *escaped]))
