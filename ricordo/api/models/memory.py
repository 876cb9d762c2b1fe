"""Models of memory: blocks, versions, proposals, decisions, and the memory behind an answer."""

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
    RequestModel,
    ResponseModel,
    Tags,
    Timestamp,
    VersionId,
)
from ricordo.domain.block import DEFAULT_LIMIT, Block, Policy
from ricordo.domain.scope import ActorKind
from ricordo.domain.text import Json
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.memory.blame import Blame
from ricordo.memory.schemas import require_schema, starting_settings
from ricordo.memory.sections import starting_text
from ricordo.memory.text import PieceKind, by_words, unified
from ricordo.storage.blocks import OPTIONAL_SETTINGS

_MOST_AT_ONCE = 500
# Characters of one line in an answer about lines.
LONGEST_LINE = 10_000
_SHORT = 255
_LONG = 10_000
Reason = Annotated[
    str | None, Field(max_length=_LONG, description="The reason, shown in the history.")
]


class BlockUpdate(RequestModel):
    """The changes of a block. An omitted field keeps its value."""

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
    policy: Policy | None = Field(None, description="The policy for agents' edits.")
    shared: bool | None = Field(
        None,
        description="In conversations about users, edit the shared block for everybody instead of the "
        "user's copy.",
    )


class BlockRequest(BlockUpdate):
    """A block to create."""

    label: str
    value: str
    limit: int = Field(DEFAULT_LIMIT, ge=0, le=MAX_COUNT)
    read_only: bool = False
    policy: Policy | None = Field(
        None,
        description="The policy for agents' edits. By default `direct`, for shared blocks `guarded`.",
    )
    schema_ref: str | None = Field(
        None,
        max_length=_SHORT,
        description="The block schema; the new block starts with its fields.",
    )

    @model_validator(mode="before")
    @classmethod
    def _begin_with_schema(cls, body: Any) -> Any:
        if isinstance(body, dict) and body.get("schema_ref"):
            return {"value": "", **body}
        return body

    def spec(self, data_dir: Path) -> BlockSpec:
        """Return the block to create.

        Args:
            data_dir: The data folder, which has the block schemas.

        Raises:
            Invalid: There is no schema with this name, or it is faulty.
            Unavailable: The schema cannot be read.
        """
        fields = {name: field for name, field in self if field is not None}
        if self.schema_ref is not None:
            schema = require_schema(self.schema_ref, data_dir)
            explicit = {name: fields[name] for name in fields if name in self.model_fields_set}
            fields = {
                **starting_settings(schema),
                **explicit,
                "value": self.value or starting_text(schema),
            }
        return BlockSpec(**{**fields, "tags": tuple(self.tags or ())})


class BlockResponse(HostedFields, AuthorFields):
    """A memory block, under the label that agents use."""

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
    # The id of the waiting proposal, if the edit was not applied.
    proposal_id: str | None = None
    # True if a list has cut the text. Then the last line has the address of the whole text.
    is_cut: bool


BlockUpdate.take_back(BlockResponse)


class BlockSettings(RequestModel):
    """The settings of a user's block.

    An omitted field keeps its value. null removes the title, the description, the schema, the agent
    or the course, and keeps the other settings.
    """

    title: str | None = Field(None, max_length=_SHORT)
    description: str | None = Field(None, max_length=_LONG)
    limit: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="The most characters of the block."
    )
    policy: Policy | None = Field(None, description="The policy for agents' edits.")
    schema_ref: str | None = Field(None, max_length=_SHORT, description="The schema of the block.")
    agent_id: str | None = Field(
        None, max_length=_SHORT, description="The only agent that sees the block."
    )
    course: str | None = Field(
        None, max_length=_SHORT, description="The only course whose agents see the block."
    )
    metadata: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        names = [name for name in BlockSettings.model_fields if name in self.model_fields_set]
        return {
            name: setting
            for name in names
            if (setting := getattr(self, name)) is not None or name in OPTIONAL_SETTINGS
        }


class PutBlockRequest(BlockSettings):
    """The whole text of a block, and changes of its settings."""

    body: str
    message: Reason = None
    version: str | None = Field(
        None,
        max_length=40,
        description="The version from which the text was edited; later changes are merged by lines.",
    )


class UserBlockUpdate(BlockSettings):
    """The changes of a block's settings; another `label` renames it."""

    label: str | None = None
    message: Reason = None
    removes_hidden_text: bool = Field(
        False, description="Remove invisible characters from the block's text."
    )


class RestoreRequest(RequestModel):
    """The version to restore: its id in the history, or its first seven digits or more."""

    sha: str = Field(min_length=7, max_length=40)
    message: Reason = None


class ProposalRequest(RequestModel):
    """A proposed change: the current piece of text, its replacement and the reason."""

    old_string: str = Field(
        description="The current text, word for word. Empty for a new or an empty block."
    )
    new_string: str
    reasoning: str = Field(max_length=_LONG)
    confidence: float | None = Field(None, ge=0, le=1)
    replace_all: bool = False
    agent_id: str | None = Field(
        None, min_length=1, max_length=_SHORT, description="Any string that names the author."
    )


class ApproveRequest(RequestModel):
    """The approval of a proposal.

    `body` is a text of the owner that replaces the proposed text.
    """

    body: str | None = None
    keeps_hidden_text: bool = Field(
        False,
        description="Keep invisible characters. By default they are removed.",
    )


class RejectRequest(RequestModel):
    """The rejection of a proposal."""

    reason: str | None = Field(None, max_length=_LONG)


class BulkDecisionRequest(RejectRequest):
    """The proposals to decide, by their ids, or with `all` the first hundred waiting ones."""

    ids: list[str] | None = Field(None, min_length=1, max_length=_MOST_AT_ONCE)
    all: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if bool(self.ids) == self.all:
            raise ValueError('name the proposals: send either "ids" or "all": true')
        return self


class UserBlockResponse(ResponseModel):
    """A block of a user's memory.

    `version` is the id of the version that wrote its text; `pending` counts waiting proposals.
    `seen_as` is the label that agents use, if it differs from `label`.
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
    has_hidden_text: bool
    updated_by: str | None
    created_at: Timestamp
    # The id of the waiting proposal, if the edit was not applied.
    proposal_id: str | None = None


BlockSettings.take_back(UserBlockResponse)


class VersionResponse(ResponseModel):
    """One version of one block.

    `sha` is the id of a git commit.

    `is_deleted` is true if this version deleted the block.
    """

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
    """A version with the block's text; null if it deleted the block."""

    body: str | None


class ProposalResponse(ResponseModel):
    """A change that waits for the owner or was decided.

    `diff` is a unified diff that starts at the text from which the proposal was made. `is_repeated`
    is true if the same proposal was already waiting.
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
    has_hidden_text: bool
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
        """Return a proposal with the difference between the texts before and after it.

        Args:
            proposal: The stored proposal (a `Proposal`), with its text and that of its base.
            **_fields: Ignored; all fields come from the proposal.
        """
        texts = proposal.base_value or "", proposal.value or ""
        return super().of(
            proposal, diff=unified(*texts, proposal.label, proposal.new_label or proposal.label)
        )


class DecidedResponse(ResponseModel):
    """The result of a decided proposal.

    `version` is null if nothing was written, `block` if it is deleted.
    """

    id: str
    status: ProposalStatus
    version: Annotated[VersionId | None, From("result")]
    proposal: ProposalResponse
    block: UserBlockResponse | None

    @classmethod
    def from_proposal(cls, proposal: Proposal, block: Block | None, pending: int) -> Json:
        """Return the result of a decision.

        Args:
            proposal: The decided proposal.
            block: The block after the decision; None if it does not exist.
            pending: The number of the block's proposals that still wait.
        """
        block_response = block and UserBlockResponse.of(block, pending=pending)
        return cls.of(proposal, proposal=proposal, block=block_response)


class OutcomeResponse(ResponseModel):
    """The result of one of many proposals.

    With the status `failed` or `conflicted`, `detail` gives the reason and advice.
    """

    id: str
    status: ProposalStatus | Literal["failed"]
    detail: str | None
    version: Annotated[VersionId | None, From("result")]


class UndoneBlockResponse(ResponseModel):
    """The result of undoing a run, for one block."""

    label: str
    status: Annotated[Literal["undone", "unchanged", "conflicted"], From("outcome")]
    detail: Annotated[str | None, From("note")]
    version: VersionId | None

    @classmethod
    def of(cls, undone: Any, /, **_fields: Any) -> Json:
        """Return the result for the block.

        Args:
            undone: The result for one block. If its block is None, its label is that of the run's
                change.
            **_fields: Ignored; all fields come from the result.
        """
        block = undone.block
        return super().of(
            undone, label=block.label if block else undone.label, version=block and block.head
        )


class UndoneResponse(ResponseModel):
    """The result of undoing a run.

    It lists the changed blocks, and the ids of the run's proposals that were waiting and are now
    rejected.
    """

    run_id: str
    blocks: list[UndoneBlockResponse]
    withdrawn: Annotated[
        list[str], From(convert=lambda proposals: [proposal.id for proposal in proposals])
    ]


class ContextBlockResponse(ResponseModel):
    """A block in a step's context, with its version and label.

    Both are null if the block was erased.
    """

    block_id: str
    sha: str
    label: str | None
    version: VersionResponse | None

    @classmethod
    def of(cls, version: Any, /, **fields: Any) -> Json:
        """Return the block at this version, or without one if it was erased.

        Args:
            version: The version that was in the prompt; None if it was erased.
            **fields: The ids that are known even then: `block_id` and `sha`.
        """
        return super().of(version, label=version and version.label, version=version, **fields)


class ContextPassageResponse(ResponseModel):
    """A passage in a step's context."""

    id: str
    archive_id: str
    text: str
    tags: list[str]
    created_at: Timestamp


class LineageResponse(ResponseModel):
    """The memory in an answer's context, and the changes and proposals of its step.

    For a message without a step, such as a user's, all lists are empty. `forgotten_passage_ids` are
    passages of the context that were deleted later.
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
    """One line of a block, with the id of the version that wrote it.

    The answer's `versions` contain that version. If a long line was cut, `is_cut` is true, and
    `versions/{version}` has the whole text. `or_earlier` is true if only a part of the history was
    searched and the line may be older.
    """

    number: int
    text: str
    is_cut: bool
    version: str
    or_earlier: bool

    @classmethod
    def of(cls, line: Any, /, **_fields: Any) -> Json:
        """Return the line.

        Args:
            line: One line with its version. Characters beyond `LONGEST_LINE` are cut.
            **_fields: Ignored; all fields come from the line.
        """
        text = line.text[:LONGEST_LINE]
        return super().of(
            line, text=text, is_cut=len(text) < len(line.text), version=line.version.id.hex()
        )


class BlameResponse(ResponseModel):
    """Lines of a block and the versions that wrote them, each once.

    `count` is the number of all lines. If `next` is a number there are more lines; pass it as
    `after`.
    """

    count: int
    lines: list[BlamedLineResponse]
    versions: list[VersionResponse]
    next: int | None

    @classmethod
    def from_blame(cls, blame: Blame, after: int, limit: int) -> Json:
        """Return up to `limit` lines after this number.

        Args:
            blame: The finished blame of the block.
            after: The number of the line before the first; 0 for the beginning.
            limit: The most lines to return.
        """
        end = min(blame.count, after + limit)
        lines = blame.lines(after, max(after, end))
        versions = {line.version.id: line.version for line in lines}
        return cls.of(
            None,
            count=blame.count,
            lines=lines,
            versions=list(versions.values()),
            next=end if end < blame.count else None,
        )


class DiffPieceResponse(ResponseModel):
    """A piece of text: in both versions, only in the newer one, or only in the older one."""

    kind: PieceKind
    text: str


class ComparisonResponse(ResponseModel):
    """Two versions compared, by lines and by words.

    A side is null if the block does not exist there.

    If `next` is a number, `unified` has more lines or `words` has more pieces; pass it as `after`.
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
        limit: int,
    ) -> Json:
        """Compare two versions of a block.

        Args:
            older: The hex id and the text of the older version. The id is None, and the text "", if
                the block did not exist.
            newer: The same of the newer version.
            label: The label of the block, for the header of the unified diff.
            after: The number of lines, and of pieces, to leave out at the beginning.
            limit: The most lines, and the most pieces, to return.
        """
        names = [f"{label} {id[:7] if id else '(nothing)'}" for id, _ in (older, newer)]
        lines = unified(older[1], newer[1], *names).split("\n")
        pieces = by_words(older[1], newer[1])
        end = after + limit
        # Drop the empty line after the last line break.
        count = max(len(lines) - 1, len(pieces))
        page = lines[after : min(end, len(lines) - 1)]
        return cls.of(
            None,
            from_version=older[0],
            to_version=newer[0],
            unified="".join(f"{line}\n" for line in page),
            words=pieces[after:end],
            next=end if end < count else None,
        )
