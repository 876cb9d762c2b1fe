"""A format in which people read and write blocks over HTTP, beside JSON; plugins offer some by the hook `block_formats`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ricordo.domain.block_schema import BlockSchema


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """What somebody wrote: the block's label, the canonical text, and the name of its schema; None where one is left out."""

    label: str | None
    text: str
    schema_ref: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format: its name, as in `?format=toml`, its media type, and both directions.

    `write` takes the label, the canonical text and the block's schema; `read` what was sent and the schema, and raises Invalid. A
    text that names another schema than it is read with is read again with that one.
    """

    name: str
    media_type: str
    write: Callable[[str, str, BlockSchema | None], str]
    read: Callable[[str, BlockSchema | None], ParsedBlock]
