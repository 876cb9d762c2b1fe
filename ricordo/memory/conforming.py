"""Whether a text goes on following its block's schema: what a tool writes may not make it follow less than it did.

A text that its owner let stray from the schema may be edited freely, since it can be read as it is.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from ricordo.domain.block_schema import BlockSchema
from ricordo.errors import Invalid, RicordoError
from ricordo.memory.schemas import FOLDER, read_schema, schema_names
from ricordo.memory.sections import Reading, read_sections

log = logging.getLogger(__name__)
# Gives the schema of this name; None where there is none here.
Schemas = Callable[[str], BlockSchema | None]

_REFUSED = (
    'Memory block "{}" has to follow the schema "{}", and with this edit it would not. Nothing was saved. Mend these lines of the '
    "text that you wanted, and try again:\n{}"
)
_SHOWN = 5


def schemas_in(data_dir: Path) -> Schemas:
    """The schemas that an operator put into a data folder. One that cannot be read binds nobody, and is logged."""

    def find(name: str) -> BlockSchema | None:
        folder = data_dir / FOLDER
        try:
            return read_schema(name, folder) if name in schema_names(folder) else None
        except RicordoError as error:
            log.warning("a block schema cannot be read", extra={"schema": name, "reason": str(error)})
            return None

    return find


def no_schemas(_name: str) -> BlockSchema | None:
    """For those who have no data folder."""
    return None


def require_follows(label: str, before: str, after: str, schema: BlockSchema | None) -> None:
    """Raise Invalid, with the lines that are wrong, where the later text follows the schema less than the earlier one."""
    if schema is None:
        return
    now, then = read_sections(after, schema), read_sections(before, schema)
    if _distance(now) > _distance(then):
        found = sorted(set(now.problems or now.missing))
        more = [f"And {len(found) - _SHOWN} more."] if len(found) > _SHOWN else []
        told = "\n".join([*map(str, found[:_SHOWN]), *more])
        raise Invalid(_REFUSED.format(label, schema.name, told))


def _distance(reading: Reading) -> int:
    """How far a text is from its schema: 0 where it follows it, 1 where required fields are empty, 2 where it does not."""
    return 2 if reading.problems else 1 if reading.missing else 0
