"""A step's working copy of memory, and the context of its edits.

Tools change the copy, and it keeps their edits. `memory.step_commit` stores these with the step.
"""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, require_label
from ricordo.domain.hidden_text import (
    describe_hidden,
    has_hidden_text,
    without_hidden_text,
    without_marks,
)
from ricordo.domain.ids import new_id
from ricordo.domain.passage import require_tags
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor
from ricordo.domain.text import normal_name, normal_text
from ricordo.domain.version import ChangeMetadata, PolicyDecision
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory import edit_guard
from ricordo.memory.matching import hint, search, with_line_breaks
from ricordo.memory.schemas import Schemas, no_schemas, require_follows

# The result that the agent reads of its edit: the block's new text, the id of the new version, or
# only the tool's own result.
ResultKind = Literal["text", "version", "nothing"]


@dataclass(frozen=True, slots=True)
class EditReason:
    """The reason of an edit, its confidence (0 to 1), and the user's words.

    With `only_proposes` the edit waits for the owner.
    """

    text: str = ""
    confidence: float | None = None
    quote: str | None = None
    only_proposes: bool = False


NO_REASON = EditReason()
LONGEST_REASON = 4_000  # characters
# A shorter quote could occur anywhere, unless it is all that the user said.
_SHORTEST_QUOTE = 8
# The most repeated lines that are named to the agent.
_NOTED_LINES = 3
OTHERS_TOO = (
    'Error: Memory block "{}" is also used in conversations with others, so it cannot be deleted '
    "or renamed in this one. "
    "Edit its text instead, which changes it for this user alone."
)
HIDDEN_NOTE = (
    "Characters that nobody sees were taken out of what you wrote: the user did not write them."
)
HIDDEN_REFUSED = (
    "Nothing was saved: what you wrote holds characters that nobody sees ({}), and the user did "
    "not write them. Write it again without them."
)
REDACTED_NOTE = "A secret ({}) was taken out of what you wrote: memory keeps no keys and passwords."


@dataclass(frozen=True, slots=True)
class MemoryEdit:
    """One call's edit of a block.

    `base` is the block as the step began; a new block has no chain. `after` is None if the block
    leaves the agent's memory.
    """

    call_id: str
    base: Block
    after: Block | None
    result_kind: ResultKind = "nothing"
    reason: EditReason = NO_REASON

    @property
    def is_new(self) -> bool:
        return not self.base.chain_id

    @property
    def value(self) -> str:
        if self.after:
            return self.after.value
        return ""

    @property
    def changes_text_alone(self) -> bool:
        label_and_description = (self.base.label, self.base.description)
        return (
            not self.is_new
            and self.after is not None
            and (self.after.label, self.after.description) == label_and_description
        )


def by_block(edits: Iterable[MemoryEdit]) -> dict[str, list[MemoryEdit]]:
    """Group the edits by their block's id, in their order."""
    groups: dict[str, list[MemoryEdit]] = {}
    for edit in edits:
        groups.setdefault(edit.base.id, []).append(edit)
    return groups


@dataclass(frozen=True, slots=True)
class EditContext:
    """The author of a step's edits, and the rules that apply to them.

    `user_texts` are the user's messages of this turn, for quotes. Proposals expire after
    `expires_after` microseconds; None: never.
    """

    author: Actor
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    user_texts: tuple[str, ...] = ()
    expires_after: int | None = None
    schemas: Schemas = no_schemas

    def require_follows(self, block: Block, value: str) -> None:
        """Raise Invalid where the edit would follow the block's schema less than before."""
        if block.schema_ref:
            require_follows(block.shown_label, block.value, value, self.schemas(block.schema_ref))

    def metadata(self, reasons: Iterable[EditReason], otherwise: str) -> ChangeMetadata:
        """Return the metadata of one change by these calls.

        `otherwise` is the reason where the calls gave none.
        """
        all_reasons = list(reasons)
        texts = dict.fromkeys(reason.text.strip() for reason in all_reasons if reason.text.strip())
        return ChangeMetadata(
            author=self.author,
            reason="; ".join(texts) or otherwise,
            run_id=self.run_id,
            step_id=self.step_id,
            is_untrusted=self.is_untrusted,
            is_quoted=bool(all_reasons)
            and all(self._is_quoted(reason.quote) for reason in all_reasons),
        )

    def policy_decision(self, edit: MemoryEdit) -> PolicyDecision:
        decision = self.metadata([edit.reason], "").policy_decision(edit.base.rule, None)
        if decision == "apply" and edit.reason.only_proposes:
            return "propose"
        return decision

    def _is_quoted(self, quote: str | None) -> bool:
        quoted_text = " ".join((quote or "").split())
        if not quoted_text:
            return False
        user_texts = [" ".join(text.split()) for text in self.user_texts]
        return quoted_text in user_texts or (
            len(quoted_text) >= _SHORTEST_QUOTE and any(quoted_text in text for text in user_texts)
        )


@dataclass(frozen=True, slots=True)
class PassageDraft:
    """A text that a tool call wants to archive."""

    call_id: str
    id: str
    text: str
    tags: tuple[str, ...]


class WorkingMemory:
    """The agent's blocks in this step, with its tool calls' edits and passages.

    `reasons` are the calls' reasons for their edits, and `notes` are remarks for the calls, both by
    call id. The `guard` refuses repetitions. A text must not follow its block's schema less than
    before.
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
        # Secrets that were removed from written texts, and their kinds.
        self.removed: dict[str, str] = {}

    def block(self, label: str) -> Block:
        """Return the block with this label, with the step's edits so far.

        Raises NotFound, which names the existing labels.
        """
        block = self.find(label)
        if block is None:
            # The sentence is a wire fact of the retired Letta V1 server.
            raise NotFound(
                f"Block field {label} does not exist (available sections = "
                f"{', '.join(self._current)})"
            )
        return block

    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks as the step began: the memory in the prompt."""
        return self._blocks

    def current(self) -> tuple[Block, ...]:
        """Return the blocks with the step's edits so far."""
        return tuple(self._current.values())

    def find(self, label: str) -> Block | None:
        """Return the block with this label, with the step's edits, if it exists."""
        return self._current.get(normal_name(label))

    def write(
        self,
        label: str,
        text: str,
        call_id: str,
        *,
        result_kind: ResultKind = "text",
        reason: EditReason = NO_REASON,
    ) -> str:
        """Give the block another text in this step; saving applies its policy.

        Raises NotFound, Forbidden, Invalid.
        """
        block = self._writable(label)
        require_storable(text, reason.text)
        text = self._without_hidden(
            normal_text(text), call_id, block.value, is_refused=block.rule != "direct"
        )
        # The size is checked before the search for secrets, and again after it replaced them.
        block.require_fits(text)
        text = self._redacted(text, call_id)
        block.require_fits(text)
        if text != block.value:
            if block.schema_ref:
                require_follows(
                    block.shown_label, block.value, text, self._schemas(block.schema_ref)
                )
            self._require_new(block, text, call_id)
            self._edit(block, replace(block, value=text), call_id, result_kind, reason)
        return text

    @property
    def is_about_user(self) -> bool:
        return self._user_id is not None

    def create(
        self,
        label: str,
        text: str,
        description: str | None,
        call_id: str,
        reason: EditReason = NO_REASON,
    ) -> None:
        """Add a block for the conversation's user, or for the agent.

        Raises Conflict, Invalid.
        """
        require_storable(text, description, label, reason.text)
        label = require_label(label)
        require_free(label, self._current)
        is_refused = self._user_id is not None and self._agent.user_block_policy != "direct"

        def cleaned(part: str) -> str:
            shown_text = self._without_hidden(part, call_id, is_refused=is_refused)
            return self._redacted(shown_text, call_id)

        text = cleaned(text)
        description = description and cleaned(description)
        self._guard.require_new(text)
        self._note_repeated(self._repeated(label, "", text), call_id)
        block = Block(
            id=new_id("block"),
            organization_id=self._agent.organization_id,
            chain_id="",
            label=label,
            value=text,
            description=description,
            created_by=self._agent.id,
            updated_by=self._agent.id,
        )
        if self._user_id:
            block = replace(
                block,
                policy=self._agent.user_block_policy,
                agent_id=self._agent.memory_id,
                is_users=True,
            )
        block.require_fits(text)
        self._bases[block.id] = self._current[label] = block
        self._edit(block, block, call_id, reason=reason)

    def remove(self, label: str, call_id: str) -> None:
        """Take the block out of the agent's memory.

        Raises NotFound, Forbidden.
        """
        self._edit(self._reshapable(label), None, call_id)

    def rename(self, label: str, new_label: str, call_id: str) -> None:
        """Give the block another label.

        Raises NotFound, Forbidden, Invalid, and Conflict where the new label is taken.
        """
        block = self._reshapable(label)
        new_label = normal_name(new_label)
        if new_label == block.shown_label:
            return
        require_storable(new_label)
        require_free(require_label(new_label), self._current)
        self._edit(block, replace(block, label=new_label, seen_as=None), call_id)

    def describe(self, label: str, description: str, call_id: str) -> None:
        """Give the block another description.

        Raises NotFound, Forbidden, Invalid.
        """
        block = self._writable(label)
        require_storable(description)
        description = self._redacted(
            self._without_hidden(
                description,
                call_id,
                block.description or "",
                is_refused=block.rule != "direct",
            ),
            call_id,
        )
        if description != block.description:
            self._edit(block, replace(block, description=description), call_id)

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Apply all edits within the context, or none of them after an error."""
        before = dict(self._current)
        count = len(self.edits)
        try:
            yield
        except BaseException:
            self._current = before
            del self.edits[count:]
            raise

    def archive(self, draft: PassageDraft) -> None:
        """Queue a passage for the archive; the step's save stores it.

        Raises Invalid.
        """
        require_storable(draft.text, *draft.tags, subject="A passage and its tags")
        require_tags(draft.tags)
        text = self._redacted(self._without_hidden(draft.text, draft.call_id), draft.call_id)
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
        result_kind: ResultKind = "nothing",
        reason: EditReason = NO_REASON,
    ) -> None:
        if call_reason := self.reasons.get(call_id):
            if reason.quote is None:
                quote = call_reason.quote
            else:
                quote = reason.quote
            reason = replace(reason, text=reason.text or _shortened(call_reason.text), quote=quote)
        edited_blocks = [after if other is block else other for other in self._current.values()]
        self._current = {other.shown_label: other for other in edited_blocks if other}
        self.edits.append(MemoryEdit(call_id, self._bases[block.id], after, result_kind, reason))

    def _without_hidden(
        self, text: str, call_id: str, before: str = "", *, is_refused: bool = False
    ) -> str:
        """Return a text without hidden text, and without copied marks of it.

        It stays where the text had it before, or the user wrote it. Raises Invalid where the
        block's policy refuses it.
        """
        text = without_marks(text)
        if not has_hidden_text(text):
            return text
        known_texts = [before, *self._guard.user_texts()]
        shown_text = without_hidden_text(text, known_texts)
        if shown_text != text:
            if is_refused:
                raise Invalid(HIDDEN_REFUSED.format(describe_hidden(text, known_texts)))
            self._note(call_id, HIDDEN_NOTE)
        return shown_text

    def _redacted(self, text: str, call_id: str) -> str:
        redacted = redact(normal_text(text))
        if redacted.kinds:
            self._note(call_id, REDACTED_NOTE.format(", ".join(redacted.kinds)))
            self.removed.update(redacted.secrets)
        return redacted.text

    def _require_new(self, block: Block, text: str, call_id: str) -> None:
        """Refuse a write that only repeats known or recalled text.

        Lines that stand twice after the write are reported in a note.
        """
        piece = edit_guard.changed_piece(block.value, text)
        if len(piece.strip()) < edit_guard.SHORTEST_LINE:
            return
        self._guard.require_new(
            "\n".join(edit_guard.added_lines(block.value, piece)), block_text=block.value
        )
        repeated_lines = self._repeated(block.shown_label, block.value, text)
        if edit_guard.only_repeats(block.shown_label, block.value, text, repeated_lines):
            raise Invalid(
                f"Nothing was saved: this {repeated_lines[0].describe()}. "
                "Change that line, or leave it."
            )
        self._note_repeated(repeated_lines, call_id)

    def _repeated(self, label: str, before: str, after: str) -> list[edit_guard.KnownLine]:
        others = {name: other.value for name, other in self._current.items() if name != label}
        return edit_guard.repeated(label, before, after, others)

    def _note_repeated(self, repeated_lines: Iterable[edit_guard.KnownLine], call_id: str) -> None:
        for line in islice(repeated_lines, _NOTED_LINES):
            self._note(call_id, f"What you wrote {line.describe()}. Keep it in one place.")

    def _note(self, call_id: str, note: str) -> None:
        notes = self.notes.setdefault(call_id, [])
        if note not in notes:
            notes.append(note)


def _shortened(reasoning: str) -> str:
    """Return the reasoning as it is stored.

    Raises Invalid where it cannot be stored.
    """
    require_storable(reasoning, subject="A reasoning")
    # Owners base their decisions on it, so it has no hidden characters.
    reasoning = without_hidden_text(without_marks(reasoning))
    if len(reasoning) <= LONGEST_REASON:
        return reasoning
    return f"{reasoning[: LONGEST_REASON - 1]}…"


def require_writable(block: Block) -> None:
    if block.is_read_only:
        raise Forbidden("Error This block is read-only and cannot be edited.")


def require_free(label: str, existing_labels: Container[str]) -> None:
    if label in existing_labels:
        raise Conflict(f"Error: Memory block '{label}' already exists")


def require_storable(*texts: str | None, subject: str = "A memory block") -> None:
    """Raise Invalid for a text that the database cannot store.

    Here only the call fails by it; later the whole step would.
    """
    joined = "".join(text for text in texts if text)
    if "\0" in joined:
        raise Invalid(f"{subject} cannot hold NUL characters. Leave them out.")
    try:
        joined.encode()
    except UnicodeEncodeError:
        raise Invalid(
            f"{subject} cannot hold half a character (a lone surrogate). Write whole characters."
        ) from None


def replaced_piece(block: Block, old: str, new: str, *, everywhere: bool) -> str:
    """Return the block's text with one piece replaced, or every equal piece.

    Raises Invalid, TooLong.
    """
    label = block.shown_label
    text = block.value
    if old == new:
        raise Invalid("The edit changes nothing: old_string and new_string are the same.")
    if not old and text:
        raise Invalid(
            f'Memory block "{label}" is not empty. Name in old_string the text to replace; '
            "to add a line, name the one before "
            "it and repeat that in new_string."
        )
    if everywhere and old in text:
        return block.replaced(old, with_line_breaks(new))
    match = search(text, old, new)
    if match.count > 1:
        raise Invalid(
            f'old_string occurs {match.count} times in memory block "{label}", in lines '
            f"{list(match.lines)}. "
            "Give more of its surroundings, or set replace_all."
        )
    if match.replacement is None and old:
        raise Invalid(
            f'old_string does not occur word for word in memory block "{label}". '
            "Read the block and copy the text from it. "
            f"Proposed changes are not in it.{hint(text, old)}"
        )
    if match.replacement:
        changed = match.replacement.apply(text)
    else:
        changed = with_line_breaks(new)
    block.require_fits(changed)
    return changed
