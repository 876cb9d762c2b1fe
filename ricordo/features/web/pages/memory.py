"""Memory as people see it: the blocks of a person or an agent, each as text and in an editor, with what waits for it.

A page about a block has two addresses, by a person's label and by the id of the block, and is otherwise the same for both.
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
# Proposals on one page, each with two texts, and versions in the time line beside a text.
_MOST_PROPOSALS, _RECENT = 20, 8
# Characters from which a page is rendered in a thread: Markdown and differences take up to 25 µs a character.
_LARGE = 2_000
_CHANGED, _PRECONDITION_FAILED = 409, 412
# Each policy as people read it.
POLICIES = {
    "propose": "Agents propose, you decide",
    "explicit": "Agents write what was said word for word, and propose the rest",
    "guarded": "Agents write, and propose what came from elsewhere",
    "direct": "Agents write",
    "read_only": "Agents only read",
}


@router.get("")
async def list_people(request: Request) -> Response:
    """The users whom the caller may see; whoever sees one alone is sent to that one."""
    scope, asked = request.scope[REQUEST_SCOPE], request.query_params
    if scope.subject:
        return done(request, f"/ui/people/{scope.subject}")
    if not scope.may("users:read"):
        raise Forbidden(
            "To list users takes the scope users:read. Ask an administrator for a key that has it."
        )
    words, wanted = (
        asked.get("q", "").strip()[:255],
        Page(limit=_PAGE + 1, after=asked.get("after") or None),
    )
    found = await request.app.state.runtime.store.read(
        lambda tx: queries.people(tx, scope, wanted, words)
    )
    older = (
        address_of("/ui/people", q=words, after=found[_PAGE - 1].user.id) if found[_PAGE:] else ""
    )
    return await render(request, "people.html", people=found[:_PAGE], words=words, older=older)


@router.get("/{user_id}")
async def show_person(request: Request, user_id: str) -> Response:
    """A person's memory: all that waits, and the block that matters most."""
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        memory = user_memory.open_memory(tx, scope, user_id)
        owner = MemoryOwner("user", memory.user.id, memory.user.name)
        listed = queries.blocks_of_chain(tx, owner, memory.chain.id)
        first = _first(listed)
        address = of_user(tx, scope, memory.user, memory.chain.id, first.label) if first else None
        which = ProposalFilter(chain_id=memory.chain.id, waits=True)
        deleted = queries.deleted_labels(tx, memory.chain.id)
        return {"owner": owner, "deleted": deleted} | _memory(tx, scope, address, listed, which)

    return await _show(request, await request.app.state.runtime.store.read(read), is_whole=True)


@_of_agent.get("")
async def show_agents_memory(request: Request, agent_id: str) -> Response:
    """An agent's memory: its blocks, and the first of them."""
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
    """One block: its text, or an editor with `edit`, what waits for it, and its newest versions."""
    return await _show_block(request)


def _first(listed: Sequence[ListedBlock]) -> ListedBlock | None:
    waiting = [block for block in listed if block.waiting]
    return next(iter([*waiting, *listed]), None)


def _memory(
    tx: Transaction,
    scope: Scope,
    address: BlockAddress | None,
    listed: Sequence[ListedBlock],
    which: ProposalFilter | None = None,
) -> dict[str, Any]:
    """Read what a page of a block shows beside it."""
    if address is None:
        return {
            "listed": listed,
            "address": None,
            "waiting_here": [],
            "entries": [],
            "has_older": False,
        }
    which = which or ProposalFilter(chain_id=address.chain.id, label=address.label, waits=True)
    waiting = queries.waiting(tx, scope, Page(limit=_MOST_PROPOSALS, is_bounded=True), which)
    entries, has_older = read_versions(tx, address, _RECENT)
    runs = [one.proposal.run_id for one in waiting] + [entry.version.run_id for entry in entries]
    return {
        "owner": address.owner,
        "address": address,
        "listed": listed,
        "waiting_here": waiting,
        "entries": entries,
        "has_older": has_older,
        "sources": queries.messages_of_runs(tx, scope, runs),
        "deleted": queries.deleted_labels(tx, address.chain.id)
        if address.owner.kind == "user"
        else [],
    }


async def _show_block(request: Request, **values: Any) -> Response:
    scope, given = request.scope[REQUEST_SCOPE], request.path_params

    def read(tx: Transaction) -> dict[str, Any]:
        address = find_block(tx, scope, given)
        return _memory(
            tx, scope, address, blocks_beside(tx, scope, address.owner, address.chain.id)
        )

    return await _show(request, await request.app.state.runtime.store.read(read), **values)


async def _show(request: Request, found: dict[str, Any], **values: Any) -> Response:
    """Render a page of memory. `typed` is a text that could not be saved, and `words` say why."""
    address: BlockAddress | None = found["address"]
    scope: Scope = request.scope[REQUEST_SCOPE]
    length = sum(
        len(one.proposal.value or "") + len(one.proposal.base_value or "")
        for one in found["waiting_here"]
    )
    length += len(address.block.value) if address and address.block else 0
    may_write = scope.may("memory:write" if found["owner"].kind == "user" else "agents:write")
    may_edit = bool(address and address.block and may_write and address.decision != "refuse")
    shown: dict[str, Any] = {
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
    return await render(request, "memory.html", **(shown | found | values))


@_by_id.post("")
@router.post(_BLOCK)
async def save_block(request: Request) -> Response:
    """Save the text, unless it changed since it was read: then both texts are shown, and nothing typed is lost."""
    address, form = await open_block(request), await form_of(request)
    text, reason = form.get("value", ""), form.get("reason", "").strip() or None
    is_users = address.owner.kind == "user"
    method, body = (
        ("PUT", {"body": text, "message": reason}) if is_users else ("PATCH", {"value": text})
    )
    try:
        saved = await Api(request).ask(
            method, address.api, body, if_match=form.get("version") or None
        )
    except RefusedByApi as refused:
        if refused.status in (401, 403, 404):
            raise
        is_changed = refused.status == _PRECONDITION_FAILED
        words = "" if is_changed else str(refused)
        given = {
            "typed": text,
            "reason": reason,
            "is_edited": True,
            "is_changed": is_changed,
            "words": words,
        }
        return await _show_block(
            request, status=_CHANGED if is_changed else refused.status, **given
        )
    before = address.block and address.block.head
    is_written = saved.get("version") != (before.hex() if before else None)
    undo = f"{address.page}/restore?sha={before.hex()}" if before and is_written else ""
    return done(request, address.page, outcome_of(address, saved, "saved"), undo=undo)


@_by_id.post("/settings")
@router.post("/{user_id}/settings/{label:path}")
async def change_settings(request: Request) -> Response:
    """Change title, description, limit and policy, as far as the form has them; or hide the block from a course's teachers."""
    address, form = await open_block(request), await form_of(request)
    if form.get("hide") == "teachers" and address.block:
        kept = {
            name: value for name, value in address.block.metadata.items() if name != "teachers_see"
        }
        await Api(request).ask("PATCH", f"/v1/blocks/{address.block.id}", {"metadata": kept})
        return done(request, address.page, f"Teachers do not see {address.label} any more.")
    names = ("title", "description", "limit", "policy")
    body = {name: form[name].strip() or None for name in names if name in form}
    await Api(request).ask("PATCH", address.api, body)
    return done(request, address.page, f"The settings of {address.label} were changed.")


@_by_id.post("/remove")
@router.post("/{user_id}/remove/{label:path}")
async def remove_block(request: Request) -> Response:
    """Delete the block; a person's can be restored from its history."""
    address = await open_block(request)
    told = await Api(request).ask("DELETE", address.api)
    is_proposed = str(told.get("message", "")).startswith("Proposed")
    undo, head = "", address.block and address.block.head
    if address.owner.kind == "user" and head and not is_proposed:
        undo = f"{address.page}/restore?sha={head.hex()}"
    words = _waits_for(address) if is_proposed else f"{address.label} was deleted."
    return done(request, address.owner.path, words, undo=undo)


@_of_agent.get("/new")
@router.get("/{user_id}/new")
async def show_new(request: Request) -> Response:
    return await _show_new(request, await _owner_of(request))


@_of_agent.post("/new")
@router.post("/{user_id}/new")
async def make_block(request: Request) -> Response:
    """Make a block of a person, or one that is attached to an agent."""
    owner, form = await _owner_of(request), await form_of(request)
    try:
        made = await _make(Api(request), owner, form)
    except RefusedByApi as refused:
        if refused.status in (401, 403, 404):
            raise
        status = _CHANGED if refused.status == _PRECONDITION_FAILED else refused.status
        return await _show_new(request, owner, form, str(refused), status)
    is_proposed = "base_body" in made
    page = (
        f"{owner.path}/blocks/{quote(made['label'])}"
        if owner.kind == "user"
        else f"/ui/blocks/{made['id']}"
    )
    return done(
        request,
        page,
        f"Waits for {owner.name}'s approval." if is_proposed else f"{made['label']} was made.",
    )


async def _make(api: Api, owner: MemoryOwner, form: dict[str, str]) -> dict[str, Any]:
    label, text = form.get("label", "").strip(), form.get("value", "")
    given = {name: form[name] for name in ("description", "policy") if form.get(name)}
    made: dict[str, Any]
    if owner.kind == "user":
        path = f"/users/{owner.id}/blocks/{label}"
        made = await api.ask("PUT", path, {"body": text, **given}, if_none_match="*")
        return made
    made = await api.ask("POST", "/v1/blocks/", {"label": label, "value": text, **given})
    try:
        await api.ask("PATCH", f"/v1/agents/{owner.id}/core-memory/blocks/attach/{made['id']}")
    except RefusedByApi:
        await api.ask("DELETE", f"/v1/blocks/{made['id']}")
        raise
    return made


@router.post("/{user_id}/decide")
@needs("memory:approve", "memory:override")
async def decide(request: Request, user_id: str) -> Response:
    """Approve or reject the proposals whose ids the form has, all that were on the page it is from."""
    owner, fields = await _owner_of(request), await fields_of(request)
    ids, form = [value for name, value in fields if name == "id"], dict(fields)
    decision = "approve" if form.get("decision") == "approve" else "reject"
    body = {"ids": ids, "reason": form.get("reason") or None}
    outcomes = await Api(request).ask("POST", f"/users/{user_id}/diffs/{decision}", body)
    counts = Counter(one["status"] for one in outcomes)
    told = [f"{count} {status}" for status, count in sorted(counts.items())]
    return done(request, owner.path, f"{', '.join(told)}.".capitalize())


async def _owner_of(request: Request) -> MemoryOwner:
    scope, given = request.scope[REQUEST_SCOPE], request.path_params

    def read(tx: Transaction) -> MemoryOwner:
        if "agent_id" in given:
            agent = agents.load(tx, scope, given["agent_id"]).agent
            return MemoryOwner("agent", agent.id, agent.name)
        user = users.require(tx, scope, given["user_id"])
        return MemoryOwner("user", user.id, user.name)

    found: MemoryOwner = await request.app.state.runtime.store.read(read)
    return found


async def _show_new(
    request: Request,
    owner: MemoryOwner,
    form: dict[str, str] | None = None,
    words: str = "",
    status: int = 200,
) -> Response:
    values = {"owner": owner, "form": form or {}, "words": words, "policies": POLICIES}
    return await render(request, "new_block.html", status=status, **values)


def _waits_for(address: BlockAddress) -> str:
    return f"This waits for {address.owner.name}'s approval."


def outcome_of(address: BlockAddress, saved: dict[str, Any], what: str) -> str:
    is_proposed = saved.get("proposal_id") or "base_body" in saved
    return _waits_for(address) if is_proposed else f"{address.label} was {what}."


router.routes += [*_by_id.routes, *_of_agent.routes]
