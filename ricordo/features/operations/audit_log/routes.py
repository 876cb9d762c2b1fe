"""The audit log over HTTP: listed by filters, and exported as JSON lines; for administrators."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from typing import Annotated

import orjson
from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import Json, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.clock import parse_date
from ricordo.domain.scope import ADMIN
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
    """A row of the audit log. `person` and `on_behalf_of` are pseudonyms; of a person who was erased all else is null."""

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
        str | None, Query(description="Only what this user did, or others for them: id or name.")
    ] = None
    action: Annotated[
        str | None, Query(max_length=200, description="A part of the method and route.")
    ] = None
    since: Annotated[
        str | None, Query(alias="from", description="First day or time, UTC without a zone.")
    ] = None
    until: Annotated[str | None, Query(alias="to", description="Last day or time.")] = None
    refused: Annotated[bool, Query(description="Only requests that were refused.")] = False

    def asked(self, context: RequestContext) -> AuditFilter:
        """Return the filter; the call is narrowed to the user already. Raises Forbidden for all but administrators, Invalid."""
        if context.scope.role != "admin":
            raise Forbidden(
                "Only administrators may read the audit log. Use a key with the role admin."
            )
        since = None if self.since is None else parse_date(self.since, UTC, name="from")
        until = None if self.until is None else parse_date(self.until, UTC, name="to", end=True)
        return AuditFilter(
            context.scope.subject_id if self.user_id else None,
            self.action,
            since,
            until,
            self.refused,
        )


Asked = Annotated[AuditParameters, Depends()]


@router.get("", response_model=list[AuditRowResponse])
@needs(ADMIN)
def list_rows(tx: Transaction, context: RequestContext, paging: Paged, asked: Asked) -> list[Json]:
    """Return who changed what in the organization and who was refused, the newest first."""
    found = queries.page(tx, context.scope.organization_id, paging.page(), asked.asked(context))
    return [exported(row) for row in found]


@router.get("/export", response_class=StreamingResponse, responses=_LINES)
@needs(ADMIN)
async def export(context: RequestContext, asked: Asked) -> StreamingResponse:
    """Return all rows as JSON lines, the oldest first."""
    store, page = context.store, Page(limit=queries.AT_ONCE, order="asc")
    read = partial(
        queries.page, organization_id=context.scope.organization_id, asked=asked.asked(context)
    )
    # What is wrong with the request is found before the answer begins.
    first = await store.read(partial(read, wanted=page))

    async def lines() -> AsyncIterator[bytes]:
        rows = first
        while rows:
            yield b"".join(orjson.dumps(exported(row)) + b"\n" for row in rows)
            rows = await store.read(partial(read, wanted=replace(page, after=rows[-1]["id"])))

    headers = {"content-disposition": 'attachment; filename="audit-log.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
