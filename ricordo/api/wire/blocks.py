"""Blocks on the wire."""

from typing import Any

from ricordo.domain.block import Block

# Fields of a hosted product that clients expect to find; they mean nothing here.
_HOSTED = (
    "project_id",
    "template_name",
    "template_id",
    "base_template_id",
    "deployment_id",
    "entity_id",
    "preserve_on_migration",
)


def block_to_wire(block: Block) -> dict[str, Any]:
    """A block."""
    return {
        "id": block.id,
        "label": block.label,
        "value": block.value,
        "limit": block.limit,
        "description": block.description,
        "metadata": block.metadata,
        "read_only": block.is_read_only,
        "policy": block.rule,
        "hidden": block.hidden,
        "tags": list(block.tags),
        "is_template": False,
        "created_by_id": block.created_by,
        "last_updated_by_id": block.updated_by,
        **dict.fromkeys(_HOSTED),
    }
