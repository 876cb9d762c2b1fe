"""A step's working copy of memory. Tools change it and it remembers what they did; `memory.commit` stores that, with the step."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, require_label
from ricordo.domain.ids import new_id
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound


@dataclass(frozen=True, slots=True)
class BlockEdit:
    """One tool call's change of one block's text: from the block as the step began with it, to the text it should have.

    With `is_shown` that text is the call's result too.
    """

    call_id: str
    base: Block
    value: str
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class BlockCreation:
    """A block that a tool call wants made; it has no chain yet."""

    call_id: str
    base: Block


@dataclass(frozen=True, slots=True)
class BlockRemoval:
    """A block that a tool call wants out of the agent's memory."""

    call_id: str
    base: Block


@dataclass(frozen=True, slots=True)
class BlockRename:
    """A block that a tool call gives another label: from `old`, which it had within the step, to `label`."""

    call_id: str
    base: Block
    old: str
    label: str


@dataclass(frozen=True, slots=True)
class BlockDescribed:
    """A block that a tool call gives another description."""

    call_id: str
    base: Block
    description: str


MemoryEdit = BlockEdit | BlockCreation | BlockRemoval | BlockRename | BlockDescribed


@dataclass(frozen=True, slots=True)
class PassageDraft:
    """One text a tool call wants archived."""

    call_id: str
    id: str
    text: str
    tags: tuple[str, ...]


class WorkingMemory:
    """The agent's blocks as this step sees them, with the edits and passages its tool calls asked for, in their order."""

    def __init__(self, state: AgentState) -> None:
        self._agent = state.agent
        self._bases = {block.id: block for block in state.blocks}
        self._current = {block.label: block for block in state.blocks}
        self.edits: list[MemoryEdit] = []
        self.passages: list[PassageDraft] = []

    def block(self, label: str) -> Block:
        """The block with this label, with the step's edits so far; raises NotFound naming the labels there are."""
        block = self._current.get(label)
        if block is None:
            # The sentence is a wire fact of the retired Letta V1 server.
            raise NotFound(f"Block field {label} does not exist (available sections = {', '.join(self._current)})")
        return block

    def find(self, label: str) -> Block | None:
        """The block with this label, with the step's edits so far, if there is one."""
        return self._current.get(label)

    def write(self, label: str, value: str, call_id: str, *, is_shown: bool = True) -> str:
        """Give the block another text within this step; returns the text. Raises NotFound, Forbidden, Invalid.

        `is_shown` says that the call's result is this text, so that it has to be corrected if others wrote meanwhile.
        """
        block = self.block(label)
        require_writable(block)
        _refuse_nul(value)
        block.require_fits(value)
        if value != block.value:
            self._current[label] = replace(block, value=value)
            self.edits.append(BlockEdit(call_id, self._bases[block.id], value, is_shown))
        return value

    def create(self, label: str, value: str, description: str | None, call_id: str) -> None:
        """Add a block of the agent's own. Raises Conflict where the label is taken, Invalid."""
        require_free(require_label(label), self._current)
        _refuse_nul(value, description or "")
        new = Block(
            id=new_id("block"),
            organization_id=self._agent.organization_id,
            chain_id="",
            label=label,
            value=value,
            description=description,
            created_by=self._agent.id,
            updated_by=self._agent.id,
        )
        new.require_fits(value)
        self._bases[new.id] = self._current[label] = new
        self.edits.append(BlockCreation(call_id, new))

    def remove(self, label: str, call_id: str) -> None:
        """Take the block out of the agent's memory. Raises NotFound, Forbidden."""
        block = self.block(label)
        require_writable(block)
        del self._current[label]
        self.edits.append(BlockRemoval(call_id, self._bases[block.id]))

    def rename(self, label: str, new_label: str, call_id: str) -> None:
        """Give the block another label. Raises NotFound, Forbidden, Conflict where the new one is taken, Invalid."""
        block = self.block(label)
        require_writable(block)
        if new_label == label:
            return
        require_free(require_label(new_label), self._current)
        renamed = replace(block, label=new_label)
        self._current = {one.label: one for one in (renamed if one is block else one for one in self._current.values())}
        self.edits.append(BlockRename(call_id, self._bases[block.id], label, new_label))

    def describe(self, label: str, description: str, call_id: str) -> None:
        """Give the block another description. Raises NotFound, Forbidden, Invalid."""
        block = self.block(label)
        require_writable(block)
        _refuse_nul(description)
        if description != block.description:
            self._current[label] = replace(block, description=description)
            self.edits.append(BlockDescribed(call_id, self._bases[block.id], description))

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Within it all edits stand, or, where it is left by an error, none of them."""
        before, count = dict(self._current), len(self.edits)
        try:
            yield
        except BaseException:
            self._current = before
            del self.edits[count:]
            raise

    def archive(self, draft: PassageDraft) -> None:
        """Ask for a passage to be archived when the step is saved; raises Invalid."""
        if any("\0" in text for text in (draft.text, *draft.tags)):
            raise Invalid("A passage and its tags cannot hold NUL characters. Leave them out.")
        self.passages.append(draft)


def require_writable(block: Block) -> None:
    """Raise Forbidden where agents may not edit the block."""
    if block.is_read_only:
        raise Forbidden("Error This block is read-only and cannot be edited.")


def require_free(label: str, taken: Container[str]) -> None:
    """Raise Conflict where the label is among those taken."""
    if label in taken:
        raise Conflict(f"Error: Memory block '{label}' already exists")


def _refuse_nul(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise Invalid("A memory block cannot hold NUL characters. Leave them out.")
