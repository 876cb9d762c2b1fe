"""A person's rights to their memory: audit, export and erasure."""

from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE, Scope, User
from ricordo.errors import TooLong
from ricordo.features.memory_care.audit.service import Audit, audit
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.home import address_of_server
from ricordo.features.web.pages.queries import ListedBlock
from ricordo.memory import user_memory
from ricordo.pages.inside import Api
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.shell import Pages, form_of, render
from ricordo.runtime import Runtime
from ricordo.storage import memory_overviews
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/people/{user_id}", scope="memory")
_receipts = Pages("/ui/receipts", scope="memory")
# Limits of an audit on a page, which compares all pairs of lines and reads the history. Within them
# it takes at most a second. The command line audits longer memories.
_MOST_CHARACTERS = 20_000
_MOST_VERSIONS = 1_000
_MOST_FINDINGS = 200


@router.get("/audit")
async def show_audit(request: Request, user_id: str) -> Response:
    """Show the findings of an audit of this memory, if `run` asks for one."""
    scope = request.scope[REQUEST_SCOPE]
    runs = "run" in request.query_params

    def read(tx: Transaction) -> dict[str, Any]:
        memory = user_memory.open_memory(tx, scope, user_id)
        owner = MemoryOwner("user", memory.user.id, memory.user.name)
        size = sum(block.length for block in queries.blocks_of_chain(tx, owner, memory.chain.id))
        return {
            "owner": owner,
            "is_too_long": size > _MOST_CHARACTERS or memory.chain.versions > _MOST_VERSIONS,
            "chain_id": memory.chain.id,
        }

    variables = await request.app.state.runtime.store.read(read)
    audited: Audit | None = None
    if runs and variables["is_too_long"]:
        raise TooLong(
            "This memory is too long to be checked here. Run `ricordo memory audit` on the server."
        )
    if runs:
        audited = await request.app.state.runtime.store.read(
            lambda tx: audit(tx, scope, variables["chain_id"])
        )
    return await render(request, "audit.html", **variables, audited=audited, most=_MOST_FINDINGS)


@router.get("/export")
async def show_export(request: Request, user_id: str) -> Response:
    """Show the export formats of the memory, and its remotes."""
    owner, listed, user = await _person(request, user_id)
    remotes = await Api(request).find(f"/users/{owner.id}/remotes") or []
    # People paste this into a shell, so a name is quoted.
    name = quote(user.identifier or user.id, safe="")
    clone = f"{address_of_server(request)}/users/{name}/memory.git"
    return await render(
        request, "export.html", owner=owner, listed=listed, remotes=remotes, clone=clone
    )


@router.get("/forget")
@needs("memory:approve", "users:write")
async def show_forget(request: Request, user_id: str) -> Response:
    """Show the amount of data that would be deleted, and ask for the name."""
    return await _forget_page(request, user_id)


@router.post("/forget")
@needs("memory:approve", "users:write")
async def forget(request: Request, user_id: str) -> Response:
    """If the name is typed, erase the user with all of the user's data.

    The page shows the receipt, or the state of the erasure.
    """
    _, _, user = await _person(request, user_id)
    form = await form_of(request)
    if form.get("name", "").strip() != user.name:
        return await _forget_page(
            request, user_id, problem=f"Type the name {user.name} to confirm. Nothing was deleted."
        )
    query = {"with_agents": "true"} if form.get("with_agents") else {}
    receipt = await Api(request).ask("DELETE", f"/users/{user.id}", query=query)
    return await _receipt(request, receipt)


@_receipts.get("/{receipt_id}")
async def show_receipt(request: Request, receipt_id: str) -> Response:
    return await _receipt(request, await Api(request).get(f"/v1/receipts/{receipt_id}"))


async def _receipt(request: Request, receipt: dict[str, Any]) -> Response:
    """Show a receipt.

    Users who erased themselves have no key any more, so they cannot come back to this page.
    """
    scope: Scope = request.scope[REQUEST_SCOPE]
    return await render(request, "receipt.html", receipt=receipt, may_return=scope.role != "user")


async def _forget_page(request: Request, user_id: str, problem: str = "") -> Response:
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> dict[str, Any]:
        memory = user_memory.open_memory(tx, scope, user_id)
        owner = MemoryOwner("user", memory.user.id, memory.user.name)
        return {
            "owner": owner,
            "numbers": memory_overviews.memory_in_numbers(tx, memory.user.id, memory.chain.id),
        }

    variables = await request.app.state.runtime.store.read(read)
    is_self = scope.subject == variables["owner"].id
    return await render(
        request,
        "forget.html",
        status=400 if problem else 200,
        **variables,
        words=problem,
        is_self=is_self,
    )


async def _person(request: Request, user_id: str) -> tuple[MemoryOwner, list[ListedBlock], User]:
    scope = request.scope[REQUEST_SCOPE]
    runtime: Runtime = request.app.state.runtime

    def read(tx: Transaction) -> tuple[MemoryOwner, list[ListedBlock], User]:
        memory = user_memory.open_memory(tx, scope, user_id)
        owner = MemoryOwner("user", memory.user.id, memory.user.name)
        return owner, queries.blocks_of_chain(tx, owner, memory.chain.id), memory.user

    return await runtime.store.read(read)


router.routes += _receipts.routes
