"""Response models of an agent's folders and files."""

from collections.abc import Sequence
from typing import Annotated

from ricordo.api.models.base import From, ResponseModel
from ricordo.api.models.models import EmbeddingConfigResponse
from ricordo.domain.agent import PromptDirectory
from ricordo.domain.text import Json


class AttachedFolderResponse(ResponseModel):
    """A folder attached to the agent."""

    id: str
    name: str
    description: str | None
    instructions: str | None
    embedding_config: EmbeddingConfigResponse | None


class FileBlockResponse(ResponseModel):
    """A file in the agent's prompt, with the lines that are shown."""

    file_id: Annotated[str, From("id")]
    source_id: str
    label: Annotated[str, From("name")]
    value: Annotated[str, From("content")]
    limit: int
    is_open: bool


def file_blocks(directories: Sequence[PromptDirectory]) -> list[Json]:
    """Return the files in the prompt as answers."""
    return [
        FileBlockResponse.of(file, source_id=directory.id)
        for directory in directories
        for file in directory.files
    ]
