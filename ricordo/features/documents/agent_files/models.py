"""The form for an import, with the field names of all clients."""

import orjson
from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from ricordo.errors import Invalid
from ricordo.features.documents.agent_files.specs import ImportOptions


class ImportForm(BaseModel):
    """An agent file with the options of its import.

    Some fields are names that older clients use for another field.
    """

    model_config = ConfigDict(extra="allow")

    file: UploadFile
    append_copy_suffix: bool = Field(True, description='Add "_copy" to the names in the file.')
    override_existing_tools: bool = Field(
        True, description="Replace the source of existing custom tools that have the same names."
    )
    strip_messages: bool = Field(
        False, description="Leave the messages and the further conversations out."
    )
    schedules: bool = Field(
        False, description="Import schedules too. They then send messages to the agent."
    )
    name: str | None = None
    override_name: str | None = None
    model: str | None = Field(None, description="Handle of the model to use instead of the file's.")
    override_model_handle: str | None = None
    embedding: str | None = None
    override_embedding_handle: str | None = None
    secrets: str | None = Field(None, description="Values of secrets as a JSON object.")
    env_vars_json: str | None = None
    project_id: str | None = Field(None, description="No effect: everything is in one project.")

    def options(self, embedding: str | None) -> ImportOptions:
        """Return the options of the import. Raises Invalid.

        `embedding` is the handle from the request's header.
        """
        return ImportOptions(
            name=self.name or self.override_name,
            suffix="_copy" if self.append_copy_suffix else "",
            overrides_tools=self.override_existing_tools,
            strips_messages=self.strip_messages,
            model=self.model or self.override_model_handle,
            embedding=self.embedding or self.override_embedding_handle or embedding,
            secrets=_secrets(self.secrets or self.env_vars_json),
            takes_schedules=self.schedules,
        )


def _secrets(text: str | None) -> dict[str, str]:
    try:
        secrets = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise Invalid(f"The secrets are not a JSON object: {error}") from error
    if not isinstance(secrets, dict) or not all(
        isinstance(value, str) for value in secrets.values()
    ):
        raise Invalid("The secrets are not a JSON object of texts by name.")
    return secrets
