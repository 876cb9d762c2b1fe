"""Forget one fact: list the items that mention it, and remove the chosen ones."""

from typing import Any

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.shell import Pages, done, fields_of, page_of, render
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/people/{user_id}/forget-one", scope="memory")
# Names of the kinds of stored items for people. Other kinds have none.
KINDS = {
    "block": "In memory",
    "fact": "In facts",
    "version": "In old versions",
    "proposal": "In suggestions",
    "message": "In conversations",
    "summary": "In summaries of conversations",
    "conversation": "In names of conversations",
    "passage": "In archives",
    "file": "In files",
    "file part": "In parts of files, for search",
    "workspace": "In the workspace",
    "agent": "In your own agents",
    "schedule": "In scheduled messages",
    "task": "In tasks",
}


@router.post("")
@needs("memory:approve", "users:write")
async def show_list(request: Request, user_id: str) -> Response:
    """Show the items that mention the text in the form, to choose from.

    The text is sent by POST, since addresses are logged.
    """
    form = dict(await fields_of(request))
    return await _show_list(request, user_id, form)


@router.post("/remove")
@needs("memory:approve", "users:write")
async def remove(request: Request, user_id: str) -> Response:
    """Remove the chosen items, and redirect to the receipt."""
    fields = await fields_of(request)
    form = dict(fields)
    ids = [value for name, value in fields if name == "id"]
    if not ids:
        return await _show_list(request, user_id, form, problem="Choose what to remove.")
    body = {
        "text": form.get("text", ""),
        "ids": ids,
        "never_again": "never_again" in form,
        "request_id": form.get("request_id") or None,
    }
    state = await Api(request).ask("POST", f"/users/{user_id}/forget", body)
    return done(request, f"/ui/receipts/{state['id']}", "It is being removed.")


@router.post("/decline")
@needs("memory:approve", "users:write")
async def decline(request: Request, user_id: str) -> Response:
    """Decline an agent's request to forget something."""
    form = dict(await fields_of(request))
    request_id = form.get("request_id", "")
    await Api(request).ask("DELETE", f"/users/{user_id}/forget/{request_id}")
    return done(request, page_of("people", user_id), "Nothing was forgotten.")


async def _show_list(
    request: Request, user_id: str, form: dict[str, str], problem: str = ""
) -> Response:
    scope = request.scope[REQUEST_SCOPE]

    def read(tx: Transaction) -> MemoryOwner:
        user = users.require(tx, scope, user_id)
        return MemoryOwner("user", user.id, user.name)

    owner = await request.app.state.runtime.store.read(read)
    text = form.get("text", "").strip()
    listed: dict[str, Any] = {"items": [], "perhaps": [], "remains": [], "is_cut": False}
    try:
        listed = await Api(request).ask("POST", f"/users/{owner.id}/forget", {"text": text})
    except RefusedByApi as refusal:
        if refusal.status in (401, 403, 404):
            raise
        problem = str(refusal)
    return await render(
        request,
        "forget_one.html",
        status=400 if problem else 200,
        owner=owner,
        is_self=scope.subject == owner.id,
        text=text,
        request_id=form.get("request_id", ""),
        listed=listed,
        kinds=KINDS,
        words=problem,
    )
