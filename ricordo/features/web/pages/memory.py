"""The pages of memory: blocks of a person or an agent, with an editor.

A page of a block has two addresses, by a person's label and by the block's id; otherwise both are
the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.errors import Forbidden
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import (
    BlockAddress,
    blocks_beside,
    find_block,
    of_user,
    open_block,
    read_versions,
)
from ricordo.features.web.pages.queries import ListedBlock, MemoryOwner
from ricordo.memory import user_memory
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, fields_of, form_of, render
from ricordo.storage import agents, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Pages("/ui/people", scope="memory")
_by_id = Pages("/ui/blocks/{block_id}", scope="agents")
_of_agent = Pages("/ui/agents/{agent_id}/memory", scope="agents")
_BLOCK = "/{user_id}/blocks/{label:path}"
_PAGE = 50
_MOST_PROPOSALS = 20  # on one page, each with two texts
_RECENT = 8  # versions in the timeline beside a text
# Longer pages (characters) are rendered in a thread: Markdown and differences take up to 25 µs a
# character.
_LARGE = 2_000
_CHANGED = 409
_PRECONDITION_FAILED = 412
# Each policy in words for people.
POLICIES = {
    "propose": "Agents propose, you decide",
    "explicit": "Agents write what was said word for word, and propose the rest",
    "guarded": "Agents write, and propose what came from elsewhere",
    "direct": "Agents write",
    "read_only": "Agents only read",
}


@router.get("")
async def list_people(request: Request) -> Response:
    """List the users that the caller may see.

    A caller who sees only one user is redirected to that one.
    """
    scope = request.scope[REQUEST_SCOPE]
    if scope.subject:
        return done(request, f"/ui/people/{scope.subject}")
    if not scope.may("users:read"):
        raise Forbidden(
            "To list users takes the scope users:read. Ask an administrator for a key that has it."
        )
    search_text = request.query_params.get("q", "").strip()[:255]
    page = Page(limit=_PAGE + 1, after=request.query_params.get("after") or None)
    people = await request.app.state.runtime.store.read(
        lambda tx: queries.people(tx, scope, page, search_text)
    )
    older = ""
    if people[_PAGE:]:
        older = address_of("/ui/people", q=search_text, after=people[_PAGE - 1].user.id)
    return await render(
        request, "people.html", people=people[:_PAGE], words=search_text, older=older
    )


@router.get("/{user_id}")
async def show_person(request: Request, user_id: str) -> Response:
    """Show a person's memory: all waiting proposals, and the first block."""
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        memory = user_memory.open_memory(tx, scope, user_id)
        owner = MemoryOwner("user", memory.user.id, memory.user.name)
        listed = queries.blocks_of_chain(tx, owner, memory.chain.id)
        first = _first(listed)
        address = of_user(tx, scope, memory.user, memory.chain.id, first.label) if first else None
        proposal_filter = ProposalFilter(chain_id=memory.chain.id, waits=True)
        deleted = queries.deleted_labels(tx, memory.chain.id)
        return {"owner": owner, "deleted": deleted} | _memory(
            tx, scope, address, listed, proposal_filter
        )

    return await _show(request, await request.app.state.runtime.store.read(read), is_whole=True)


@_of_agent.get("")
async def show_agents_memory(request: Request, agent_id: str) -> Response:
    """Show an agent's memory: its blocks, and the first of them."""
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        agent = agents.load(tx, scope, agent_id).agent
        owner = MemoryOwner("agent", agent.id, agent.name)
        listed = blocks_beside(tx, scope, owner, "")
        first = _first(listed)
        address = find_block(tx, scope, {"block_id": first.id}) if first else None
        return _memory(tx, scope, address, listed) | {"owner": owner}

    return await _show(request, await request.app.state.runtime.store.read(read))


@_by_id.get("")
@router.get(_BLOCK)
async def show_block(request: Request) -> Response:
    """Show one block: its text or editor, proposals, and newest versions."""
    return await _show_block(request)


def _first(listed: Sequence[ListedBlock]) -> ListedBlock | None:
    waiting = [block for block in listed if block.waiting]
    return next(iter([*waiting, *listed]), None)


def _memory(
    tx: Transaction,
    scope: Scope,
    address: BlockAddress | None,
    listed: Sequence[ListedBlock],
    proposal_filter: ProposalFilter | None = None,
) -> dict[str, Any]:
    """Read the memory around a block for its page."""
    if address is None:
        return {
            "listed": listed,
            "address": None,
            "waiting_here": [],
            "entries": [],
            "has_older": False,
        }
    proposal_filter = proposal_filter or ProposalFilter(
        chain_id=address.chain.id, label=address.label, waits=True
    )
    waiting = queries.waiting(
        tx, scope, Page(limit=_MOST_PROPOSALS, is_bounded=True), proposal_filter
    )
    entries, has_older = read_versions(tx, address, _RECENT)
    runs = [waiting_proposal.proposal.run_id for waiting_proposal in waiting]
    runs += [entry.version.run_id for entry in entries]
    deleted = []
    if address.owner.kind == "user":
        deleted = queries.deleted_labels(tx, address.chain.id)
    return {
        "owner": address.owner,
        "address": address,
        "listed": listed,
        "waiting_here": waiting,
        "entries": entries,
        "has_older": has_older,
        "sources": queries.messages_of_runs(tx, scope, runs),
        "deleted": deleted,
    }


async def _show_block(request: Request, **changes: Any) -> Response:
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, path_params)
        beside = blocks_beside(tx, scope, address.owner, address.chain.id)
        return _memory(tx, scope, address, beside)

    return await _show(request, await request.app.state.runtime.store.read(read), **changes)


async def _show(request: Request, memory: dict[str, Any], **changes: Any) -> Response:
    """Render a page of memory.

    `typed` is a text that could not be saved, and `words` is the reason.
    """
    address: BlockAddress | None = memory["address"]
    scope: Scope = request.scope[REQUEST_SCOPE]
    length = sum(
        len(waiting.proposal.value or "") + len(waiting.proposal.base_value or "")
        for waiting in memory["waiting_here"]
    )
    if address and address.block:
        length += len(address.block.value)
    may_write = scope.may("memory:write" if memory["owner"].kind == "user" else "agents:write")
    may_edit = bool(address and address.block and may_write and address.decision != "refuse")
    defaults: dict[str, Any] = {
        "is_edited": may_edit and "edit" in request.query_params,
        "may_write": may_write,
        "may_edit": may_edit,
        "may_decide": bool(address and address.owns)
        and scope.may("memory:approve", "memory:override"),
        "typed": None,
        "reason": None,
        "is_changed": False,
        "words": "",
        "policies": POLICIES,
        "is_whole": False,
        "is_large": length > _LARGE,
        "sources": {},
        "deleted": [],
    }
    return await render(request, "memory.html", **(defaults | memory | changes))


@_by_id.post("")
@router.post(_BLOCK)
async def save_block(request: Request) -> Response:
    """Save the text, unless the block changed since it was read.

    Then the page shows both texts, so the typed text is not lost.
    """
    address = await open_block(request)
    form = await form_of(request)
    text = form.get("value", "")
    reason = form.get("reason", "").strip() or None
    method = "PATCH"
    body: dict[str, Any] = {"value": text}
    if address.owner.kind == "user":
        method = "PUT"
        body = {"body": text, "message": reason}
    try:
        saved = await Api(request).ask(
            method, address.api, body, if_match=form.get("version") or None
        )
    except RefusedByApi as refusal:
        if refusal.status in (401, 403, 404):
            raise
        is_changed = refusal.status == _PRECONDITION_FAILED
        return await _show_block(
            request,
            status=_CHANGED if is_changed else refusal.status,
            typed=text,
            reason=reason,
            is_edited=True,
            is_changed=is_changed,
            words="" if is_changed else str(refusal),
        )
    before = address.block and address.block.head
    undo = ""
    if before and saved.get("version") != before.hex():
        undo = f"{address.page}/restore?sha={before.hex()}"
    return done(request, address.page, outcome_of(address, saved, "saved"), undo=undo)


@_by_id.post("/settings")
@router.post("/{user_id}/settings/{label:path}")
async def change_settings(request: Request) -> Response:
    """Change the settings in the form: title, description, limit and policy.

    Or hide the block from a course's teachers.
    """
    address = await open_block(request)
    form = await form_of(request)
    if form.get("hide") == "teachers" and address.block:
        metadata = dict(address.block.metadata)
        metadata.pop("teachers_see", None)
        await Api(request).ask("PATCH", f"/v1/blocks/{address.block.id}", {"metadata": metadata})
        return done(request, address.page, f"Teachers do not see {address.label} any more.")
    names = ("title", "description", "limit", "policy")
    body = {name: form[name].strip() or None for name in names if name in form}
    await Api(request).ask("PATCH", address.api, body)
    return done(request, address.page, f"The settings of {address.label} were changed.")


@_by_id.post("/remove")
@router.post("/{user_id}/remove/{label:path}")
async def remove_block(request: Request) -> Response:
    """Delete the block; a person's block can be restored from its history."""
    address = await open_block(request)
    answer = await Api(request).ask("DELETE", address.api)
    is_proposed = str(answer.get("message", "")).startswith("Proposed")
    head = address.block and address.block.head
    undo = ""
    if address.owner.kind == "user" and head and not is_proposed:
        undo = f"{address.page}/restore?sha={head.hex()}"
    notice = _waits_for(address) if is_proposed else f"{address.label} was deleted."
    return done(request, address.owner.path, notice, undo=undo)


@_of_agent.get("/new")
@router.get("/{user_id}/new")
async def show_new(request: Request) -> Response:
    return await _show_new(request, await _owner_of(request))


@_of_agent.post("/new")
@router.post("/{user_id}/new")
async def make_block(request: Request) -> Response:
    """Make a block of a person, or attach a new one to an agent."""
    owner = await _owner_of(request)
    form = await form_of(request)
    try:
        block = await _make(Api(request), owner, form)
    except RefusedByApi as refusal:
        if refusal.status in (401, 403, 404):
            raise
        status = refusal.status
        if status == _PRECONDITION_FAILED:
            status = _CHANGED
        return await _show_new(request, owner, form, problem=str(refusal), status=status)
    page = f"/ui/blocks/{block['id']}"
    if owner.kind == "user":
        page = f"{owner.path}/blocks/{quote(block['label'])}"
    notice = f"{block['label']} was made."
    if "base_body" in block:  # a proposal
        notice = f"Waits for {owner.name}'s approval."
    return done(request, page, notice)


async def _make(api: Api, owner: MemoryOwner, form: dict[str, str]) -> dict[str, Any]:
    label = form.get("label", "").strip()
    text = form.get("value", "")
    settings = {name: form[name] for name in ("description", "policy") if form.get(name)}
    block: dict[str, Any]
    if owner.kind == "user":
        path = f"/users/{owner.id}/blocks/{label}"
        block = await api.ask("PUT", path, {"body": text, **settings}, if_none_match="*")
        return block
    block = await api.ask("POST", "/v1/blocks/", {"label": label, "value": text, **settings})
    try:
        await api.ask("PATCH", f"/v1/agents/{owner.id}/core-memory/blocks/attach/{block['id']}")
    except RefusedByApi:
        await api.ask("DELETE", f"/v1/blocks/{block['id']}")
        raise
    return block


@router.post("/{user_id}/decide")
@needs("memory:approve", "memory:override")
async def decide(request: Request, user_id: str) -> Response:
    """Approve or reject the proposals whose ids the form has.

    Those are all proposals of the form's page.
    """
    owner = await _owner_of(request)
    fields = await fields_of(request)
    form = dict(fields)
    ids = [field for name, field in fields if name == "id"]
    decision = "approve" if form.get("decision") == "approve" else "reject"
    body = {"ids": ids, "reason": form.get("reason") or None}
    outcomes = await Api(request).ask("POST", f"/users/{user_id}/diffs/{decision}", body)
    counts = Counter(outcome["status"] for outcome in outcomes)
    parts = [f"{count} {status}" for status, count in sorted(counts.items())]
    return done(request, owner.path, f"{', '.join(parts)}.".capitalize())


async def _owner_of(request: Request) -> MemoryOwner:
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params

    def read(tx: Transaction) -> MemoryOwner:
        if "agent_id" in path_params:
            agent = agents.load(tx, scope, path_params["agent_id"]).agent
            return MemoryOwner("agent", agent.id, agent.name)
        user = users.require(tx, scope, path_params["user_id"])
        return MemoryOwner("user", user.id, user.name)

    owner: MemoryOwner = await request.app.state.runtime.store.read(read)
    return owner


async def _show_new(
    request: Request,
    owner: MemoryOwner,
    form: dict[str, str] | None = None,
    *,
    problem: str = "",
    status: int = 200,
) -> Response:
    return await render(
        request,
        "new_block.html",
        status=status,
        owner=owner,
        form=form or {},
        words=problem,
        policies=POLICIES,
    )


def _waits_for(address: BlockAddress) -> str:
    return f"This waits for {address.owner.name}'s approval."


def outcome_of(address: BlockAddress, saved: dict[str, Any], verb: str) -> str:
    """Return the notice for a change: it waits, or the block was `verb`."""
    is_proposed = saved.get("proposal_id") or "base_body" in saved
    return _waits_for(address) if is_proposed else f"{address.label} was {verb}."


router.routes += [*_by_id.routes, *_of_agent.routes]
