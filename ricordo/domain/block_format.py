"""Formats besides JSON in which people read and write blocks over HTTP.

Plugins add formats by the hook `block_formats`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ricordo.domain.block_schema import BlockSchema


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """A block parsed from a user's text: label, canonical text, schema name.

    `label` and `schema_ref` are None if the text does not give them.
    """

    label: str | None
    text: str
    schema_ref: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format: name (as in `?format=toml`), media type, and functions to write and read it.

    `write` takes the label, the canonical text and the block's schema. `read` takes the request
    body and the schema, and raises Invalid. If the body names another schema, it is read again with
    that one.
    """

    name: str
    media_type: str
    write: Callable[[str, str, BlockSchema | None], str]
    read: Callable[[str, BlockSchema | None], ParsedBlock]
