"""A step's working copy of memory: tools change it, and it keeps what they did, which `memory.step_commit` stores with the step.

The context of those edits stands beside it.
"""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.passage import require_tags
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor
from ricordo.domain.text import has_hidden, normal_name, normal_text, shown_text
from ricordo.domain.version import ChangeMetadata, PolicyDecision
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory import edit_guard
from ricordo.memory.matching import hint, search, with_line_breaks
from ricordo.memory.schemas import Schemas, no_schemas, require_follows

# What the agent reads as the result of its edit: the block's new text, which version it became, or what the tool said.
Shown = Literal["text", "version", "nothing"]


@dataclass(frozen=True, slots=True)
class EditReason:
    """Why a call edits: a reason, how sure (0 to 1), the user's words; with `only_proposes` it waits for the owner."""

    text: str = ""
    confidence: float | None = None
    quote: str | None = None
    only_proposes: bool = False


NO_REASON = EditReason()
LONGEST_REASON = 4_000  # characters
# A shorter quote could stand anywhere, unless it is all that was said.
_SHORTEST_QUOTE = 8
# Of lines that stand twice, so many are named to the agent.
_MOST_NOTED = 3
OTHERS_TOO = (
    'Error: Memory block "{}" is also used in conversations with others, so it cannot be deleted or renamed in this one. '
    "Edit its text instead, which changes it for this user alone."
)
HIDDEN = (
    "Characters that nobody sees were taken out of what you wrote: the user did not write them."
)
REMOVED = "A secret ({}) was taken out of what you wrote: memory keeps no keys and passwords."


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """What a call does to a block: `base` as the step began (new without a chain), `after` (None: it leaves the agent's memory)."""

    call_id: str
    base: Block
    after: Block | None
    shown: Shown = "nothing"
    reason: EditReason = NO_REASON

    @property
    def is_new(self) -> bool:
        return not self.base.chain_id

    @property
    def value(self) -> str:
        return self.after.value if self.after else ""

    @property
    def changes_text_alone(self) -> bool:
        kept = (self.base.label, self.base.description)
        return (
            not self.is_new
            and self.after is not None
            and (self.after.label, self.after.description) == kept
        )


def by_block(edits: Iterable[MemoryEdit]) -> dict[str, list[MemoryEdit]]:
    """The edits by their block's id, in their order."""
    groups: dict[str, list[MemoryEdit]] = {}
    for edit in edits:
        groups.setdefault(edit.base.id, []).append(edit)
    return groups


@dataclass(frozen=True, slots=True)
class EditContext:
    """Who edits: `said` is this turn's, for quotes; proposals wait `expires_after` µs (None: for ever); blocks have `schemas`."""

    author: Actor
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    said: tuple[str, ...] = ()
    expires_after: int | None = None
    schemas: Schemas = no_schemas

    def require_follows(self, block: Block, value: str) -> None:
        """Raise Invalid where the block's text would follow its schema less than it does."""
        if block.schema_ref:
            require_follows(block.shown_label, block.value, value, self.schemas(block.schema_ref))

    def metadata(self, reasons: Iterable[EditReason], otherwise: str) -> ChangeMetadata:
        """Return the metadata of one change by these calls; `otherwise` is the reason where they gave none."""
        given = list(reasons)
        texts = dict.fromkeys(reason.text.strip() for reason in given if reason.text.strip())
        return ChangeMetadata(
            author=self.author,
            reason="; ".join(texts) or otherwise,
            run_id=self.run_id,
            step_id=self.step_id,
            is_untrusted=self.is_untrusted,
            is_quoted=bool(given) and all(self._said(reason.quote) for reason in given),
        )

    def policy_decision(self, edit: MemoryEdit) -> PolicyDecision:
        decision = self.metadata([edit.reason], "").policy_decision(edit.base.rule, None)
        return "propose" if decision == "apply" and edit.reason.only_proposes else decision

    def _said(self, quote: str | None) -> bool:
        words = " ".join((quote or "").split())
        if not words:
            return False
        told = [" ".join(text.split()) for text in self.said]
        return words in told or (
            len(words) >= _SHORTEST_QUOTE and any(words in text for text in told)
        )


@dataclass(frozen=True, slots=True)
class PassageDraft:
    """One text a tool call wants archived."""

    call_id: str
    id: str
    text: str
    tags: tuple[str, ...]


class WorkingMemory:
    """The agent's blocks as this step sees them, with the edits and passages its tool calls asked for, in their order.

    `reasons` are what calls say of their edits, and `notes` what calls are told beside their results, both by call id.
    The `guard` refuses what memory has no use for, and a text has to go on following its block's schema, one of `schemas`.
    """

    def __init__(
        self,
        state: AgentState,
        guard: edit_guard.EditGuard = edit_guard.NO_GUARD,
        schemas: Schemas = no_schemas,
    ) -> None:
        self._agent = state.agent
        self._blocks = state.blocks
        self._bases = {block.id: block for block in state.blocks}
        self._current = {block.shown_label: block for block in state.blocks}
        self._user_id = state.conversation.user_id
        self._guard = guard
        self._schemas = schemas
        self.edits: list[MemoryEdit] = []
        self.passages: list[PassageDraft] = []
        self.reasons: dict[str, EditReason] = {}
        self.notes: dict[str, list[str]] = {}
        self.removed: dict[
            str, str
        ] = {}  # secrets that were taken out of what was written, and their kinds

    def block(self, label: str) -> Block:
        """The block with this label, with the step's edits so far; raises NotFound naming the labels there are."""
        block = self.find(label)
        if block is None:
            # The sentence is a wire fact of the retired Letta V1 server.
            raise NotFound(
                f"Block field {label} does not exist (available sections = {', '.join(self._current)})"
            )
        return block

    def blocks(self) -> tuple[Block, ...]:
        """The blocks as the step began with them, without its edits: what may be read as memory."""
        return self._blocks

    def current(self) -> tuple[Block, ...]:
        """The blocks with the step's edits so far."""
        return tuple(self._current.values())

    def find(self, label: str) -> Block | None:
        """The block with this label, with the step's edits so far, if there is one."""
        return self._current.get(normal_name(label))

    def write(
        self,
        label: str,
        value: str,
        call_id: str,
        *,
        shown: Shown = "text",
        reason: EditReason = NO_REASON,
    ) -> str:
        """Give the block another text in this step; saving it decides what that becomes. Raises NotFound, Forbidden, Invalid."""
        block = self._writable(label)
        value = self._shown(normal_text(value), call_id, block.value)
        block.require_fits(
            value
        )  # before it is read for secrets, and again with what takes their place
        require_storable(value, reason.text)
        value = self._redacted(value, call_id)
        block.require_fits(value)
        if value != block.value:
            if block.schema_ref:
                require_follows(
                    block.shown_label, block.value, value, self._schemas(block.schema_ref)
                )
            self._require_new(block, value, call_id)
            self._edit(block, replace(block, value=value), call_id, shown, reason)
        return value

    @property
    def is_about_user(self) -> bool:
        return self._user_id is not None

    def create(
        self,
        label: str,
        value: str,
        description: str | None,
        call_id: str,
        reason: EditReason = NO_REASON,
    ) -> None:
        """Add a block: the user's, for this agent, in a conversation with one, else its own. Raises Conflict, Invalid."""
        require_storable(value, description, label, reason.text)
        label = require_label(label)
        require_free(label, self._current)
        value = self._redacted(self._shown(value, call_id), call_id)
        description = description and self._redacted(self._shown(description, call_id), call_id)
        self._guard.require_new(value)
        self._note_repeated(self._repeated(label, "", value), call_id)
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
        if self._user_id:
            new = replace(
                new,
                policy=self._agent.user_block_policy,
                agent_id=self._agent.memory_id,
                is_users=True,
            )
        new.require_fits(value)
        self._bases[new.id] = self._current[label] = new
        self._edit(new, new, call_id, reason=reason)

    def remove(self, label: str, call_id: str) -> None:
        """Take the block out of the agent's memory. Raises NotFound, Forbidden."""
        self._edit(self._reshapable(label), None, call_id)

    def rename(self, label: str, new_label: str, call_id: str) -> None:
        """Give the block another label. Raises NotFound, Forbidden, Conflict where the new one is taken, Invalid."""
        block = self._reshapable(label)
        new_label = normal_name(new_label)
        if new_label == block.shown_label:
            return
        require_storable(new_label)
        require_free(require_label(new_label), self._current)
        self._edit(block, replace(block, label=new_label, seen_as=None), call_id)

    def describe(self, label: str, description: str, call_id: str) -> None:
        """Give the block another description. Raises NotFound, Forbidden, Invalid."""
        block = self._writable(label)
        require_storable(description)
        description = self._redacted(
            self._shown(description, call_id, block.description or ""), call_id
        )
        if description != block.description:
            self._edit(block, replace(block, description=description), call_id)

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
        require_storable(draft.text, *draft.tags, what="A passage and its tags")
        require_tags(draft.tags)
        text = self._redacted(self._shown(draft.text, draft.call_id), draft.call_id)
        tags = tuple(
            dict.fromkeys(self._redacted(normal_name(tag), draft.call_id) for tag in draft.tags)
        )
        self._guard.require_new(text, is_archived=True)
        self.passages.append(replace(draft, text=text, tags=tags))

    def _writable(self, label: str) -> Block:
        block = self.block(label)
        require_writable(block)
        return block

    def _reshapable(self, label: str) -> Block:
        block = self._writable(label)
        if self._user_id and not block.is_users:
            raise Forbidden(OTHERS_TOO.format(label))
        return block

    def _edit(
        self,
        block: Block,
        after: Block | None,
        call_id: str,
        shown: Shown = "nothing",
        reason: EditReason = NO_REASON,
    ) -> None:
        if given := self.reasons.get(call_id):
            quote = given.quote if reason.quote is None else reason.quote
            reason = replace(reason, text=reason.text or _shortened(given.text), quote=quote)
        kept = [after if one is block else one for one in self._current.values()]
        self._current = {one.shown_label: one for one in kept if one}
        self.edits.append(MemoryEdit(call_id, self._bases[block.id], after, shown, reason))

    def _shown(self, text: str, call_id: str, before: str = "") -> str:
        """Return a text without hidden characters, unless it had them before or the user wrote them."""
        if not has_hidden(text):
            return text
        shown = shown_text(text, [before, *self._guard.said()])
        if shown != text:
            self._note(call_id, HIDDEN)
        return shown

    def _redacted(self, text: str, call_id: str) -> str:
        redacted = redact(normal_text(text))
        if redacted.kinds:
            self._note(call_id, REMOVED.format(", ".join(redacted.kinds)))
            self.removed.update(redacted.secrets)
        return redacted.text

    def _require_new(self, block: Block, value: str, call_id: str) -> None:
        """Refuse a write that only repeats what is there, or was recalled; say of lines that stand twice now."""
        piece = edit_guard.changed_piece(block.value, value)
        if len(piece.strip()) < edit_guard.LEAST_LINE:
            return
        self._guard.require_new(
            "\n".join(edit_guard.added_lines(block.value, piece)), own=block.value
        )
        found = self._repeated(block.shown_label, block.value, value)
        if edit_guard.only_repeats(block.shown_label, block.value, value, found):
            raise Invalid(
                f"Nothing was saved: this {found[0].told()}. Change that line, or leave it."
            )
        self._note_repeated(found, call_id)

    def _repeated(self, label: str, before: str, after: str) -> list[edit_guard.KnownLine]:
        others = {name: other.value for name, other in self._current.items() if name != label}
        return edit_guard.repeated(label, before, after, others)

    def _note_repeated(self, found: Iterable[edit_guard.KnownLine], call_id: str) -> None:
        for line in islice(found, _MOST_NOTED):
            self._note(call_id, f"What you wrote {line.told()}. Keep it in one place.")

    def _note(self, call_id: str, note: str) -> None:
        notes = self.notes.setdefault(call_id, [])
        if note not in notes:
            notes.append(note)


def _shortened(reasoning: str) -> str:
    """The reasoning as it is kept; raises Invalid where it cannot be."""
    require_storable(reasoning, what="A reasoning")
    # People decide by it.
    reasoning = shown_text(reasoning)
    return reasoning if len(reasoning) <= LONGEST_REASON else f"{reasoning[: LONGEST_REASON - 1]}…"


def require_writable(block: Block) -> None:
    if block.is_read_only:
        raise Forbidden("Error This block is read-only and cannot be edited.")


def require_free(label: str, taken: Container[str]) -> None:
    if label in taken:
        raise Conflict(f"Error: Memory block '{label}' already exists")


def require_storable(*texts: str | None, what: str = "A memory block") -> None:
    """Raise Invalid here, where only the call fails by it, and not the step that is saved later."""
    joined = "".join(text for text in texts if text)
    if "\0" in joined:
        raise Invalid(f"{what} cannot hold NUL characters. Leave them out.")
    try:
        joined.encode()
    except UnicodeEncodeError:
        raise Invalid(
            f"{what} cannot hold half a character (a lone surrogate). Write whole characters."
        ) from None


def replaced_piece(block: Block, old: str, new: str, *, everywhere: bool) -> str:
    """The block's text with the one piece replaced, or every piece that is like it; raises Invalid, TooLong."""
    label, value = block.shown_label, block.value
    if old == new:
        raise Invalid("The edit changes nothing: old_string and new_string are the same.")
    if not old and value:
        raise Invalid(
            f'Memory block "{label}" is not empty. Name in old_string the text to replace; to add a line, name the one before '
            "it and repeat that in new_string."
        )
    if everywhere and old in value:
        return block.replaced(old, with_line_breaks(new))
    found = search(value, old, new)
    if found.count > 1:
        raise Invalid(
            f'old_string occurs {found.count} times in memory block "{label}", in lines {list(found.lines)}. '
            "Give more of its surroundings, or set replace_all."
        )
    if found.replacement is None and old:
        raise Invalid(
            f'old_string does not occur word for word in memory block "{label}". Read the block and copy the text from it. '
            f"Proposed changes are not in it.{hint(value, old)}"
        )
    changed = found.replacement.apply(value) if found.replacement else with_line_breaks(new)
    block.require_fits(changed)
    return changed
