"""A step's edits of memory: the working copy, its guard, and the edits' context.

Tools change the copy, which collects their edits. The guard refuses writes that only repeat text
that the agent already has. `memory.commit` stores the edits with the step.
"""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, is_skill, require_label
from ricordo.domain.clock import DAY
from ricordo.domain.egress import Clearance
from ricordo.domain.hidden_text import (
    describe_hidden,
    has_hidden_text,
    without_hidden_text,
    without_marks,
)
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, ToolReturnPart
from ricordo.domain.passage import require_tags
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor
from ricordo.domain.text import is_plain, normal_name, normal_text
from ricordo.domain.version import ChangeMetadata, PolicyDecision
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.matching import hint, search, with_line_breaks
from ricordo.memory.schemas import Schemas, no_schemas, require_follows
from ricordo.memory.text import common_ends

# An added text is a repetition if this share of its runs of words occurs in another text.
CONTAINED = 0.9
_RUN = 5
# Shorter texts, such as a name or an item of a list, are not checked, since they occur anywhere.
_FEWEST_CHECKED_WORDS = 12
_FEWEST_CHARACTERS = 40
# Shorter lines and changes are not checked.
SHORTEST_LINE = 24
# Two lines are nearly the same if this share of all their words is in both.
_ALIKE = 0.8
_FEWEST_WORDS = 7
_COMPARISON_LIMIT = 20_000
_EXCERPT_LENGTH = 80
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_BULLET = re.compile(r"^[\s>*+#•\-–—]+|^\s*\d{1,3}[.)]\s+")
_SEARCHES = frozenset({"conversation_search", "archival_memory_search"})

REPEATS_SEARCH = (
    "Nothing was saved: nearly all of this only repeats what a search of your memory just gave "
    "you, so it is stored already. Save what is new, in your own words."
)
SPILLS = (
    "Nothing was saved: this repeats {}, whose egress policy allows fewer destinations than memory "
    'block "{}". Leave that text where it is.'
)
SPILLS_IN_NAME = (
    'Nothing was saved: the name "{}" repeats {}, which has an egress policy, but every model sees '
    "labels and tags. Choose another name."
)
REPEATS_INSTRUCTIONS = (
    "Nothing was saved: nearly all of this is in your own instructions, which you always see. "
    "Save only what you learned from others."
)


@dataclass(frozen=True, slots=True)
class GuardSources:
    """A prompt's texts outside the memory blocks.

    `system` are the instructions, `recalled` are search results. The user's texts are those of this
    turn, earlier texts in the window, and older texts that a search returned.
    """

    system: Sequence[str] = ()
    recalled: Sequence[str] = ()
    user_texts: Sequence[str] = ()
    earlier_user_texts: Sequence[str] = ()
    recalled_user_texts: Sequence[str] = ()


@dataclass(eq=False)
class EditGuard:
    """Refuses writes of one step that only repeat texts, or that an egress policy forbids.

    `read` is called only when a long text or hidden text is written, which is seldom.
    """

    read: Callable[[], GuardSources]
    clearance: Clearance = field(default_factory=Clearance)

    @property
    def label(self) -> str | None:
        """The egress label of all texts that the step writes."""
        return self.clearance.label

    def require_no_spill(self, before: Block, after: Block) -> None:
        """Raise Forbidden if the edit copies text to a block that more destinations may see.

        The block's text and description have the block's policy, but every model sees its label.
        All three are compared with the labelled texts that the step has read. The descriptions of
        other blocks are not among these texts.

        Args:
            before: The block before the edit.
            after: The block after the edit.
        """
        for text_before, text in (
            (before.value, after.value),
            (before.description or "", after.description or ""),
        ):
            if source := self.clearance.spills(changed_piece(text_before, text), after.egress):
                raise Forbidden(SPILLS.format(source, after.shown_label))
        if after.label != before.label:
            self.require_public(after.label)

    def require_public(self, *names: str) -> None:
        """Raise Forbidden if a label or tag, which every model sees, repeats a labelled text."""
        for name in names:
            if source := self.clearance.spills_in_name(name):
                raise Forbidden(SPILLS_IN_NAME.format(name, source))

    def require_new(self, added: str, block_text: str = "", *, is_archived: bool = False) -> None:
        """Raise Invalid if nearly all of the added text repeats the sources.

        A block may quote earlier texts of the user. A passage of the archive may not quote those
        that a search returned, since they are stored already.

        Args:
            added: The added text; a short one is not checked.
            block_text: The block's text so far, whose lines may be reordered.
            is_archived: Whether the text is a passage of the archive.
        """
        added_words = _words(added)
        if len(added_words) < _FEWEST_CHECKED_WORDS or len(added) < _FEWEST_CHARACTERS:
            return
        runs = _runs([added])
        source_runs = self._sources
        allowed = source_runs["user_texts"] | _runs([block_text])
        if not is_archived:
            allowed |= source_runs["earlier_user_texts"] | source_runs["recalled_user_texts"]
        if _share(runs, allowed) >= CONTAINED:
            return
        if _share(runs, source_runs["recalled"] | source_runs["recalled_user_texts"]) >= CONTAINED:
            raise Invalid(REPEATS_SEARCH)
        if _share(runs, source_runs["system"]) >= CONTAINED:
            raise Invalid(REPEATS_INSTRUCTIONS)

    def user_texts(self) -> list[str]:
        """Return the user's texts of this turn and of earlier turns."""
        sources = self.read()
        return [
            *sources.user_texts,
            *sources.earlier_user_texts,
            *sources.recalled_user_texts,
        ]

    @cached_property
    def _sources(self) -> dict[str, set[tuple[str, ...]]]:
        sources = self.read()
        return {name: _runs(getattr(sources, name)) for name in GuardSources.__slots__}


NO_GUARD = EditGuard(GuardSources)


def search_results(window: Iterable[Message]) -> tuple[list[str], list[str]]:
    """Return the texts of search results in the window: texts by others, and texts by the user.

    Args:
        window: The messages in context.
    """
    other_texts: list[str] = []
    user_texts: list[str] = []
    for tool_return in (tool_return for message in window for tool_return in message.tool_returns):
        hits = _hits(tool_return) if tool_return.said else None
        if hits:
            for source_id, hit in zip(tool_return.sources, hits, strict=True):
                by_user = source_id in tool_return.said
                (user_texts if by_user else other_texts).extend(_strings(hit))
        elif tool_return.sources or tool_return.name in _SEARCHES:
            other_texts.extend(_texts(tool_return))
    return other_texts, user_texts


def _hits(tool_return: ToolReturnPart) -> list[Any] | None:
    """Return a result's parts, one for each of its sources, in their order.

    Returns None if parts and sources cannot be matched, for example because the result was cut.
    """
    content = tool_return.decoded()
    if isinstance(content, dict):
        hits = content.get("results")
    else:
        hits = content
    if not isinstance(hits, list):
        return None
    turns = [turn for hit in hits for turn in _turns(hit)]
    if len(turns) == len(tool_return.sources):
        return turns
    return None


def _turns(hit: Any) -> list[Any]:
    """Return a hit and the turns before and after it, which are sources too."""
    if not isinstance(hit, dict):
        return [hit]
    before, after = (_list(hit.get(name)) for name in ("before", "after"))
    return [*before, {**hit, "before": None, "after": None}, *after]


def _list(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return []


def changed_piece(before: str, after: str) -> str:
    """Return the changed piece of the later text, in whole words.

    Args:
        before: The text before the change.
        after: The text after the change.
    """
    head, tail = common_ends(before, after)
    while _splits_word(after, head):
        head -= 1  # a changed word counts as wholly new
    while _splits_word(after, len(after) - tail):
        tail -= 1
    return after[head : len(after) - tail]


def added_lines(before: str, after: str) -> list[str]:
    """Return the lines of the later text that the earlier text lacks.

    A line that occurs more often than before counts as added. Marks of lists, letter case, spaces
    and the punctuation at the end make no difference.

    Args:
        before: The earlier text.
        after: The later text.
    """
    earlier_counts = Counter(map(_key, before.split("\n")))
    added: list[str] = []
    for line in after.split("\n"):
        if earlier_counts[_key(line)] > 0:
            earlier_counts[_key(line)] -= 1
        else:
            added.append(line)
    return added


def _splits_word(text: str, index: int) -> bool:
    return (
        0 < index < len(text)
        and text[index - 1].isalnum()
        and text[index].isalnum()
        and text[index] < "\u3000"
    )


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A line of a block that repeats another line; lines count from 1.

    `is_same` is set if both lines differ at most in list marks, letter case, spaces and the
    punctuation at the end.
    """

    label: str
    line: int
    text: str
    is_same: bool

    def describe(self) -> str:
        if self.is_same:
            relation = "is already"
        else:
            relation = "is nearly the same as a line"
        if len(self.text) <= _EXCERPT_LENGTH:
            excerpt = self.text
        else:
            excerpt = self.text[: _EXCERPT_LENGTH - 1] + "…"
        return f'{relation} in memory block "{self.label}", line {self.line}: "{excerpt}"'


def repeated(label: str, before: str, after: str, others: Mapping[str, str]) -> list[KnownLine]:
    """Return existing lines, in this block or in others, that a write adds again or nearly again.

    Args:
        label: The label of the block that is written.
        before: The block's text before the write.
        after: The block's text after the write.
        others: The texts of other blocks by label.
    """
    added = [line for line in added_lines(before, after) if _is_checked(line)]
    if not added:
        return []
    # Compare only with the lines of this block that remain, since a replaced line may resemble its
    # replacement.
    remaining_keys = {_key(line) for line in after.split("\n")}
    known_lines = [
        KnownLine(name, number, line, is_same=True)
        for name, text in (
            {label: before} | {name: text for name, text in others.items() if name != label}
        ).items()
        for number, line in enumerate(text.split("\n"), 1)
        if name != label or _key(line) in remaining_keys
    ]
    by_key: dict[str, KnownLine] = {}
    for known_line in known_lines:
        by_key.setdefault(_key(known_line.text), known_line)
    repeated_lines: list[KnownLine] = []
    word_sets: list[set[str]] = []
    compared = 0
    for line in added:
        if same := by_key.get(_key(line)):
            repeated_lines.append(same)
        elif compared + len(known_lines) <= _COMPARISON_LIMIT:
            compared += len(known_lines)
            word_sets = word_sets or [set(_words(known_line.text)) for known_line in known_lines]
            if alike := _most_alike(line, known_lines, word_sets):
                repeated_lines.append(alike)
    return repeated_lines


def only_repeats(label: str, before: str, after: str, repeated_lines: Sequence[KnownLine]) -> bool:
    """Return whether a write only adds lines that the block has already.

    Args:
        label: The label of the block that is written.
        before: The block's text before the write.
        after: The block's text after the write.
        repeated_lines: The result of `repeated` for this write.
    """
    new = [line for line in added_lines(before, after) if line.strip()]
    if (
        not new
        or len(repeated_lines) < len(new)
        or any(not known_line.is_same or known_line.label != label for known_line in repeated_lines)
    ):
        return False
    return not Counter(map(_key, before.split("\n"))) - Counter(map(_key, after.split("\n")))


def _is_checked(line: str) -> bool:
    return len(_key(line)) >= SHORTEST_LINE and len(_words(line)) > 3


def _most_alike(
    line: str, known_lines: Sequence[KnownLine], words_of: Sequence[set[str]]
) -> KnownLine | None:
    own_words = set(_words(line))
    if len(own_words) < _FEWEST_WORDS:
        return None
    best: tuple[float, KnownLine | None] = (_ALIKE, None)
    for known_line, other_words in zip(known_lines, words_of, strict=True):
        # Sets whose sizes differ this much cannot share enough words.
        if not _ALIKE * len(own_words) <= len(other_words) <= len(own_words) / _ALIKE:
            continue
        alike = len(own_words & other_words) / len(own_words | other_words)
        if alike >= best[0]:
            best = (
                alike,
                KnownLine(known_line.label, known_line.line, known_line.text, is_same=False),
            )
    return best[1]


def _key(line: str) -> str:
    return " ".join(_BULLET.sub("", line).casefold().split()).rstrip(".;,")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(texts: Iterable[str]) -> set[tuple[str, ...]]:
    word_lists = map(_words, texts)
    return {
        run
        for word_list in word_lists
        for run in zip(*(word_list[start:] for start in range(_RUN)), strict=False)
    }


def _share(runs: set[tuple[str, ...]], source: set[tuple[str, ...]]) -> float:
    return len(runs & source) / len(runs)


def _texts(tool_return: ToolReturnPart) -> list[str]:
    """Return the texts in a result.

    JSON that was cut is read as plain text, with its escapes decoded.
    """
    content = tool_return.decoded()
    if content != tool_return.content:
        return _strings(content)
    return [tool_return.content.replace("\\n", "\n").replace('\\"', '"')]


def _strings(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts: Iterable[Any] = ()
    if isinstance(content, dict):
        parts = content.values()
    elif isinstance(content, list):
        parts = content
    return [text for part in parts for text in _strings(part)]


# The result of an edit that the agent reads: the block's new text, the new version's id, or only
# the tool's text.
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
# The fewest characters of a quote, since a shorter one could occur anywhere. A quote of the user's
# whole message may be shorter.
_SHORTEST_QUOTE = 8
# The most repeated lines that are named to the agent.
_NOTED_LINES = 3
OTHERS_TOO = (
    'Error: Memory block "{}" is also used in conversations with others, so it cannot be deleted '
    "or renamed in this one. "
    "Edit its text instead, which changes it for this user alone."
)
HIDDEN_NOTE = (
    "Invisible characters were removed from the text that you wrote: the user did not write them."
)
HIDDEN_REFUSED = (
    "Nothing was saved: your text contains invisible characters ({}), and the user did not write "
    "them. Write it again without them."
)
# wire fact: clients of the retired Letta V1 server match it.
READ_ONLY = "Error This block is read-only and cannot be edited."
REDACTED_NOTE = (
    "A secret ({}) was removed from the text that you wrote: memory keeps no keys and passwords."
)


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
        """The text after the edit; empty if the block leaves the agent's memory."""
        if self.after:
            return self.after.value
        return ""

    @property
    def changes_text_alone(self) -> bool:
        """True if the edit changes only the text of an existing block, not label or description."""
        if not self.base.chain_id or self.after is None:
            return False
        settings = (self.base.label, self.base.description)
        return (self.after.label, self.after.description) == settings


def by_block(edits: Iterable[MemoryEdit]) -> dict[str, list[MemoryEdit]]:
    """Group the edits by their block's id, in their order.

    Args:
        edits: The edits of a step, in the order of their calls.
    """
    groups: dict[str, list[MemoryEdit]] = {}
    for edit in edits:
        groups.setdefault(edit.base.id, []).append(edit)
    return groups


@dataclass(frozen=True, slots=True)
class EditContext:
    """The author of a step's edits, and the rules that apply to them.

    `egress` is the egress label of the step's sources (`domain/egress.py`). `user_texts` returns
    the user's messages of this turn; it is called only for quotes. Proposals expire after
    `proposal_days`; with 0 they never expire.
    """

    author: Actor
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    egress: str | None = None
    user_texts: Callable[[], Sequence[str]] = tuple
    proposal_days: float = 0
    schemas: Schemas = no_schemas

    @property
    def expires_after(self) -> int | None:
        """The lifetime of a proposal in microseconds; None: for ever."""
        return int(self.proposal_days * DAY) or None

    def require_follows(self, block: Block, value: str) -> None:
        """Raise Invalid if the edited text would follow the block's schema less than before.

        Args:
            block: The block before the edit. One without a schema allows any text.
            value: The text after the edit.
        """
        if block.schema_ref:
            require_follows(block.shown_label, block.value, value, self.schemas(block.schema_ref))

    def metadata(self, reasons: Iterable[EditReason], otherwise: str) -> ChangeMetadata:
        """Return the metadata of one change by these calls.

        Args:
            reasons: The calls' reasons, which are joined.
            otherwise: The reason if the calls gave none.
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
            and all(reason.quote and self._is_quoted(reason.quote) for reason in all_reasons),
        )

    def policy_decision(self, edit: MemoryEdit) -> PolicyDecision:
        """Return what the block's policy decides about an edit: apply, propose or refuse it.

        Args:
            edit: The edit, which is not made here. One that only proposes is never applied.
        """
        decision = self.metadata([edit.reason], "").policy_decision(edit.base.rule, None)
        if decision == "apply" and edit.reason.only_proposes:
            return "propose"
        return decision

    def _is_quoted(self, quote: str) -> bool:
        quoted_text = " ".join(quote.split())
        if not quoted_text:
            return False
        user_texts = [" ".join(text.split()) for text in self.user_texts()]
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
    call id. The `guard` refuses repetitions and texts that an egress policy forbids here. An edited
    text must follow its block's schema at least as well as before.
    """

    def __init__(
        self,
        state: AgentState,
        guard: EditGuard = NO_GUARD,
        schemas: Schemas = no_schemas,
    ) -> None:
        self._agent = state.agent
        self._blocks = state.blocks
        self._bases = {block.id: block for block in state.blocks}
        self._current = {block.shown_label: block for block in state.blocks}
        self._user_id = state.conversation.user_id
        self._guard = guard
        self.schemas = schemas
        self.edits: list[MemoryEdit] = []
        self.passages: list[PassageDraft] = []
        self.reasons: dict[str, EditReason] = {}
        self.notes: dict[str, list[str]] = {}
        # Secrets that were removed from written texts, with the kinds of secrets.
        self.removed: dict[str, str] = {}

    def user_texts(self) -> list[str]:
        """Return the user's texts of this turn and of earlier turns."""
        return self._guard.user_texts()

    def block(self, label: str) -> Block:
        """Return the block with this label, with the step's edits so far.

        Args:
            label: The label as a model wrote it.

        Raises:
            NotFound: No block has the label. The message names the existing labels.
        """
        block = self._current.get(normal_name(label))
        if block is None:
            # The sentence is a wire fact of the retired Letta V1 server.
            raise NotFound(
                f"Block field {label} does not exist (available sections = "
                f"{', '.join(self._current)})"
            )
        return block

    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks as they were when the step began. The prompt shows these."""
        return self._blocks

    def current(self) -> tuple[Block, ...]:
        """Return the blocks with the step's edits so far."""
        return tuple(self._current.values())

    def find(self, label: str) -> Block | None:
        """Return the block with this label, with the step's edits, if it exists.

        Args:
            label: The label as a model wrote it.
        """
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

        Args:
            label: The label by which the agent sees the block.
            text: The whole new text. Secrets are removed. Hidden text is removed or refused, as the
                block's policy says.
            call_id: The tool call that writes it.
            result_kind: The kind of result that the agent reads.
            reason: The reason of this edit; what it lacks comes from the call's reason.

        Returns:
            The text as it was written.

        Raises:
            NotFound: if there is no such block.
            Forbidden: if the block is read-only, or the text may not be copied into it.
            Invalid: if the text cannot be stored, only repeats others, or violates the schema.
            TooLong: if the text is longer than the block's limit.
        """
        block = self._writable(label)
        require_storable(text, reason.text)
        text = self._without_hidden(
            normal_text(text), call_id, block.value, is_refused=block.rule != "direct"
        )
        # The size is checked twice: before the search for secrets, and after secrets were replaced.
        block.require_fits(text)
        text = self._redacted(text, call_id)
        block.require_fits(text)
        if text != block.value:
            if block.schema_ref:
                require_follows(
                    block.shown_label, block.value, text, self.schemas(block.schema_ref)
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

        Args:
            label: The label of the new block.
            text: Its text. Secrets are removed. Hidden text is removed or refused, as the agent's
                policy for the blocks of users says.
            description: Its description for the agent; None for a block without one.
            call_id: The tool call that creates it.
            reason: The reason of this edit; what it lacks comes from the call's reason.

        Raises:
            Conflict: if the agent sees a block with this label.
            Forbidden: if the label is that of a skill, or repeats a text with an egress policy.
            Invalid: if label or text cannot be stored, or the text only repeats others.
            TooLong: if the text is longer than the usual limit.
        """
        require_storable(text, description, label, reason.text)
        label = _require_no_skill(require_label(label))
        require_free(label, self._current)
        self._guard.require_public(label)
        is_refused = self._user_id is not None and self._agent.user_block_policy != "direct"

        def cleaned(part: str) -> str:
            shown_text = self._without_hidden(part, call_id, is_refused=is_refused)
            return self._redacted(shown_text, call_id)

        text = cleaned(text)
        description = description and cleaned(description)
        self._guard.require_new(text)
        self._note_repeated(self._repeated(label, "", text), call_id)
        # A new block may repeat any text of the step, so it gets the step's egress label.
        egress = self._guard.label
        block = Block(
            id=new_id("block"),
            organization_id=self._agent.organization_id,
            chain_id="",
            label=label,
            value=text,
            description=description,
            created_by=self._agent.id,
            updated_by=self._agent.id,
            egress=egress,
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

        Args:
            label: The label by which the agent sees the block.
            call_id: The tool call that removes it.

        Raises:
            NotFound: if there is no such block.
            Forbidden: if the block is read-only, or others use it too.
        """
        self._edit(self._reshapable(label), None, call_id)

    def rename(self, label: str, new_label: str, call_id: str) -> None:
        """Give the block another label.

        Args:
            label: The label by which the agent sees the block.
            new_label: The new label. The present label changes nothing.
            call_id: The tool call that renames it.

        Raises:
            NotFound: if there is no such block.
            Forbidden: if the block is read-only, or others use it too. Also if the label is that of
                a skill, or repeats a text with an egress policy.
            Invalid: if the new label is not allowed.
            Conflict: if the new label is taken.
        """
        block = self._reshapable(label)
        new_label = normal_name(new_label)
        if new_label == block.shown_label:
            return
        require_storable(new_label)
        require_free(_require_no_skill(require_label(new_label)), self._current)
        self._edit(block, replace(block, label=new_label, seen_as=None), call_id)

    def describe(self, label: str, description: str, call_id: str) -> None:
        """Give the block another description.

        Args:
            label: The label by which the agent sees the block.
            description: The new description. Secrets are removed. Hidden text is removed or
                refused, as the block's policy says.
            call_id: The tool call that changes it.

        Raises:
            NotFound: if there is no such block.
            Forbidden: if the block is read-only, or the text may not be copied into it.
            Invalid: if the description cannot be stored.
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

        Args:
            draft: The passage; secrets and hidden characters in it are removed.

        Raises:
            Invalid: if text or tags cannot be stored, or the text only repeats others.
            Forbidden: if a tag repeats a text with an egress policy.
        """
        require_storable(draft.text, *draft.tags, subject="A passage and its tags")
        require_tags(draft.tags)
        text = self._redacted(self._without_hidden(draft.text, draft.call_id), draft.call_id)
        tags = tuple(
            dict.fromkeys(self._redacted(normal_name(tag), draft.call_id) for tag in draft.tags)
        )
        self._guard.require_new(text, is_archived=True)
        self._guard.require_public(*tags)
        self.passages.append(replace(draft, text=text, tags=tags))

    def _writable(self, label: str) -> Block:
        block = self.block(label)
        if block.rule == "read_only":
            raise Forbidden(READ_ONLY)
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
        if after and self._guard.clearance.texts:
            self._guard.require_no_spill(block, after)
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
        """Return a text without hidden text, and without marks that the model copied.

        Hidden text stays if the earlier text had it, or if the user wrote it. Raises Invalid if
        the block's policy refuses it.
        """
        if is_plain(text):
            return text
        text = without_marks(text)
        if not has_hidden_text(text):
            return text
        known_texts = [before, *self.user_texts()]
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

        A note reports lines that occur twice after the write.
        """
        piece = changed_piece(block.value, text)
        if len(piece.strip()) < SHORTEST_LINE:
            return
        self._guard.require_new("\n".join(added_lines(block.value, piece)), block_text=block.value)
        repeated_lines = self._repeated(block.shown_label, block.value, text)
        if only_repeats(block.shown_label, block.value, text, repeated_lines):
            raise Invalid(
                f"Nothing was saved: this {repeated_lines[0].describe()}. "
                "Change that line, or leave it."
            )
        self._note_repeated(repeated_lines, call_id)

    def _repeated(self, label: str, before: str, after: str) -> list[KnownLine]:
        others = {name: other.value for name, other in self._current.items() if name != label}
        return repeated(label, before, after, others)

    def _note_repeated(self, repeated_lines: Iterable[KnownLine], call_id: str) -> None:
        for line in islice(repeated_lines, _NOTED_LINES):
            self._note(call_id, f"What you wrote {line.describe()}. Keep it in one place.")

    def _note(self, call_id: str, note: str) -> None:
        notes = self.notes.setdefault(call_id, [])
        if note not in notes:
            notes.append(note)


def _shortened(reasoning: str) -> str:
    """Return the reasoning as it is stored.

    Raises Invalid if it cannot be stored.
    """
    require_storable(reasoning, subject="A reasoning")
    # Owners base decisions on the reasoning, so it may have no hidden characters.
    if not is_plain(reasoning):
        reasoning = without_hidden_text(without_marks(reasoning))
    if len(reasoning) <= LONGEST_REASON:
        return reasoning
    return f"{reasoning[: LONGEST_REASON - 1]}…"


def _require_no_skill(label: str) -> str:
    """Return the label. Raises Forbidden for a skill's, which agents can only propose."""
    if is_skill(label):
        raise Forbidden(
            f'"{label}" is a skill, and not a memory block. Propose it with propose_skill.'
        )
    return label


def require_free(label: str, existing_labels: Container[str]) -> None:
    """Raise Conflict if the label is in use.

    Args:
        label: The label in its normal form.
        existing_labels: The labels that the agent sees.

    Raises:
        Conflict: The label is one of them.
    """
    if label in existing_labels:
        raise Conflict(f"Error: Memory block '{label}' already exists")


def require_storable(*texts: str | None, subject: str = "A memory block") -> None:
    """Raise Invalid for a text that the database cannot store.

    With this check only the call fails. Without it the whole step would fail when it is saved.

    Args:
        *texts: The texts; None is skipped.
        subject: The beginning of the error's sentence.
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

    Args:
        block: The block; it is not changed.
        old: The piece, in which look-alike signs and spaces may differ. Empty for an empty block.
        new: The new piece.
        everywhere: Whether to replace every piece that is equal word for word. If there is none, or
            without `everywhere`, the piece must occur once.

    Raises:
        Invalid: if the piece does not occur, occurs several times, or is the same as the new one.
        TooLong: if the new text is longer than the block's limit.
    """
    label = block.shown_label
    text = block.value
    if old == new:
        raise Invalid("The edit changes nothing: old_string and new_string are the same.")
    if not old and text:
        raise Invalid(
            f'Memory block "{label}" is not empty. Put the text to replace into old_string. To add '
            "a line, put the line before it into old_string, and both into new_string."
        )
    if everywhere and old in text:
        return block.replaced(old, with_line_breaks(new))
    match = search(text, old, new)
    if match.count > 1:
        advice = "Include more of the text around it, or set replace_all."
        if everywhere:
            advice = "Their signs differ from it, so copy each one word for word."
        raise Invalid(
            f'old_string occurs {match.count} times in memory block "{label}", in lines '
            f"{list(match.lines)}. {advice}"
        )
    if match.replacement is None and old:
        raise Invalid(
            f'old_string does not occur word for word in memory block "{label}". Read the block '
            f"and copy the text from it. It does not contain proposed changes.{hint(text, old)}"
        )
    if match.replacement:
        changed = match.replacement.apply(text)
    else:
        changed = with_line_breaks(new)
    block.require_fits(changed)
    return changed
