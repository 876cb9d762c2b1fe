"""Whether what a wire function made is the shape that the OpenAPI document promises."""

from typing import Any

import orjson
from pydantic import TypeAdapter


def require_fits(shape: Any, wire: Any) -> None:
    """Raise where a field is missing, unnamed or of another type, once it has been through JSON."""
    TypeAdapter(shape).validate_json(orjson.dumps(wire), strict=True)
