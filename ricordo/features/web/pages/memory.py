"""The pages of memory: blocks of a person or an agent, with an editor.

The page of a block has two addresses: one with the person and the label, one with the block's id.
Both show the same page.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.block import NEVER_REMEMBER
from ricordo.domain.ids import unique
from ricordo.domain.scope import REQUEST_SCOPE, Scope
from ricordo.domain.version import BlockVersion, ChangeMetadata
from ricordo.errors import Forbidden
from ricordo.features.memory_care.forgetting import queries as forget_requests
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import (
    BlockAddress,
    TimelineEntry,
    find_block,
    open_block,
    read_versions,
)
from ricordo.features.web.pages.block_form import FIELD, text_of_form
from ricordo.features.web.pages.memory_rules import add_rule, put_off, put_off_of, remove_rule
from ricordo.features.web.pages.memory_sections import (
    MOST_ON_PAGE,
    MemorySection,
    rights_at,
    section_of,
    sections_of_agent,
    sections_of_user,
    titles_of,
)
from ricordo.features.web.pages.memory_text import field_text
from ricordo.features.web.pages.queries import WaitingProposal
from ricordo.features.web.pages.suggestions import divided, joined
from ricordo.memory import user_memory
from ricordo.memory.schemas import Schemas, schemas_in
from ricordo.memory.sections import read_sections
from ricordo.memory.topics import TOPICS
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.shell import (
    Pages,
    address_of,
    done,
    fields_of,
    form_of,
    local_path,
    render,
)
from ricordo.pages.titles import title_of
from ricordo.storage import agents, blocks, history, memory_overviews, proposals, users, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Pages("/ui/people", scope="memory")
_by_id = Pages("/ui/blocks/{block_id}", scope="agents")
_of_agent = Pages("/ui/agents/{agent_id}/memory", scope="agents")
_BLOCK = "/{user_id}/blocks/{label:path}"
_PAGE = 50
_MOST_PROPOSALS = 50  # on one page, each with two texts
_MOST_EXPECTED = 30  # listed blocks that courses will add
_MOST_REASONS = 3  # in the notice of a decision
_RECENT = 8  # versions in the timeline next to a text
# Pages with more characters are rendered in a thread, since Markdown and differences take up to 25
# µs a character.
_LARGE = 2_000
_CHANGED = 409
_NOBODY = "nobody"  # in the field of an egress policy
_PRECONDITION_FAILED = 412
# Each policy in words for people.
POLICIES = {
    "propose": "Agents propose, you decide",
    "explicit": "Agents write the user's exact statements, and propose the rest",
    "guarded": "Agents write, but propose content from other sources",
    "direct": "Agents write",
    "read_only": "Agents only read",
}


@router.get("")
async def list_people(request: Request) -> Response:
    """List the users that the caller may see.

    A caller who sees only one user is redirected to that user.
    """
    scope = request.scope[REQUEST_SCOPE]
    if scope.subject:
        return done(request, f"/ui/people/{scope.subject}")
    if not scope.may("users:read"):
        raise Forbidden(
            "Your key lacks the scope users:read. Ask an administrator for a key that has it."
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
    """Show a person's memory: the texts, suggestions, and the newest changes."""
    scope = request.scope[REQUEST_SCOPE]
    runtime = request.app.state.runtime
    schemas = schemas_in(runtime.settings.data_dir)

    def read(tx: Transaction) -> dict[str, Any]:
        memory = user_memory.open_memory(tx, scope, user_id)
        user = memory.user
        owner = MemoryOwner("user", user.id, user.name)
        sections = sections_of_user(tx, scope, user, memory.chain, schemas)
        is_self = scope.user_id == user.id
        waiting, waiting_total = _waiting(tx, scope, memory.chain.id)
        newest = history.page(tx, memory.chain.id, limit=2 * _RECENT)
        newest = [version for version in newest if version.label != NEVER_REMEMBER][:_RECENT]
        labels = [section.block.label for section in sections]
        rules = blocks.labelled(tx, memory.chain.id, NEVER_REMEMBER)
        owns = ChangeMetadata(scope.acting_for(user).actor).is_owners_of(memory.chain)
        return {
            "owner": owner,
            "is_self": is_self,
            "owns": owns,
            "sections": sections,
            "waiting": waiting,
            "waiting_total": waiting_total,
            "entries": [TimelineEntry(version) for version in newest],
            "titles": titles_of(sections),
            "sources": _sources(tx, scope, waiting, newest),
            "deleted": memory_overviews.deleted_labels(tx, memory.chain.id),
            "expected": queries.expected_blocks(tx, scope, user, labels, _MOST_EXPECTED),
            "rules": rules.value.split("\n") if owns and rules and rules.value else [],
            "topics": TOPICS,
            "forget_requests": forget_requests.listed(tx, user) if owns else [],
            "also_waiting": runtime.plugins.waiting(tx, user.organization_id, user.id)
            if owns
            else [],
        }

    variables = await runtime.store.read(read)
    return await _show_memory(request, variables)


@_of_agent.get("")
async def show_agents_memory(request: Request, agent_id: str) -> Response:
    """Show an agent's memory: the texts of its blocks, suggestions and changes."""
    scope = request.scope[REQUEST_SCOPE]
    runtime = request.app.state.runtime
    schemas = schemas_in(runtime.settings.data_dir)

    def read(tx: Transaction) -> dict[str, Any]:
        state = agents.load(tx, scope, agent_id)
        owner = MemoryOwner("agent", state.agent.id, state.agent.name)
        sections = sections_of_agent(tx, scope, [block.id for block in state.blocks], schemas)
        chain = versions.of_owner(tx, scope, "agent", state.agent.id)
        waiting: list[WaitingProposal] = []
        waiting_total = 0
        newest: list[BlockVersion] = []
        if chain:
            waiting, waiting_total = _waiting(tx, scope, chain.id)
            newest = history.page(tx, chain.id, limit=_RECENT)
        return {
            "owner": owner,
            "is_self": False,
            "owns": scope.may_decide_for("agent", owner.id),
            "sections": sections,
            "waiting": waiting,
            "waiting_total": waiting_total,
            "entries": [TimelineEntry(version) for version in newest],
            "titles": titles_of(sections),
            "sources": _sources(tx, scope, waiting, newest),
            "deleted": [],
            "expected": [],
            "rules": [],
            "topics": (),
            "forget_requests": [],
            "also_waiting": [],
        }

    return await _show_memory(request, await runtime.store.read(read))


def _waiting(
    tx: Transaction, scope: Scope, chain_id: str, label: str | None = None
) -> tuple[list[WaitingProposal], int]:
    """Return the first waiting proposals of a memory or of one block, and the number of all."""
    page = Page(limit=_MOST_PROPOSALS, is_bounded=True)
    waits = ProposalFilter(chain_id=chain_id, label=label, waits=True)
    counts = proposals.waiting_counts(tx, chain_id)
    total = sum(counts.values()) if label is None else counts.get(label, 0)
    return queries.waiting(tx, scope, page, waits), total


def _sources(
    tx: Transaction,
    scope: Scope,
    waiting: Sequence[WaitingProposal],
    block_versions: Sequence[BlockVersion],
) -> Mapping[str, str]:
    run_ids = [member.proposal.run_id for member in waiting]
    return queries.messages_of_runs(
        tx, scope, [*run_ids, *(version.run_id for version in block_versions)]
    )


async def _show_memory(request: Request, variables: dict[str, Any]) -> Response:
    scope: Scope = request.scope[REQUEST_SCOPE]
    owner: MemoryOwner = variables["owner"]
    is_users = owner.kind == "user"
    suggestions = joined(variables["waiting"], variables["titles"], is_self=variables["is_self"])
    now, later = divided(suggestions, put_off_of(request))
    length = sum(len(section.block.value) for section in variables["sections"])
    return await render(
        request,
        "memory.html",
        suggestions=now,
        later=later,
        may_write=scope.may("memory:write" if is_users else "agents:write"),
        may_decide=variables["owns"] and scope.may("memory:approve", "memory:override"),
        opened=None,
        is_large=length > _LARGE,
        **variables,
    )


@_by_id.get("")
@router.get(_BLOCK)
async def show_block(request: Request) -> Response:
    """Show one block: its text or editor, proposals, and newest versions."""
    return await show_block_page(request)


def _block_variables(
    tx: Transaction, scope: Scope, address: BlockAddress, schemas: Schemas
) -> dict[str, Any]:
    """Read one block with everything that its page shows."""
    waiting, waiting_total = _waiting(tx, scope, address.chain.id, address.label)
    entries, has_older = read_versions(tx, address, _RECENT)
    is_self = address.owner.id == scope.user_id
    section = None
    if address.block:
        section = section_of(
            address.block,
            address.owner,
            schemas,
            rights=rights_at(scope, address),
            is_self=is_self,
            most=MOST_ON_PAGE,
        )
    return {
        "owner": address.owner,
        "address": address,
        "section": section,
        "is_self": is_self,
        "title": section.title
        if section
        else title_of(address.label, None, address.owner.name, is_self=is_self),
        "waiting": waiting,
        "waiting_total": waiting_total,
        "entries": entries,
        "has_older": has_older,
        "sources": _sources(tx, scope, waiting, [entry.version for entry in entries]),
    }


async def show_block_page(request: Request, **changes: Any) -> Response:
    """Render the page of the request's block.

    Args:
        request: The request.
        **changes: Variables of the page. `typed` is a text that could not be saved, and `words` is
            the reason. `opened` is the piece of the text that shows its form or its source.
    """
    scope: Scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params
    runtime = request.app.state.runtime
    schemas = schemas_in(runtime.settings.data_dir)

    def read(tx: Transaction) -> dict[str, Any]:
        return _block_variables(tx, scope, find_block(tx, scope, path_params), schemas)

    variables = await runtime.store.read(read)
    address: BlockAddress = variables["address"]
    section: MemorySection | None = variables["section"]
    length = sum(
        len(member.proposal.value or "") + len(member.proposal.base_value or "")
        for member in variables["waiting"]
    )
    length += len(address.block.value) if address.block else 0
    may_edit = bool(section and section.may_edit)
    suggestions = joined(
        variables["waiting"], {address.label: variables["title"]}, is_self=variables["is_self"]
    )
    now, later = divided(suggestions, put_off_of(request))
    defaults: dict[str, Any] = {
        "is_edited": may_edit and "edit" in request.query_params,
        "may_write": scope.may(
            "memory:write" if variables["owner"].kind == "user" else "agents:write"
        ),
        "may_edit": may_edit,
        "may_decide": address.owns and scope.may("memory:approve", "memory:override"),
        "typed": None,
        "reason": None,
        "is_changed": False,
        "words": "",
        "opened": None,
        "policies": POLICIES,
        "is_large": length > _LARGE,
        "suggestions": now,
        "later": later,
        "values": _field_values(section),
        "egress": await _egress_policy(request, address),
    }
    return await render(request, "block.html", **(defaults | variables | changes))


def _field_values(section: MemorySection | None) -> Mapping[str, str]:
    """Return the values of a block's fields for its form; empty for a free text."""
    if section is None or section.schema is None:
        return {}
    reading = read_sections(section.block.value, section.schema)
    if reading.problems:
        return {}
    return {
        field.name: field_text(reading.fields.get(field.name, field.empty))
        for field in section.schema.fields
    }


@_by_id.post("")
@router.post(_BLOCK)
async def save_block(request: Request) -> Response:
    """Save the text if the block has not changed since it was read.

    Otherwise the page shows both texts, so that the typed text is not lost.
    """
    address = await open_block(request)
    form = await form_of(request)
    text = form.get("value", "")
    if any(name.startswith(FIELD) for name in form):
        text = await text_of_form(request, address, form)
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
        return await show_block_page(
            request,
            status=_CHANGED if is_changed else refusal.status,
            typed=text,
            reason=reason,
            is_edited=True,
            is_changed=is_changed,
            words="" if is_changed else str(refusal),
        )
    notice = outcome_of(address, saved, "saved")
    return done(request, address.page, notice, undo=undo_address(address, saved))


@_by_id.post("/settings")
@router.post("/{user_id}/settings/{label:path}")
async def change_settings(request: Request) -> Response:
    """Change the settings in the form: title, description, limit and policy.

    The form may also hide the block from a course's teachers, or show it to them.
    """
    address = await open_block(request)
    form = await form_of(request)
    if form.get("hide") == "teachers" and address.block:
        metadata = dict(address.block.metadata)
        metadata.pop("teachers_see", None)
        metadata.pop("teachers_ask", None)
        await _save_metadata(request, address.block.id, metadata, address.version)
        return done(request, address.page, f"Teachers no longer see {address.label}.")
    if form.get("show") == "teachers" and address.block:
        metadata = dict(address.block.metadata)
        metadata["teachers_see"] = metadata.pop("teachers_ask", None)
        await _save_metadata(request, address.block.id, metadata, address.version)
        return done(request, address.page, f"Teachers of the course now see {address.label}.")
    names = ("title", "description", "limit", "policy")
    body = {name: form[name].strip() or None for name in names if name in form}
    await Api(request).ask("PATCH", address.api, body)
    if "egress" in form and address.block:
        policy = {"allowed": _allowed_names(form["egress"])}
        await Api(request).ask("PUT", f"/v1/blocks/{address.block.id}/egress", policy)
    return done(request, address.page, f"The settings of {address.label} were changed.")


async def _save_metadata(
    request: Request, block_id: str, metadata: Mapping[str, Any], version: str
) -> None:
    """Replace the block's metadata. Raises RefusedByApi if the block changed since `version`."""
    path = f"/v1/blocks/{block_id}"
    await Api(request).ask("PATCH", path, {"metadata": metadata}, if_match=version)


async def _egress_policy(request: Request, address: BlockAddress) -> Any:
    """Return the block's egress policy; None without the feature that sets it."""
    if address.block is None:
        return None
    return await Api(request).find(f"/v1/blocks/{address.block.id}/egress")


def _allowed_names(text: str) -> list[str] | None:
    """Return the names of an egress policy from its field; None for an empty field."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if names == [_NOBODY]:
        return []
    return names or None


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
    """Make a block of a person, or attach a new block to an agent."""
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
    """Decide on the proposals that the form names.

    `decision` is approve, reject, later or never. With "later" they are folded for a day. With
    "never" they are rejected, and a rule forbids to remember anything like `rule`.
    """
    owner = await _owner_of(request)
    fields = await fields_of(request)
    form = dict(fields)
    ids = [field for name, field in fields if name == "id"]
    path = local_path(form.get("next", "")) or owner.path
    decision = form.get("decision", "reject")
    if decision == "later":
        response = done(
            request, path, "Not now: the suggestion waits, and is shown here again tomorrow."
        )
        put_off(request, response, ids)
        return response
    reason = form.get("reason", "").strip() or None
    if decision == "never":
        await add_rule(Api(request), user_id, form.get("rule", ""))
        reason = reason or "Never remember things like this."
    verb = "approve" if decision == "approve" else "reject"
    body = {"ids": ids, "reason": reason}
    undo = ""
    if decision == "approve":
        scope = request.scope[REQUEST_SCOPE]
        undo = await request.app.state.runtime.store.read(
            lambda tx: queries.undo_of_approval(tx, scope, ids)
        )
    outcomes = await Api(request).ask("POST", f"/users/{user_id}/diffs/{verb}", body)
    if not any(outcome["status"] == "approved" for outcome in outcomes):
        undo = ""
    return done(request, path, _outcome_words(outcomes, decision), undo=undo)


def _outcome_words(outcomes: Sequence[Mapping[str, Any]], decision: str) -> str:
    counts = Counter(outcome["status"] for outcome in outcomes)
    if decision == "never" and counts["rejected"]:
        return "Rejected. Nothing like it will be remembered or proposed again."
    if set(counts) == {"approved"}:
        return "Remembered."
    if set(counts) == {"rejected"}:
        return "Rejected, nothing changed."
    parts = [f"{count} {status}" for status, count in sorted(counts.items())]
    reasons = unique([outcome["detail"] for outcome in outcomes if outcome["status"] == "failed"])
    return " ".join([f"{', '.join(parts)}.".capitalize(), *reasons[:_MOST_REASONS]])


@router.post("/{user_id}/rules")
async def change_rules(request: Request, user_id: str) -> Response:
    """Add a rule against remembering things like `rule`, or remove the rule `remove`."""
    owner = await _owner_of(request)
    form = await form_of(request)
    api = Api(request)
    if "remove" in form:
        await remove_rule(api, user_id, form["remove"])
        return done(request, f"{owner.path}#rules", "The rule was deleted.")
    await add_rule(api, user_id, form.get("rule", ""))
    return done(request, f"{owner.path}#rules", "Agents will remember nothing like it.")


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
    scope: Scope = request.scope[REQUEST_SCOPE]

    def owns_memory(tx: Transaction) -> bool:
        memory = user_memory.open_memory(tx, scope, owner.id)
        return ChangeMetadata(scope.acting_for(memory.user).actor).is_owners_of(memory.chain)

    owns = owner.kind == "agent" or await request.app.state.runtime.store.read(owns_memory)
    return await render(
        request,
        "new_block.html",
        status=status,
        owner=owner,
        owns=owns,
        form=form or {},
        words=problem,
        policies=POLICIES,
    )


def _waits_for(address: BlockAddress) -> str:
    return f"This waits for {address.owner.name}'s approval."


def outcome_of(address: BlockAddress, saved: dict[str, Any], verb: str) -> str:
    """Return the notice for a saved change: it waits for approval, or the block was changed.

    Args:
        address: The block as it was before.
        saved: The answer of the API to the change.
        verb: The change in the past tense, such as "changed".
    """
    is_proposed = saved.get("proposal_id") or "base_body" in saved
    return _waits_for(address) if is_proposed else f"{address.label} was {verb}."


def undo_address(address: BlockAddress, saved: dict[str, Any]) -> str:
    """Return the page that undoes a saved change; "" if no version was made.

    Args:
        address: The block as it was before.
        saved: The answer of the API to the change.
    """
    if address.shown_version in ("", saved.get("version")):
        return ""
    return f"{address.page}/restore?sha={address.shown_version}"


router.routes += [*_by_id.routes, *_of_agent.routes]
