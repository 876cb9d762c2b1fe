"""A step's working copy of memory. Tools change it and it remembers what they did; `memory.commit` stores that, with the step."""

from dataclasses import dataclass, replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.errors import Forbidden, Invalid, NotFound


@dataclass(frozen=True, slots=True)
class BlockEdit:
    """One tool call's change of one block: from the block as the step began with it, to the text it should have."""

    call_id: str
    base: Block
    value: str


@dataclass(frozen=True, slots=True)
class PassageDraft:
    """One text a tool call wants archived."""

    call_id: str
    id: str
    text: str
    tags: tuple[str, ...]


class WorkingMemory:
    """The agent's blocks as this step sees them, with the edits and passages its tool calls asked for."""

    def __init__(self, state: AgentState) -> None:
        self._agent_name = state.agent.name
        self._bases = {block.label: block for block in state.blocks}
        self._current = dict(self._bases)
        self.edits: list[BlockEdit] = []
        self.passages: list[PassageDraft] = []

    def block(self, label: str) -> Block:
        """The block with this label, with the step's edits so far; raises NotFound naming the labels there are."""
        block = self._current.get(label)
        if block is None:
            # The sentence is a wire fact of the retired Letta V1 server.
            raise NotFound(f"Block field {label} does not exist (available sections = {', '.join(self._current)})")
        return block

    def write(self, label: str, value: str, call_id: str) -> str:
        """Give the block another text within this step; returns the text. Raises NotFound, Forbidden, Invalid."""
        block = self.block(label)
        require_writable(block)
        if "\0" in value:
            raise Invalid("A memory block cannot hold NUL characters. Leave them out.")
        block.require_fits(value)
        if value != block.value:
            self._current[label] = replace(block, value=value)
            self.edits.append(BlockEdit(call_id, self._bases[label], value))
        return value

    def archive(self, draft: PassageDraft) -> None:
        """Ask for a passage to be archived when the step is saved; raises Invalid."""
        if any("\0" in text for text in (draft.text, *draft.tags)):
            raise Invalid("A passage and its tags cannot hold NUL characters. Leave them out.")
        self.passages.append(draft)


def require_writable(block: Block) -> None:
    """Raise Forbidden where agents may not edit the block."""
    if block.is_read_only:
        raise Forbidden("Error This block is read-only and cannot be edited.")
