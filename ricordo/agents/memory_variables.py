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
    """Return the blocks with values in place of `{{name}}`.

    A variable without a value stays as it is.
    """

    def fill(text: str) -> str:
        return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)

    return tuple(replace(block, value=fill(block.value)) for block in blocks)


def require_variables(
    blocks: Sequence[BlockSpec], variables: Mapping[str, str], owner: str
) -> None:
    """Raise Invalid for a value whose variable is in no block.

    The error names the `owner` of the blocks, such as a template.
    """
    names = {name for block in blocks for name in _VARIABLE.findall(block.value)}
    if unknown := sorted(variables.keys() - names):
        variable_list = f"Its variables are: {', '.join(sorted(names)) or 'none'}."
        raise Invalid(
            f'No block of the {owner} has the variable "{unknown[0][:100]}". {variable_list}'
        )
