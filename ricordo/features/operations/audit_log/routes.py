"""The audit log over HTTP, for administrators: lists by filters, and JSON lines."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from typing import Annotated

import orjson
from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import parse_date
from ricordo.domain.scope import ADMIN
from ricordo.domain.text import Json
from ricordo.errors import Forbidden
from ricordo.features.operations.audit_log import queries
from ricordo.features.operations.audit_log.queries import AuditFilter
from ricordo.features.operations.audit_log.service import exported
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_LINES: dict[int | str, Json] = {
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}
router = Routes(prefix="/v1/audit-log", tags=["audit"], scope="users")


class AuditRowResponse(ResponseModel):
    """A row of the audit log.

    `person` and `on_behalf_of` are pseudonyms. For an erased person, the id, name and address are
    null.
    """

    id: str
    organization_id: str
    number: int
    created_at: Timestamp
    person: str | None
    user_id: str | None
    user: str | None
    address: str | None
    on_behalf_of: str | None
    for_user_id: str | None
    for_user: str | None
    key_id: str | None
    role: str | None
    action: str
    objects: Json
    status: int
    repeats: int
    previous: str


@dataclass(frozen=True, slots=True)
class AuditParameters:
    """The query parameters of the audit log."""

    user_id: Annotated[
        str | None, Query(description="Only actions by or for this user, by id or name.")
    ] = None
    action: Annotated[
        str | None, Query(max_length=200, description="A part of the method and route.")
    ] = None
    since: Annotated[
        str | None, Query(alias="from", description="First day or time, UTC without a zone.")
    ] = None
    until: Annotated[str | None, Query(alias="to", description="Last day or time.")] = None
    refused: Annotated[bool, Query(description="Only requests that were refused.")] = False

    def row_filter(self, context: RequestContext) -> AuditFilter:
        """Return the filter of rows.

        The parameter `user_id` has already made that user the subject of the request's scope.
        Raises Invalid, and Forbidden for all but administrators.
        """
        if context.scope.role != "admin":
            raise Forbidden(
                "Only administrators may read the audit log. Use a key with the role admin."
            )
        if self.since is None:
            since = None
        else:
            since = parse_date(self.since, UTC, name="from")
        if self.until is None:
            until = None
        else:
            until = parse_date(self.until, UTC, name="to", end=True)
        return AuditFilter(
            user_id=context.scope.subject_id if self.user_id else None,
            action=self.action,
            since=since,
            until=until,
            refused=self.refused,
        )


Parameters = Annotated[AuditParameters, Depends()]


@router.get("", response_model=list[AuditRowResponse])
@needs(ADMIN)
def list_rows(
    tx: Transaction, context: RequestContext, paging: Paged, parameters: Parameters
) -> list[Json]:
    """List the organization's changes and refusals, by default the newest first."""
    rows = queries.page(
        tx, context.scope.organization_id, paging.page(), parameters.row_filter(context)
    )
    return [exported(row) for row in rows]


@router.get("/export", response_class=StreamingResponse, responses=_LINES)
@needs(ADMIN)
async def export(context: RequestContext, parameters: Parameters) -> StreamingResponse:
    """Return all rows as JSON lines, the oldest first."""
    store = context.store
    page = Page(limit=queries.AT_ONCE, order="asc")
    read = partial(
        queries.page,
        organization_id=context.scope.organization_id,
        row_filter=parameters.row_filter(context),
    )
    # Read before the answer begins, so that a wrong request gets its error status.
    first_rows = await store.read(partial(read, page=page))

    async def lines() -> AsyncIterator[bytes]:
        rows = first_rows
        while rows:
            yield b"".join(orjson.dumps(exported(row)) + b"\n" for row in rows)
            rows = await store.read(partial(read, page=replace(page, after=rows[-1]["id"])))

    headers = {"content-disposition": 'attachment; filename="audit-log.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
