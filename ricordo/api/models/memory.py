"""Request and response models of memory: blocks of agents and of users, versions, proposals, decisions, and what an answer knew."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ricordo.agents.lifecycle import BlockSpec
from ricordo.api.models.base import (
    IN_ONE_PROJECT,
    MAX_COUNT,
    AuthorFields,
    From,
    HostedFields,
    Json,
    RequestModel,
    ResponseModel,
    Tags,
    Timestamp,
    VersionId,
)
from ricordo.domain.block import DEFAULT_LIMIT, Block, Policy
from ricordo.domain.scope import ActorKind
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.memory.blame import Blame
from ricordo.memory.merge import PieceKind, by_words, unified
from ricordo.memory.schemas import require_schema, starting_settings
from ricordo.memory.sections import starting_text

_MOST_AT_ONCE = 500
# Characters of one line in an answer about lines.
LONGEST_LINE = 10_000
_SHORT, _LONG = 255, 10_000
Reason = Annotated[str | None, Field(max_length=_LONG, description="Why, as its history will say.")]


class BlockUpdate(RequestModel):
    """What changes of a block. A field that is left out stays."""

    ignored: ClassVar = IN_ONE_PROJECT | dict.fromkeys(
        ("name", "template_name", "is_template", "preserve_on_migration"), "There are no templates."
    )

    label: str | None = None
    value: str | None = None
    description: str | None = None
    limit: int | None = Field(None, ge=0, le=MAX_COUNT)
    read_only: bool | None = None
    hidden: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: Tags | None = None
    policy: Policy | None = Field(None, description="What becomes of an agent's edit.")
    shared: bool | None = Field(
        None, description="Edited in place in conversations about users too, for everybody."
    )


class BlockRequest(BlockUpdate):
    """A block to create."""

    label: str
    value: str
    limit: int = Field(DEFAULT_LIMIT, ge=0, le=MAX_COUNT)
    read_only: bool = False
    policy: Policy | None = Field(
        None,
        description="What becomes of an agent's edit; left out: `direct`, of shared ones `guarded`.",
    )
    schema_ref: str | None = Field(
        None, max_length=_SHORT, description="The block schema that it follows and begins with."
    )

    @model_validator(mode="before")
    @classmethod
    def _begin_with_schema(cls, sent: Any) -> Any:
        has_schema = isinstance(sent, dict) and sent.get("schema_ref")
        return {"value": "", **sent} if has_schema else sent

    def spec(self, data_dir: Path) -> BlockSpec:
        """Return the block to create. Raises Invalid for a schema that is not in the data folder."""
        given = {name: value for name, value in self if value is not None}
        if self.schema_ref is not None:
            schema = require_schema(self.schema_ref, data_dir)
            sent = {name: value for name, value in given.items() if name in self.model_fields_set}
            given = {
                **starting_settings(schema),
                **sent,
                "value": self.value or starting_text(schema),
            }
        return BlockSpec(**{**given, "tags": tuple(self.tags or ())})


class BlockResponse(HostedFields, AuthorFields):
    """A memory block, by the label that agents know it by."""

    id: str
    label: Annotated[str, From("shown_label")]
    value: str
    limit: int
    description: str | None
    metadata: Json
    read_only: Annotated[bool, From("is_read_only")]
    policy: Annotated[Policy, From("rule")]
    shared: bool
    hidden: bool
    tags: list[str]
    schema_ref: str | None
    is_template: bool = False
    template_name: str | None = None
    preserve_on_migration: bool | None = None
    version: Annotated[VersionId | None, From("head")]
    # Of an edit that was not applied: the proposal that waits for the owner.
    proposal_id: str | None = None
    # In a list: the text is longer, and ends with a line that says where all of it is.
    is_cut: bool


BlockUpdate.take_back(BlockResponse)


class BlockSettings(RequestModel):
    """A user's block beside its text. A field that is left out stays; null takes it back."""

    title: str | None = Field(None, max_length=_SHORT)
    description: str | None = Field(None, max_length=_LONG)
    limit: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="How many characters it may hold."
    )
    policy: Policy | None = Field(None, description="What becomes of an agent's edit.")
    schema_ref: str | None = Field(
        None, max_length=_SHORT, description="The block schema that it follows."
    )
    agent_id: str | None = Field(
        None, max_length=_SHORT, description="The only agent that sees it."
    )
    course: str | None = Field(
        None, max_length=_SHORT, description="The only course in which it is seen."
    )
    metadata: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        sent = [name for name in BlockSettings.model_fields if name in self.model_fields_set]
        return {
            name: value
            for name in sent
            if (value := getattr(self, name)) is not None or name in _CLEARED
        }


_CLEARED = ("title", "description", "schema_ref", "agent_id", "course")


class PutBlockRequest(BlockSettings):
    """A block's whole text, and what else of it changes."""

    body: str
    message: Reason = None
    version: str | None = Field(
        None,
        max_length=40,
        description="The version it was edited from: what others wrote since is merged by lines.",
    )


class UserBlockUpdate(BlockSettings):
    """What changes of a block beside its text; another `label` renames it."""

    label: str | None = None
    message: Reason = None


class RestoreRequest(RequestModel):
    """Which version to go back to: the id from the history, or its first seven digits or more."""

    sha: str = Field(min_length=7, max_length=40)
    message: Reason = None


class ProposalRequest(RequestModel):
    """A change to propose: the current piece of text, the one to replace it, and why."""

    old_string: str = Field(
        description="What is there now, word for word. Empty: the new text is added at the end."
    )
    new_string: str
    reasoning: str = Field(max_length=_LONG)
    confidence: float | None = Field(None, ge=0, le=1)
    replace_all: bool = False
    agent_id: str | None = Field(
        None, min_length=1, max_length=_SHORT, description="Any string that names the author."
    )


class ApproveRequest(RequestModel):
    """A decision for a proposal; with `body` the owner's own text takes the place of what was proposed."""

    body: str | None = None


class RejectRequest(RequestModel):
    """A decision against a proposal."""

    reason: str | None = Field(None, max_length=_LONG)


class BulkDecisionRequest(RejectRequest):
    """Which proposals are meant: those with these ids, or all that wait."""

    ids: list[str] | None = Field(None, min_length=1, max_length=_MOST_AT_ONCE)
    all: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if bool(self.ids) == self.all:
            raise ValueError('say which proposals: either "ids" or "all": true')
        return self


class UserBlockResponse(ResponseModel):
    """A block of a user's memory. `version` is the id of the version that gave it its text; `pending` counts open proposals.

    `seen_as` is the label that agents know it by, where it is not its own.
    """

    id: str
    label: str
    title: str | None
    body: Annotated[str, From("value")]
    schema_ref: str | None
    version: Annotated[VersionId | None, From("head")]
    updated_at: Timestamp
    pending: int
    description: str | None
    limit: int
    policy: Annotated[Policy, From("rule")]
    agent_id: str | None
    seen_as: str | None
    course: str | None
    metadata: Json
    is_untrusted: bool
    updated_by: str | None
    created_at: Timestamp
    # Of an edit that was not applied: the proposal that waits for the owner.
    proposal_id: str | None = None


BlockSettings.take_back(UserBlockResponse)


class VersionResponse(ResponseModel):
    """One version of one block; `sha` is the id of a git commit. `is_deleted` where the block went with it."""

    sha: Annotated[VersionId, From("id")]
    message: Annotated[str, From("reason")]
    author: Annotated[str, From("author.shown_name")]
    author_id: Annotated[str, From("author.id")]
    author_kind: Annotated[ActorKind, From("author.kind")]
    timestamp: Annotated[Timestamp, From("created_at")]
    label: str
    old_label: str | None
    number: int
    parents: Annotated[list[str], From(convert=lambda ids: [id.hex() for id in ids])]
    is_deleted: Annotated[bool, From("blob", lambda blob: blob is None)]
    is_untrusted: bool
    approved_by: str | None
    proposal_id: str | None
    run_id: str | None
    step_id: str | None


class VersionTextResponse(VersionResponse):
    """A version with the text it gave the block; null where it deleted the block."""

    body: str | None


class ProposalResponse(ResponseModel):
    """A change that waits for the owner, or what became of it. `diff` is unified, from the text it was made from.

    `is_repeated` is true where it waited already when it was proposed again.
    """

    id: str
    label: str
    new_label: str | None
    status: ProposalStatus
    agent_id: Annotated[str, From("author.id")]
    author: Annotated[str, From("author.shown_name")]
    author_kind: Annotated[ActorKind, From("author.kind")]
    reasoning: str
    confidence: float | None
    description: str | None
    base: VersionId | None
    base_body: Annotated[str | None, From("base_value")]
    body: Annotated[str | None, From("value")]
    diff: str
    is_untrusted: bool
    run_id: str | None
    step_id: str | None
    created_at: Timestamp
    expires_at: Timestamp | None
    resolved_at: Timestamp | None
    resolved_by: str | None
    note: str | None
    version: Annotated[VersionId | None, From("result")]
    superseded_by: str | None
    is_repeated: bool

    @classmethod
    def of(cls, proposal: Any, /, **_fields: Any) -> Json:
        """Return a proposal with what differs between the texts before and after it."""
        texts = proposal.base_value or "", proposal.value or ""
        return super().of(
            proposal, diff=unified(*texts, proposal.label, proposal.new_label or proposal.label)
        )


class DecidedResponse(ResponseModel):
    """What became of a proposal; `version` and `block` are null where nothing was written or the block is gone."""

    id: str
    status: ProposalStatus
    version: Annotated[VersionId | None, From("result")]
    proposal: ProposalResponse
    block: UserBlockResponse | None

    @classmethod
    def from_proposal(cls, proposal: Proposal, block: Block | None, pending: int) -> Json:
        shown = block and UserBlockResponse.of(block, pending=pending)
        return cls.of(proposal, proposal=proposal, block=shown)


class OutcomeResponse(ResponseModel):
    """What became of one of many proposals; with the status `failed`, or `conflicted`, the detail says why and what to do."""

    id: str
    status: ProposalStatus | Literal["failed"]
    detail: str | None
    version: Annotated[VersionId | None, From("result")]


class UndoneBlockResponse(ResponseModel):
    """What became of one block that a run had changed."""

    label: str
    status: Annotated[Literal["undone", "unchanged", "conflicted"], From("outcome")]
    detail: Annotated[str | None, From("note")]
    version: VersionId | None

    @classmethod
    def of(cls, undone: Any, /, **_fields: Any) -> Json:
        """Return what became of it."""
        block = undone.block
        return super().of(
            undone, label=block.label if block else undone.label, version=block and block.head
        )


class UndoneResponse(ResponseModel):
    """What undoing a run did: block by block, and the ids of its proposals that waited and are rejected now."""

    run_id: str
    blocks: list[UndoneBlockResponse]
    withdrawn: Annotated[list[str], From(convert=lambda proposals: [one.id for one in proposals])]


class ContextBlockResponse(ResponseModel):
    """A block in a step's context: at which version, and under which label; both are null where it was erased."""

    block_id: str
    sha: str
    label: str | None
    version: VersionResponse | None

    @classmethod
    def of(cls, version: Any, /, **fields: Any) -> Json:
        """Return the block at this version; None where it was erased."""
        return super().of(version, label=version and version.label, version=version, **fields)


class ContextPassageResponse(ResponseModel):
    """A passage in a step's context."""

    id: str
    archive_id: str
    text: str
    tags: list[str]
    created_at: Timestamp


class LineageResponse(ResponseModel):
    """What of memory was in the context of an answer, what its step changed, and what it proposed.

    A message that no step wrote, as what a user said, had none of it.
    `forgotten_passage_ids` were there too and were deleted since.
    """

    message_id: str
    run_id: str | None
    step_id: str | None
    is_untrusted: bool
    blocks: list[ContextBlockResponse]
    passages: list[ContextPassageResponse]
    forgotten_passage_ids: list[str]
    changed: list[VersionResponse]
    proposed: list[ProposalResponse]


class BlamedLineResponse(ResponseModel):
    """One line of a block, with the id of the version that wrote it, which is among the answer's `versions`.

    A long line `is_cut`: `versions/{version}` has the whole text. `or_earlier` where the history is longer than was looked at.
    """

    number: int
    text: str
    is_cut: bool
    version: str
    or_earlier: bool

    @classmethod
    def of(cls, line: Any, /, **_fields: Any) -> Json:
        """Return the line."""
        text = line.text[:LONGEST_LINE]
        return super().of(
            line, text=text, is_cut=len(text) < len(line.text), version=line.version.id.hex()
        )


class BlameResponse(ResponseModel):
    """Lines of a block and the versions that wrote them, each once.

    `count` is the number of all lines. Where `next` is a number there are more: ask for those `after` it.
    """

    count: int
    lines: list[BlamedLineResponse]
    versions: list[VersionResponse]
    next: int | None

    @classmethod
    def from_blame(cls, blame: Blame, after: int, most: int) -> Json:
        """Return up to so many lines after this number."""
        end = min(blame.count, after + most)
        shown = blame.lines(after, max(after, end))
        brought = {line.version.id: line.version for line in shown}
        ended = end if end < blame.count else None
        return cls.of(
            None, count=blame.count, lines=shown, versions=list(brought.values()), next=ended
        )


class DiffPieceResponse(ResponseModel):
    """A stretch of text that both versions have, or only the newer, or only the older."""

    kind: PieceKind
    text: str


class ComparisonResponse(ResponseModel):
    """Two versions compared, line by line and word by word; a side is null where the block was not there.

    Where `next` is a number there are more lines of `unified`, or pieces of `words`: ask for those `after` it.
    """

    from_version: str | None
    to_version: str | None
    unified: str
    words: list[DiffPieceResponse]
    next: int | None

    @classmethod
    def from_texts(
        cls,
        older: tuple[str | None, str],
        newer: tuple[str | None, str],
        label: str,
        *,
        after: int = 0,
        most: int,
    ) -> Json:
        """Compare two versions, each given as its hex id (None where the block was not there) and its text."""
        names = [f"{label} {id[:7] if id else '(nothing)'}" for id, _ in (older, newer)]
        lines = unified(older[1], newer[1], *names).split("\n")
        pieces = by_words(older[1], newer[1])
        end = after + most
        # The last line is what stands behind the last line break: nothing.
        count = max(len(lines) - 1, len(pieces))
        shown = lines[after : min(end, len(lines) - 1)]
        return cls.of(
            None,
            from_version=older[0],
            to_version=newer[0],
            unified="".join(f"{line}\n" for line in shown),
            words=pieces[after:end],
            next=end if end < count else None,
        )
