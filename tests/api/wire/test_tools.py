from typing import get_args

import pytest

from ricordo.api.wire.schemas import ToolShape
from ricordo.api.wire.tools import rule_to_wire, tool_to_wire
from ricordo.domain.tool import ToolRule, ToolType
from tests.api.wire.fits import require_fits
from tests.support import make


@pytest.mark.parametrize("tool_type", get_args(ToolType))
def test_tools_of_every_type_fit_their_shape(tool_type: ToolType) -> None:
    require_fits(ToolShape, tool_to_wire(make.tool(tool_type=tool_type)))


def test_a_tool_has_every_field_that_clients_expect() -> None:
    tool = make.tool(
        "roll_dice",
        source_type="python",
        source_code="def roll_dice(): ...",
        return_limit=100,
        needs_approval=True,
        runs_in_parallel=True,
        tags=("games",),
        metadata={"n": 1},
        created_by="user-1",
        updated_by="user-2",
    )

    wire = tool_to_wire(tool)

    require_fits(ToolShape, wire)
    assert wire == {
        "id": tool.id,
        "name": "roll_dice",
        "tool_type": "custom",
        "description": "Use roll_dice.",
        "source_type": "python",
        "source_code": "def roll_dice(): ...",
        "json_schema": tool.json_schema,
        "args_json_schema": None,
        "return_char_limit": 100,
        "default_requires_approval": True,
        "enable_parallel_execution": True,
        "tags": ["games"],
        "metadata_": {"n": 1},
        "pip_requirements": None,
        "npm_requirements": None,
        "project_id": None,
        "created_by_id": "user-1",
        "last_updated_by_id": "user-2",
    }


def test_a_rule_has_its_own_options_beside_the_common_fields() -> None:
    rule = ToolRule("search", "max_count_per_step", "At most {n}.", {"max_count_limit": 2})

    assert rule_to_wire(rule) == {
        "tool_name": "search",
        "type": "max_count_per_step",
        "prompt_template": "At most {n}.",
        "max_count_limit": 2,
    }
