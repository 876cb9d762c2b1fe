from dataclasses import replace

from ricordo.api.wire.blocks import block_to_wire
from ricordo.api.wire.schemas import BlockShape
from tests.api.wire.fits import require_fits
from tests.support import make


def test_a_block_has_every_field_that_clients_expect() -> None:
    block = make.block(
        "people/ada",
        "Curious.",
        description="Whom I talk to",
        limit=50,
        hidden=True,
        metadata={"n": [1, None]},
        tags=("a", "b"),
        created_by="user-1",
        updated_by="user-2",
    )

    wire = block_to_wire(block)

    require_fits(BlockShape, wire)
    assert wire == {
        "id": block.id,
        "label": "people/ada",
        "value": "Curious.",
        "limit": 50,
        "description": "Whom I talk to",
        "metadata": {"n": [1, None]},
        "read_only": False,
        "policy": "direct",
        "hidden": True,
        "tags": ["a", "b"],
        "is_template": False,
        "created_by_id": "user-1",
        "last_updated_by_id": "user-2",
        "project_id": None,
        "template_name": None,
        "template_id": None,
        "base_template_id": None,
        "deployment_id": None,
        "entity_id": None,
        "preserve_on_migration": None,
    }


def test_a_block_is_read_only_by_its_flag_or_by_its_policy() -> None:
    block = make.block()

    assert block_to_wire(replace(block, read_only=True))["read_only"] is True
    assert block_to_wire(replace(block, policy="read_only"))["read_only"] is True
    assert block_to_wire(replace(block, policy="propose"))["read_only"] is False


def test_a_bare_block_fits_its_shape() -> None:
    require_fits(BlockShape, block_to_wire(make.block()))
