"""Variables in new memory blocks: `{{name}}` in a block's text is replaced by a value."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ricordo.agents.lifecycle import BlockSpec
from ricordo.errors import Invalid

_VARIABLE = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


def fill_variables(
    blocks: Sequence[BlockSpec], variables: Mapping[str, str]
) -> tuple[BlockSpec, ...]:
    """Return the blocks with values instead of `{{name}}`.

    Args:
        blocks: The blocks; only their values are filled in.
        variables: Values by name. A variable without a value stays as it is.
    """

    def fill(text: str) -> str:
        return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)

    return tuple(replace(block, value=fill(block.value)) for block in blocks)


def require_variables(
    blocks: Sequence[BlockSpec], variables: Mapping[str, str], owner: str
) -> None:
    """Raise Invalid for a value whose variable is in no block.

    Args:
        blocks: The blocks before their variables are filled in.
        variables: Values by the name of their variable.
        owner: A noun for the owner of the blocks in the error, such as "template".

    Raises:
        Invalid: A variable is in no block; the error lists those that are.
    """
    names = {name for block in blocks for name in _VARIABLE.findall(block.value)}
    if unknown := sorted(variables.keys() - names):
        variable_list = f"The new blocks have the variables: {', '.join(sorted(names)) or 'none'}."
        raise Invalid(
            f'No new block of the {owner} has the variable "{unknown[0][:100]}". {variable_list}'
        )
