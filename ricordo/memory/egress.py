"""Reduce blocks to the texts that a destination may see, by their schemas' egress policies."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ricordo.domain.block import Block
from ricordo.domain.egress import Clearance, Destination, LabelledSpan
from ricordo.memory.schemas import enforced_schema
from ricordo.memory.sections import labelled_spans
from ricordo.prompt.egress import cleared_block


def spans_of(data_dir: Path, block: Block) -> list[LabelledSpan]:
    """Return the labelled lines of a block that follows a schema of this data folder.

    Args:
        data_dir: The data folder, which has the schemas.
        block: The block. One without a readable schema has no labelled lines.
    """
    schema = enforced_schema(data_dir, block.schema_ref) if block.schema_ref else None
    return labelled_spans(block.value, schema) if schema else []


def block_view(
    data_dir: Path, destination: Destination, clearance: Clearance
) -> Callable[[Block], Block]:
    """Return a function that returns blocks as the destination may see them.

    Args:
        data_dir: The data folder, which has the schemas.
        destination: The destination that reads the blocks.
        clearance: Records the labelled texts that are shown or withheld.
    """
    find_spans = partial(spans_of, data_dir)

    def view(block: Block) -> Block:
        return cleared_block(block, destination, clearance, spans=find_spans(block))

    return view
