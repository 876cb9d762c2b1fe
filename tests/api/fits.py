"""Whether an answer is what the OpenAPI document promises."""

from typing import Any

import orjson
from pydantic import TypeAdapter


def require_fits(model: Any, answer: Any) -> None:
    """Raise where a field is missing, unnamed or of another type, once it has been through JSON."""
    TypeAdapter(model).validate_json(orjson.dumps(answer), strict=True)
