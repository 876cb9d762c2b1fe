"""Log probabilities of tokens in the form of OpenAI's chat completions.

The functions are pure. They leave out malformed rows.
"""

import math
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
# OpenAI writes this for a nearly impossible token, since JSON has no infinity.
_LOWEST = -9999.0


def read_logprobs(logprobs: Any) -> dict[str, list[Json]]:
    """Return the token rows of a choice's `logprobs` by field: `content`, `refusal`."""
    if not isinstance(logprobs, dict):
        return {}
    if isinstance(logprobs.get("tokens"), list):
        return {"content": _read_older(logprobs)}
    return {
        name: read_tokens(logprobs[name])
        for name in ("content", "refusal")
        if isinstance(logprobs.get(name), list)
    }


def read_tokens(rows: Iterable[Any]) -> list[Json]:
    """Return the tokens of a list with their alternatives.

    Malformed rows are left out.
    """
    tokens = []
    for row in rows:
        if token := _token(row):
            top_rows = row.get("top_logprobs")
            if not isinstance(top_rows, list):
                top_rows = []
            alternatives = [alternative for top in top_rows if (alternative := _token(top))]
            tokens.append(token | {"top_logprobs": alternatives})
    return tokens


def _read_older(logprobs: Json) -> list[Json]:
    """Read the form of older completions, which Together sends.

    It has parallel lists of tokens and numbers, and a mapping of alternatives for each token.
    """
    numbers = logprobs.get("token_logprobs")
    if not isinstance(numbers, list):
        numbers = []
    mappings = logprobs.get("top_logprobs")
    if not isinstance(mappings, list):
        mappings = []
    rows = []
    for index, (token, number) in enumerate(zip(logprobs["tokens"], numbers, strict=False)):
        if index < len(mappings):
            mapping = mappings[index]
        else:
            mapping = None
        if not isinstance(mapping, dict):
            mapping = {}
        alternatives = [
            {"token": other_token, "logprob": other_number}
            for other_token, other_number in mapping.items()
        ]
        rows.append({"token": token, "logprob": number, "top_logprobs": alternatives})
    return read_tokens(rows)


def _token(row: Any) -> Json | None:
    if not isinstance(row, dict) or not isinstance(row.get("token"), str):
        return None
    number = row.get("logprob")
    if not isinstance(number, int | float) or isinstance(number, bool) or math.isnan(number):
        return None
    octets = row.get("bytes")
    is_plain = isinstance(octets, list) and all(
        type(octet) is int and 0 <= octet <= 255 for octet in octets
    )
    return {
        "token": row["token"],
        "logprob": float(max(number, _LOWEST)),
        "bytes": octets if is_plain else None,
    }
