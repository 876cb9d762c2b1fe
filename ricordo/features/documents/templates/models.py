"""Requests and responses of templates, in the forms of `letta-client`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ricordo.agents.request import (
    NewMessage,
)
from ricordo.api.messages import new_message
from ricordo.api.models.agents import Secrets
from ricordo.api.models.base import Items, RequestModel, ResponseModel, Tags
from ricordo.api.models.turns import MessageRequest
from ricordo.domain.clock import stamp
from ricordo.domain.text import Json
from ricordo.features.documents.templates.queries import Template

# There is only one project, but clients expect it to have a name.
PROJECT = "default"
AgentFile = Annotated[
    dict[str, Any], Field(description="The answer of GET /v1/agents/{agent_id}/export.")
]
OverridesTools = Annotated[
    bool, Field(description="Replace the source of existing custom tools that have the same names.")
]
Name = Annotated[str | None, Field(description="By default derived from the agent's name.")]


class AgentTemplateRequest(RequestModel):
    """A new template. It follows an agent."""

    type: Literal["agent"]
    agent_id: str
    name: Name = None


class FileTemplateRequest(RequestModel):
    """A new template from an agent file."""

    type: Literal["agent_file"]
    agent_file: AgentFile
    name: Name = None
    update_existing_tools: OverridesTools = False


TemplateRequest = Annotated[AgentTemplateRequest | FileTemplateRequest, Field(discriminator="type")]


class TemplateUpdateRequest(RequestModel):
    """New content for a template."""

    agent_file_json: AgentFile
    save_existing_changes: bool = Field(
        False, description="First save the current content as a version, if it changed."
    )
    update_existing_tools: OverridesTools = False


class TemplateSaveRequest(RequestModel):
    """Options for saving a version, and for the agents of the template."""

    message: str | None = Field(None, max_length=1000)
    migrate_agents: bool = Field(
        False, description="Update all agents of the template to the new version."
    )
    block_reconciliation_strategy: Literal["reconcile-all", "preserve-deleted"] = Field(
        "preserve-deleted",
        description="An agent's blocks that the version does not have: `preserve-deleted` keeps "
        "them, `reconcile-all` removes them.",
    )
    preserve_core_memories_on_migration: bool = Field(
        False, description="Agents keep the values of their blocks."
    )
    preserve_environment_variables_on_migration: bool = Field(
        False, description="Agents keep all their secrets."
    )
    preserve_sources_on_migration: bool = Field(False, description="Agents keep all their folders.")


class TemplateRollbackRequest(RequestModel):
    """The saved version to go back to."""

    version: str = Field(description='A number such as "1", or "latest".')


class TemplateAgentsRequest(RequestModel):
    """An agent to create from a template."""

    agent_name: str | None = Field(None, max_length=256)
    identity_ids: Items[str] = Field([], description="Only these users may use the agent.")
    initial_message_sequence: Items[MessageRequest] | None = None
    memory_variables: dict[str, str] = Field(
        {}, description="Values for `{{name}}` in the values of blocks."
    )
    tags: Tags = Field([])
    tool_variables: Secrets = Field({}, description="Values of the agent's secrets.")

    @property
    def beginning(self) -> tuple[NewMessage, ...] | None:
        """The first messages of the agent; None for the usual ones of its agent type."""
        if self.initial_message_sequence is None:
            return None
        return tuple(map(new_message, self.initial_message_sequence))


class TemplateResponse(ResponseModel):
    """A template. `template_deployment_slug` names its newest version."""

    id: str
    name: str
    latest_version: str
    project_id: str = PROJECT
    project_slug: str = PROJECT
    template_deployment_slug: str
    updated_at: str
    description: str | None

    @classmethod
    def from_template(cls, template: Template) -> Json:
        """Return the response for a template.

        Args:
            template: The stored template.
        """
        slug = f"{PROJECT}/{template.name}:{template.version}"
        return cls.of(
            template,
            latest_version=str(template.version),
            template_deployment_slug=slug,
            updated_at=stamp(template.updated_at),
        )


class TemplateChangeResponse(ResponseModel):
    """The outcome of a change of a template, in a sentence."""

    success: bool = True
    message: str


class TemplateAgentsResponse(ResponseModel):
    """The created agents, which together form one deployment."""

    agent_ids: list[str]
    deployment_id: str
    group_id: str | None = None
