"""One line of a block: change it, forget it, and its source."""

from typing import Any

from fastapi import Request, Response

from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import (
    BlockAddress,
    find_block,
    open_block,
    read_blame,
)
from ricordo.features.web.pages.block_form import FIELD, text_of_form
from ricordo.features.web.pages.memory import outcome_of, show_block_page, undo_address
from ricordo.features.web.pages.memory_sections import (
    MOST_ON_PAGE,
    MemorySection,
    rights_at,
    section_of,
)
from ricordo.features.web.pages.memory_text import TextPiece, lines_named, with_lines
from ricordo.memory.schemas import schemas_in
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, done, form_of, is_part, local_path, render
from ricordo.storage import history
from ricordo.storage.engine.store import Transaction

router = Pages("/ui/people/{user_id}/line/{label:path}", scope="memory")
_by_id = Pages("/ui/blocks/{block_id}/line", scope="agents")
_CHANGED = (409, 412)


@_by_id.get("")
@router.get("")
async def show_line(request: Request) -> Response:
    """Open a line: show its form, or with `who` its source.

    A request by htmx gets only the line; any other request gets the page of the block.
    """
    if "lines" not in request.query_params:
        return await show_block_page(request)
    first, last = lines_named(request.query_params["lines"])
    section = await _section(request)
    piece = next((piece for piece in section.pieces if piece.first == first), None)
    if piece is None:
        raise Invalid("This line no longer exists. Load the page again.")
    lines = section.block.value.split("\n")[first - 1 : last]
    opened: dict[str, Any] = {
        "first": first,
        "view": "who" if "who" in request.query_params else "edit",
        "text": "\n".join(lines),
        "next": local_path(request.query_params.get("next", "")),
        "value": _field_value(section, piece),
    }
    if opened["view"] == "who":
        opened |= await _source(request, first)
    if not is_part(request):
        return await show_block_page(request, opened=opened)
    return await render(
        request, "line.html", section=section, piece=piece, opened=opened, next=opened["next"]
    )


@_by_id.post("")
@router.post("")
async def change_line(request: Request) -> Response:
    """Save the text of a line or of a field, or with `forget` remove the line.

    In a user's block, later changes of other lines are kept, and a later change of the same line
    leads to the editor. In any other block, every later change leads to the editor.
    """
    address = await open_block(request)
    form = await form_of(request)
    path = local_path(form.get("next", "")) or address.page
    forgets = "forget" in form
    first, last = lines_named(form.get("forget") or form.get("lines", ""))
    version = form.get("version", "") or address.shown_version
    base = await _text_at(request, address, version)
    if any(name.startswith(FIELD) for name in form):
        text = await text_of_form(request, address, form, base)
    else:
        text = with_lines(base, first, last, None if forgets else form.get("text", ""))
    reason = "Forgot a line" if forgets else None
    try:
        saved = await _save(Api(request), address, text, version, reason)
    except RefusedByApi as refusal:
        if refusal.status not in _CHANGED:
            raise
        return await show_block_page(
            request, status=409, typed=text, is_edited=True, is_changed=True, words=""
        )
    notice = outcome_of(address, saved, "saved")
    if forgets and notice.endswith("was saved."):
        notice = "Forgotten. Agents do not read it any more; its history stays."
    return done(request, path, notice, undo=undo_address(address, saved))


async def _save(
    api: Api, address: BlockAddress, text: str, version: str, reason: str | None
) -> dict[str, Any]:
    saved: dict[str, Any]
    if address.owner.kind == "user":
        body = {"body": text, "message": reason, "version": version or None}
        saved = await api.ask("PUT", address.api, body)
    else:
        is_current = version == address.shown_version
        if_match = address.version if is_current else version
        saved = await api.ask("PATCH", address.api, {"value": text}, if_match=if_match)
    return saved


async def _text_at(request: Request, address: BlockAddress, version: str) -> str:
    """Return the block's text at the version that the page showed."""
    block = address.block
    if block is None:
        raise Invalid("This block was deleted. Load the page again.")
    if version == address.shown_version:
        return block.value

    def read(tx: Transaction) -> str | None:
        shown = history.get(tx, address.chain.id, version)
        return history.text_at(tx, address.chain.id, address.label, shown)

    text: str | None = await request.app.state.runtime.store.read(read)
    return block.value if text is None else text


async def _section(request: Request) -> MemorySection:
    scope = request.scope[REQUEST_SCOPE]
    path_params = request.path_params
    runtime = request.app.state.runtime
    schemas = schemas_in(runtime.settings.data_dir)

    def read(tx: Transaction) -> MemorySection | None:
        address = find_block(tx, scope, path_params)
        if address.block is None:
            return None
        return section_of(
            address.block,
            address.owner,
            schemas,
            rights=rights_at(scope, address),
            is_self=address.owner.id == scope.user_id,
            most=MOST_ON_PAGE,
        )

    section: MemorySection | None = await runtime.store.read(read)
    if section is None:
        raise Invalid("This block was deleted. Load the page again.")
    return section


async def _source(request: Request, line: int) -> dict[str, Any]:
    """Return the version that brought a line, and the message that led to that version."""
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    blame = await read_blame(request)
    blamed = blame.lines(line - 1, line)[0]
    source = await store.read(lambda tx: queries.source_of_run(tx, scope, blamed.version.run_id))
    return {"version": blamed.version, "or_earlier": blamed.or_earlier, "source": source}


def _field_value(section: MemorySection, piece: TextPiece) -> dict[str, Any] | None:
    """Return the field of a piece with the schema, for its form; None for free text."""
    if section.schema is None or not piece.field:
        return None
    return {
        "field": next(field for field in section.schema.fields if field.name == piece.field),
        "text": piece.text,
    }


router.routes += _by_id.routes
