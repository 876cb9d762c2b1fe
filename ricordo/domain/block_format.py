"""A format in which people read and write blocks over HTTP, beside JSON; plugins offer some by the hook `block_formats`."""

from collections.abc import Callable
from dataclasses import dataclass

from ricordo.domain.block_schema import BlockSchema


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """What somebody wrote: the block's label, None where it is left out, and the canonical text."""

    label: str | None
    text: str


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format: its name, as in `?format=toml`, its media type, and both directions.

    `write` takes the label, the canonical text and the block's schema; `read` what was sent and the schema, and raises Invalid.
    """

    name: str
    media_type: str
    write: Callable[[str, str, BlockSchema | None], str]
    read: Callable[[str, BlockSchema | None], ParsedBlock]
