"""The page of the audit log, for administrators."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, render

router = Pages("/ui/audit-log", scope="users")
_PAGE = 50
_FILTERS = ("user_id", "action", "from", "to", "refused")


@router.get("")
@needs(ADMIN)
async def list_rows(request: Request) -> Response:
    """The rows, the newest first, by the filters of the form."""
    asked = {name: request.query_params.get(name) or None for name in _FILTERS}
    after = request.query_params.get("after")
    rows = await Api(request).get("/v1/audit-log", limit=_PAGE + 1, after=after, **asked)
    older = (
        address_of("/ui/audit-log", **asked, after=rows[_PAGE - 1]["id"]) if rows[_PAGE:] else ""
    )
    export = address_of("/v1/audit-log/export", **asked)
    return await render(
        request,
        "operations.audit_log/rows.html",
        rows=rows[:_PAGE],
        asked=asked,
        older=older,
        export=export,
    )
