"""The variables of an organization, by the routes of sandbox configurations.

Clients of the retired Letta V1 server keep variables in such a configuration. Here each
organization has exactly one, which the operator sets up.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal
from uuid import NAMESPACE_URL, uuid5

from fastapi import Query, Response
from pydantic import Field

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.agents import SecretName
from ricordo.api.models.base import AuthorFields, From, RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, NotFound
from ricordo.features.custom_tools.source import queries
from ricordo.features.custom_tools.source.queries import Variable
from ricordo.secret import Secret
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/sandbox-config", tags=["tools"], scope="tools")
_OPERATORS = (
    "The sandbox is set up by the operator's settings (RICORDO_SANDBOX), and packages by each "
    "tool's pip_requirements."
)


class VariableRequest(RequestModel):
    """A variable to store."""

    key: SecretName
    value: str = Field(max_length=20_000, description="Stored encrypted, and never shown.")
    description: str | None = Field(None, max_length=2_000)


class VariableUpdate(RequestModel):
    """Changes of a variable; an omitted field keeps its value."""

    key: SecretName | None = None
    value: str | None = Field(None, max_length=20_000)
    description: str | None = Field(None, max_length=2_000)


class VariableResponse(AuthorFields):
    """A variable without its value, which is never shown."""

    id: str
    key: Annotated[str, From("name")]
    value: Literal[""] = ""
    description: str | None
    sandbox_config_id: str
    organization_id: str
    created_at: Timestamp
    updated_at: Timestamp


VariableRequest.take_back(VariableResponse)
VariableUpdate.take_back(VariableResponse)


class LocalConfigRequest(RequestModel):
    """A local sandbox in the form of clients; its fields have no effect here."""

    ignored: ClassVar = dict.fromkeys(
        ("use_venv", "venv_name", "force_create_venv"), "Environments are made as needed."
    )
    unsupported: ClassVar = ("sandbox_dir", "pip_requirements")
    reasons: ClassVar = dict.fromkeys(unsupported, _OPERATORS)

    sandbox_dir: str | None = Field(None, max_length=2_000)
    pip_requirements: list[Json] | None = Field(None, max_length=100)


class SandboxConfigRequest(RequestModel):
    """A sandbox configuration in the form of clients."""

    config: LocalConfigRequest | None = None


class SandboxConfigResponse(ResponseModel):
    """The sandbox of the organization."""

    id: str
    type: Literal["local"] = "local"
    organization_id: str
    config: Json


def _config(scope: Scope) -> Json:
    id = f"sandbox-{uuid5(NAMESPACE_URL, scope.organization_id)}"
    return SandboxConfigResponse.of(None, id=id, organization_id=scope.organization_id, config={})


def _require(scope: Scope, id: str) -> None:
    if id != _config(scope)["id"]:
        raise NotFound(f"Sandbox config with ID {id} not found")


@router.get("/", response_model=list[SandboxConfigResponse])
async def list_configs(
    context: RequestContext,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,  # noqa: ARG001
    after: str | None = None,
    sandbox_type: Literal["local", "e2b", "modal"] | None = None,
) -> list[Json]:
    """Return the organization's sandbox in a list."""
    if after or sandbox_type in ("e2b", "modal"):
        return []
    return [_config(context.scope)]


@router.post("/", response_model=SandboxConfigResponse)
async def create_config(context: RequestContext, body: SandboxConfigRequest) -> Json:
    """Return the organization's sandbox, which always exists."""
    (body.config or body).refuse_unsupported()
    return _config(context.scope)


@router.post("/local/default", response_model=SandboxConfigResponse)
async def create_local(context: RequestContext) -> Json:
    """Return the organization's sandbox, which always exists."""
    return _config(context.scope)


@router.post("/local", response_model=SandboxConfigResponse)
async def create_custom(context: RequestContext, body: LocalConfigRequest) -> Json:
    """Return the organization's sandbox, if the configuration asks for nothing else."""
    body.refuse_unsupported()
    return _config(context.scope)


@router.post("/e2b/default", response_model=SandboxConfigResponse)
async def create_e2b(context: RequestContext) -> Json:  # noqa: ARG001
    """Refuse, because tools run in this server's sandbox."""
    raise Conflict(_OPERATORS)


@router.post("/local/recreate-venv", response_model=SandboxConfigResponse)
async def recreate(context: RequestContext) -> Json:  # noqa: ARG001
    """Refuse, because environments are created and removed automatically."""
    raise Conflict(_OPERATORS)


@router.patch("/environment-variable/{variable_id}", response_model=VariableResponse)
async def modify(context: RequestContext, variable_id: str, body: VariableUpdate) -> Json:
    """Change a variable; tools get the new value from the next call on."""
    sealed: str | None = None
    if body.value is not None:
        sealed = Secret(context.runtime.settings.data_dir).encrypt(body.value)

    def change(tx: Transaction) -> Variable:
        variable = queries.get_for_change(tx, context.scope, variable_id)
        if body.key:
            variable = replace(variable, name=body.key)
        if sealed:
            variable = replace(variable, sealed=sealed)
        if "description" in body.model_fields_set:
            variable = replace(variable, description=body.description)
        return queries.change(tx, context.scope, variable)

    return _json(context, await context.store.write(change))


@router.delete("/environment-variable/{variable_id}", status_code=204, response_class=Response)
def delete_variable(tx: Transaction, context: RequestContext, variable_id: str) -> Response:
    """Delete a variable."""
    queries.remove(tx, context.scope, variable_id)
    return Response(status_code=204)


@router.patch("/{sandbox_config_id}", response_model=SandboxConfigResponse)
async def modify_config(
    context: RequestContext, sandbox_config_id: str, body: SandboxConfigRequest
) -> Json:
    """Return the organization's sandbox, if the change asks for nothing else."""
    _require(context.scope, sandbox_config_id)
    (body.config or body).refuse_unsupported()
    return _config(context.scope)


@router.delete("/{sandbox_config_id}", status_code=204, response_class=Response)
async def delete_config(context: RequestContext, sandbox_config_id: str) -> Response:
    """Refuse: the organization's sandbox always exists."""
    _require(context.scope, sandbox_config_id)
    raise Conflict(f"{_OPERATORS} Delete its variables one by one.")


@router.post("/{sandbox_config_id}/environment-variable", response_model=VariableResponse)
async def create(context: RequestContext, sandbox_config_id: str, body: VariableRequest) -> Json:
    """Store a variable for all tools of the organization.

    A secret of an agent with the same name takes precedence.
    """
    _require(context.scope, sandbox_config_id)
    sealed = Secret(context.runtime.settings.data_dir).encrypt(body.value)
    new = Variable("", context.scope.organization_id, body.key, sealed, body.description)
    return _json(
        context,
        await context.store.write(partial(queries.create, scope=context.scope, variable=new)),
    )


@router.get("/{sandbox_config_id}/environment-variable", response_model=list[VariableResponse])
@needs("tools:write")
def list_variables(
    tx: Transaction, context: RequestContext, sandbox_config_id: str, paging: Paged
) -> list[Json]:
    """Return the variables without their values."""
    _require(context.scope, sandbox_config_id)
    return [
        _json(context, variable)
        for variable in queries.page(tx, context.scope, paging.page(default=1000))
    ]


def _json(context: RequestContext, variable: Variable) -> Json:
    return VariableResponse.of(variable, sandbox_config_id=_config(context.scope)["id"])
