"""The page of the audit log, for administrators."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, render

router = Pages("/ui/audit-log", scope="users")
_ROWS_PER_PAGE = 50
_FILTERS = ("user_id", "action", "from", "to", "refused")


@router.get("")
@needs(ADMIN)
async def list_rows(request: Request) -> Response:
    """List the rows that match the form's filters, the newest first."""
    filters = {name: request.query_params.get(name) or None for name in _FILTERS}
    # One more row than the page shows is read, to see whether there is another page.
    rows = await Api(request).get(
        "/v1/audit-log",
        limit=_ROWS_PER_PAGE + 1,
        after=request.query_params.get("after"),
        **filters,
    )
    has_more = len(rows) > _ROWS_PER_PAGE
    rows = rows[:_ROWS_PER_PAGE]
    if has_more:
        older = address_of("/ui/audit-log", **filters, after=rows[-1]["id"])
    else:
        older = ""
    return await render(
        request,
        "operations.audit_log/rows.html",
        rows=rows,
        filters=filters,
        older=older,
        export=address_of("/v1/audit-log/export", **filters),
    )
