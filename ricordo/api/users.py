"""Routes of a user's memory: blocks by label, their versions and formats.

A block is read and written as JSON or in a format of a plugin; Markdown and TOML are built in. A
label may contain slashes. So routes with a fixed part after the label are matched first. No part of
a label can equal such a part.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import Depends, Query, Request, Response

from ricordo.api.answers import AnswerWithHeaders, answer
from ricordo.api.blocks import (
    At,
    Before,
    From,
    Limit,
    Lines,
    To,
    comparison_of,
    lines_of,
    one_of,
    page_of,
)
from ricordo.api.bodies import decode, validated
from ricordo.api.call import RequestContext, note, with_outcome
from ricordo.api.errors import text_conflict
from ricordo.api.models.base import NoteResponse, TextConflict
from ricordo.api.models.entity_tags import IfMatch, IfNoneMatch, require_match, tagged
from ricordo.api.models.memory import (
    BlameResponse,
    ComparisonResponse,
    ProposalResponse,
    PutBlockRequest,
    RestoreRequest,
    UserBlockResponse,
    UserBlockUpdate,
    VersionResponse,
    VersionTextResponse,
)
from ricordo.api.routing import Routes
from ricordo.domain.block import Block
from ricordo.domain.clock import parse_date
from ricordo.domain.hidden_text import without_hidden_text
from ricordo.domain.redaction import redact
from ricordo.domain.text import Json, normal_text
from ricordo.domain.version import BlockVersion
from ricordo.errors import Invalid, NotFound, Stale, Unsupported
from ricordo.memory import submission, user_memory
from ricordo.memory.schemas import find_schema, read_block, require_schema, starting_settings
from ricordo.memory.sections import starting_text
from ricordo.memory.submission import SubmissionOutcome
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.offload import offload
from ricordo.storage import history, proposals, versions
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/blocks", tags=["users' memory"], scope="memory")
_ONE = "/{label:path}"
_HOW = (
    'Write a text that keeps what both sides want, and send it with the "version" that the block '
    "has now."
)
_WAITS_FOR_METADATA = (
    "The owner has to approve this new block, and a proposal has no metadata. Leave `metadata` out, "
    "and set it after the approval."
)
_TWO_PROPOSALS = (
    "The owner has to approve both the text without hidden characters and the new label. Send "
    "`removes_hidden_text` and `label` in two requests."
)
_TEXT = {"schema": {"type": "string"}}
PUT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PutBlockRequest.model_json_schema()},
            "text/markdown": _TEXT,
            "application/toml": _TEXT,
        },
    }
}
PROPOSED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": ProposalResponse,
        "description": "The block does not exist; its creation waits for its owner",
    }
}
AsOf = Annotated[
    str | None,
    Query(
        max_length=40,
        description="Return the blocks as of this time, or this day's end in UTC, such as 2026-05-01.",
    ),
]
Format = Annotated[
    str,
    Query(max_length=100, description="The format: json, markdown, toml, or that of a plugin."),
]
SentMessage = Annotated[
    str | None,
    Query(
        max_length=10_000,
        description="The reason, shown in the history. In JSON, send it in the body instead.",
    ),
]
Message = Annotated[
    str | None, Query(max_length=10_000, description="The reason, shown in the history.")
]


async def read_sent(
    context: RequestContext, request: Request, user_id: str, label: str, message: SentMessage = None
) -> PutBlockRequest:
    """Return the sent block, in any format.

    Args:
        context: The caller's context.
        request: The request. Its content type names the format.
        user_id: The id or name of the user. The user may not exist yet.
        label: The label in the path, which the text may not contradict.
        message: The reason of the change, if the body is not JSON. JSON has a field for it.

    Raises:
        Unsupported: No plugin offers this format.
        Invalid: The text is not UTF-8, or names another block or an unknown schema. Or it breaks
            the rules of its format, and the error names the lines.
        RequestValidationError: The body is no JSON although its content type says so, or a field
            is wrong.
        HTTPException: The JSON is nested too deeply or is not UTF-8 (400).
        Unavailable: The block's schema cannot be read.
    """
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    content = await request.body()
    if media_type == "application/json" or media_type.endswith("+json"):
        fields = await offload(partial(decode, content), len(content))
        return await _checked(await _with_defaults(context, user_id, label, fields), len(content))
    formats = context.runtime.plugins.block_formats()
    formats_by_type = {block_format.media_type: block_format for block_format in formats}
    format = formats_by_type.get(media_type)
    if format is None:
        choices = " or ".join(["application/json", *formats_by_type])
        raise Unsupported(f"A block cannot be sent as {media_type[:80]}. Use {choices}.")
    try:
        text = normal_text(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Invalid("The text is not UTF-8. Save it as UTF-8.") from error
    block = await context.store.read(lambda tx: _find(tx, context, user_id, label))
    schema_ref = None
    if block:
        schema_ref = block.schema_ref
    read = partial(read_block, format.read, text, schema_ref, context.runtime.settings.data_dir)
    parsed = await offload(read, len(content))
    if parsed.label not in (None, label):
        raise Invalid(
            f'The text names the block "{parsed.label}", but it was sent to "{label}". Correct one '
            "of them."
        )
    fields = {"body": parsed.text}
    if message:
        fields["message"] = message
    if parsed.schema_ref not in (None, schema_ref):
        fields["schema_ref"] = parsed.schema_ref
    return await _checked(await _with_defaults(context, user_id, label, fields), len(content))


Sent = Annotated[PutBlockRequest, Depends(read_sent)]


@router.get("", response_model=list[UserBlockResponse])
@router.get("/", response_model=list[UserBlockResponse], include_in_schema=False)
def list_blocks(
    tx: Transaction, context: RequestContext, user_id: str, as_of: AsOf = None
) -> AnswerWithHeaders:
    """List the user's blocks by label, each with the number of its waiting proposals.

    With `as_of` the list shows the blocks of that time, including blocks that were deleted since.
    Without it, the header `x-waiting` has the number of all waiting proposals, including proposals
    of new blocks.
    """
    memory = user_memory.open_memory(tx, context.scope, user_id)
    if as_of is not None:
        moment = parse_date(as_of, UTC, name="as_of", end=True)
        past = user_memory.listed_at(tx, memory, moment)
        return AnswerWithHeaders([UserBlockResponse.of(block, pending=0) for block in past], {})
    waiting = proposals.waiting_counts(tx, memory.chain.id)
    rows = user_memory.listed(tx, memory)
    blocks = [UserBlockResponse.of(block, pending=waiting.get(block.label, 0)) for block in rows]
    return AnswerWithHeaders(blocks, {"x-waiting": str(sum(waiting.values()))})


@router.get(_ONE + "/history", response_model=list[VersionResponse])
def list_versions(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    label: str,
    limit: Limit = 50,
    before: Before = None,
) -> Sequence[BlockVersion]:
    """List the block's versions, newest first, even after it was deleted."""
    return page_of(tx, _chain_id(tx, context, user_id), label, limit, before)


@router.get(_ONE + "/versions/{sha}", response_model=VersionTextResponse)
def retrieve_version(
    tx: Transaction, context: RequestContext, user_id: str, label: str, sha: str
) -> Json:
    """Return the block at a version of the user's memory.

    The version is named by its id, or its first seven digits or more.
    """
    return one_of(tx, _chain_id(tx, context, user_id), label, sha)


@router.get(_ONE + "/blame", response_model=BlameResponse)
async def list_lines(
    context: RequestContext, user_id: str, label: str, part: Lines, at: At = None
) -> Json:
    """List the block's lines, each with the version that wrote it.

    A long block has several pages.
    """
    return await lines_of(context, lambda tx: (_chain_id(tx, context, user_id), label), part, at)


@router.get(_ONE + "/compare", response_model=ComparisonResponse)
async def compare(
    context: RequestContext,
    user_id: str,
    label: str,
    part: Lines,
    from_: From = None,
    to: To = None,
) -> Json:
    """Compare two versions of the block: as a unified diff, and by words.

    A long comparison has several pages.
    """
    return await comparison_of(
        context, lambda tx: (_chain_id(tx, context, user_id), label), part, older=from_, newer=to
    )


@router.post(_ONE + "/restore", response_model=UserBlockResponse, responses=PROPOSED)
def restore(
    tx: Transaction, context: RequestContext, user_id: str, label: str, body: RestoreRequest
) -> Response:
    """Make the text of an earlier version the block's next version, even after a deletion."""
    memory = user_memory.open_memory(tx, context.scope, user_id)
    edit = context.submission(memory.user, body.message)
    return _submitted(tx, submission.restore(tx, memory, label, body.sha, edit))


@router.get(_ONE, response_model=UserBlockResponse)
async def retrieve(
    context: RequestContext,
    user_id: str,
    label: str,
    format: Format = "json",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return one block with its ETag, as JSON or in a format such as Markdown."""

    def read(tx: Transaction) -> tuple[Block, Response]:
        block = user_memory.require(tx, user_memory.open_memory(tx, context.scope, user_id), label)
        return block, _shown(tx, block, if_none_match)

    block, response = await context.store.read(read)
    if format == "json":
        return response
    content, media_type = await show_as(context, block, format)
    return tagged(block, content.encode(), media_type, if_none_match)


@router.put(_ONE, response_model=UserBlockResponse, responses=PROPOSED, openapi_extra=PUT_BODY)
async def put(
    context: RequestContext,
    user_id: str,
    label: str,
    body: Sent,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Write a block's text, and create the user and the block if they are new.

    The text may also be sent as Markdown or TOML. With If-Match, nothing is written if the block
    was changed since it was read (412). With `version` in the body, later changes are merged by
    lines. If lines conflict, the write is refused with the texts (409).
    """

    def work(tx: Transaction) -> Response:
        memory = user_memory.open_memory(tx, context.scope, user_id, makes=True)
        _require(tx, memory, label, if_match, if_none_match)
        settings = body.settings()
        # Metadata, which cannot be set when a block is created, and settings that null resets.
        rest = {
            name: settings.pop(name)
            for name in list(settings)
            if settings[name] is None or name == "metadata"
        }
        options = PutOptions(message=body.message, expected=body.version, **settings)
        edit = context.submission(memory.user, body.message)
        outcome = submission.put(tx, memory, label, text=body.body, options=options, edit=edit)
        if outcome.block is None and rest.get("metadata"):
            raise Invalid(_WAITS_FOR_METADATA)
        if rest and outcome.block:
            changed = user_memory.change_settings(tx, memory, label, rest, edit.author)
            outcome = replace(outcome, block=changed)
        return _submitted(tx, outcome)

    try:
        return await context.store.write(work)
    except Stale as stale:
        return await _collision(context, user_id, label, body, stale)


@router.patch(_ONE, response_model=UserBlockResponse)
def modify(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    label: str,
    body: UserBlockUpdate,
    if_match: IfMatch = None,
) -> Response:
    """Change a block's settings, such as its policy; `label` renames it.

    `removes_hidden_text` removes invisible characters, which makes a new version. Omitted fields
    keep their values.
    """
    memory = user_memory.open_memory(tx, context.scope, user_id)
    _require(tx, memory, label, if_match)
    settings = body.settings()
    if "policy" in settings:
        settings["read_only"] = False
    ref = settings.get("schema_ref")
    if ref and ref != user_memory.require(tx, memory, label).schema_ref:
        require_schema(ref, context.runtime.settings.data_dir)
    edit = context.submission(memory.user, body.message)
    outcome = SubmissionOutcome(
        user_memory.change_settings(tx, memory, label, settings, edit.author)
    )
    if body.removes_hidden_text and outcome.block:
        text = without_hidden_text(outcome.block.value)
        outcome = submission.put(
            tx, memory, label, text=text, options=PutOptions(message=body.message), edit=edit
        )
    if body.label is not None:
        if outcome.proposal and body.label != label:
            raise Invalid(_TWO_PROPOSALS)
        outcome = submission.rename(tx, memory, label, body.label, edit)
    return _submitted(tx, outcome)


@router.delete(_ONE, response_model=NoteResponse)
def delete(
    tx: Transaction,
    context: RequestContext,
    user_id: str,
    label: str,
    message: Message = None,
    if_match: IfMatch = None,
) -> Response:
    """Delete a block.

    Its history stays, and any version can be restored.
    """
    memory = user_memory.open_memory(tx, context.scope, user_id)
    _require(tx, memory, label, if_match)
    block = user_memory.require(tx, memory, label)
    outcome = submission.remove(tx, block, context.submission(memory.user, message))
    message_text = f'Block "{label}" deleted. Its history stays.'
    if outcome.proposal:
        message_text = (
            f"Proposed as {outcome.proposal.id}: the block stays until its owner decides."
        )
    return with_outcome(answer(note(message_text)), outcome)


def waiting_for(tx: Transaction, block: Block | None) -> int:
    """Return the number of the block's waiting proposals.

    Args:
        tx: The transaction, or a read.
        block: The block; None if it does not exist (then 0).
    """
    if block:
        return proposals.waiting_counts(tx, block.chain_id).get(block.label, 0)
    return 0


def _shown(
    tx: Transaction,
    block: Block,
    if_none_match: str | None = None,
    proposal_id: str | None = None,
) -> Response:
    json = UserBlockResponse.of(block, pending=waiting_for(tx, block), proposal_id=proposal_id)
    return tagged(block, orjson.dumps(json), "application/json", if_none_match)


def _submitted(tx: Transaction, outcome: SubmissionOutcome) -> Response:
    """Return the block after an edit.

    If a proposed block does not exist yet, return the proposal (202).
    """
    if outcome.proposal:
        proposal_id = outcome.proposal.id
    else:
        proposal_id = None
    if outcome.block is None:
        return with_outcome(answer(ProposalResponse.of(outcome.proposal), 202), outcome)
    return with_outcome(_shown(tx, outcome.block, proposal_id=proposal_id), outcome)


def _chain_id(tx: Transaction, context: RequestContext, user_id: str) -> str:
    return user_memory.open_memory(tx, context.scope, user_id).chain.id


def _require(
    tx: Transaction,
    memory: UserMemory,
    label: str,
    if_match: str | None,
    if_none_match: str | None = None,
) -> None:
    if if_match is not None or if_none_match is not None:
        versions.lock(tx, memory.chain.id)
        require_match(user_memory.find(tx, memory, label), if_match, if_none_match)


async def _collision(
    context: RequestContext, user_id: str, label: str, body: PutBlockRequest, stale: Stale
) -> Response:
    """Return the conflict of a text that could not be merged, with the known texts."""

    def read(tx: Transaction) -> tuple[str | None, str | None]:
        memory = user_memory.open_memory(tx, context.scope, user_id)
        block = user_memory.find(tx, memory, label)
        current = block.value if block else None
        try:
            version = history.get(tx, memory.chain.id, body.version or "")
        except NotFound:
            return None, current
        return history.text_at(tx, memory.chain.id, label, version), current

    base, ours = await context.store.read(read)
    texts = {"base": base, "ours": ours, "theirs": redact(body.body).text}
    return text_conflict(str(stale), TextConflict.of(None, proposal_id=None, **texts, how=_HOW))


async def show_as(context: RequestContext, block: Block, format: str) -> tuple[str, str]:
    """Return the block in this format, and its media type.

    Args:
        context: The caller's context.
        block: The block.
        format: The name of a format, such as "markdown".

    Raises:
        Unsupported: No plugin offers the format.
        Invalid: The block's schema is faulty.
        Unavailable: The block's schema cannot be read.
    """
    formats = context.runtime.plugins.block_formats()
    for block_format in formats:
        if block_format.name == format:
            schema = await asyncio.to_thread(
                find_schema, block.schema_ref, context.runtime.settings.data_dir
            )
            text = await offload(
                partial(block_format.write, block.label, block.value, schema), len(block.value)
            )
            return text, f"{block_format.media_type}; charset=utf-8"
    choices = " or ".join(["json", *(block_format.name for block_format in formats)])
    raise Unsupported(f"This server cannot show a block as {format}. Use {choices}.")


async def _with_defaults(context: RequestContext, user_id: str, label: str, fields: Any) -> Any:
    """Add the headings, defaults and settings of its schema to a new block.

    Sent fields take precedence. Raises Invalid for an unknown schema, unless the block already has
    it.
    """
    if isinstance(fields, dict):
        ref = fields.get("schema_ref")
    else:
        ref = None
    if not isinstance(ref, str):
        return fields
    existing = await context.store.read(lambda tx: _find(tx, context, user_id, label))
    if existing is not None and existing.schema_ref == ref:
        return fields
    schema = await asyncio.to_thread(require_schema, ref, context.runtime.settings.data_dir)
    if existing is not None:
        return fields
    return {"body": starting_text(schema), **starting_settings(schema), **fields}


def _find(tx: Transaction, context: RequestContext, user_id: str, label: str) -> Block | None:
    try:
        return user_memory.find(tx, user_memory.open_memory(tx, context.scope, user_id), label)
    except NotFound:
        return None  # the user does not exist yet


async def _checked(fields: Any, size: int) -> PutBlockRequest:
    return await offload(partial(validated, PutBlockRequest.model_validate, fields), size)
