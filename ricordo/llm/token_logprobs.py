"""Log probabilities of an answer's tokens, as OpenAI's chat completions write them. Pure, and patient with small deviations."""

import math
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
# OpenAI writes this of a token that is next to impossible, and JSON has no infinity.
_LEAST = -9999.0


def read_logprobs(found: Any) -> dict[str, list[Json]]:
    """Return the rows of tokens in a choice's `logprobs`, by field: `content`, `refusal`; none for what is none."""
    if not isinstance(found, dict):
        return {}
    if isinstance(found.get("tokens"), list):
        return {"content": _read_older(found)}
    return {
        name: read_tokens(found[name])
        for name in ("content", "refusal")
        if isinstance(found.get(name), list)
    }


def read_tokens(rows: Iterable[Any]) -> list[Json]:
    """Return the tokens of a list, each with its alternatives; what is no token is left out."""
    tokens = []
    for row in rows:
        if token := _token(row):
            above = row.get("top_logprobs")
            alternatives = (
                [each for one in above if (each := _token(one))] if isinstance(above, list) else []
            )
            tokens.append(token | {"top_logprobs": alternatives})
    return tokens


def _read_older(found: Json) -> list[Json]:
    """Read the shape of older completions, as Together answers: lists side by side, of alternatives a name and a number each."""
    numbers, tops = found.get("token_logprobs"), found.get("top_logprobs")
    numbers = numbers if isinstance(numbers, list) else []
    tops = tops if isinstance(tops, list) else []
    rows = []
    for place, (token, number) in enumerate(zip(found["tokens"], numbers, strict=False)):
        above = tops[place] if place < len(tops) and isinstance(tops[place], dict) else {}
        alternatives = [{"token": each, "logprob": its} for each, its in above.items()]
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
        type(each) is int and 0 <= each <= 255 for each in octets
    )
    return {
        "token": row["token"],
        "logprob": float(max(number, _LEAST)),
        "bytes": octets if is_plain else None,
    }
