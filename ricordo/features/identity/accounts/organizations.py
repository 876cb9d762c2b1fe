"""Organizations over HTTP, for the operator.

Each is separate, with its own users, keys, agents and tools.
"""

from pydantic import Field

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import ADMIN, Organization, Scope
from ricordo.features.identity.accounts.keys import require_operator
from ricordo.storage import organizations
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import sync_tools

router = Routes(prefix="/v1/organizations", tags=["accounts"])


class OrganizationRequest(RequestModel):
    """A new organization."""

    name: str = Field(max_length=255)


class OrganizationResponse(ResponseModel):
    """An organization."""

    id: str
    name: str
    created_at: Timestamp


@router.get("/", response_model=list[OrganizationResponse])
@needs(ADMIN)
def list_organizations(
    tx: Transaction, context: RequestContext, paging: Paged
) -> list[Organization]:
    """Return the organizations of this server, by default the newest first."""
    require_operator(context.scope)
    return organizations.page(tx, paging.page())


@router.post("/", response_model=OrganizationResponse)
@needs(ADMIN)
def create_organization(
    tx: Transaction, context: RequestContext, body: OrganizationRequest
) -> Organization:
    """Make an organization with the built-in tools.

    Its first key is created by `POST /v1/keys/` with the parameter `organization`.
    """
    require_operator(context.scope)
    organization = organizations.create(tx, body.name)
    sync_tools(tx, Scope(organization.id), context.runtime.toolbox)
    return organization
