"""A system message taken apart again into the sections it was put together from, to show what fills a context window."""

import re
from dataclasses import dataclass

# The tags stand at the ends of lines. A closing tag inside a value was disarmed, so the first one ends its section.
_SECTION = re.compile(r"<(memory_blocks|memory_metadata|tool_usage_rules|directories)>\n.*?\n</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a system message, each with its tags; "" for one it lacks. `base` is all that belongs to no other part."""

    base: str = ""
    memory_blocks: str = ""
    memory_metadata: str = ""
    tool_usage_rules: str = ""
    directories: str = ""


def sections(system: str) -> Sections:
    """The sections of a system message, as it is stored. Where one seems to be there twice, the later one is ours."""
    found = {match[1]: match for match in _SECTION.finditer(system)}
    base, place = [], 0
    for match in sorted(found.values(), key=lambda one: one.start()):
        base.append(system[place : match.start()].strip())
        place = match.end()
    base.append(system[place:].strip())
    return Sections("\n\n".join(filter(None, base)), **{name: match[0] for name, match in found.items()})
