"""Response models of the folders and files that an agent has."""

from collections.abc import Sequence
from typing import Annotated

from ricordo.api.models.base import From, Json, ResponseModel
from ricordo.api.models.models import EmbeddingConfigResponse
from ricordo.domain.agent import PromptDirectory


class AttachedFolderResponse(ResponseModel):
    """A folder that the agent has."""

    id: str
    name: str
    description: str | None
    instructions: str | None
    embedding_config: EmbeddingConfigResponse | None


class FileBlockResponse(ResponseModel):
    """A file of the agent's folders that its prompt names, with the lines that it shows."""

    file_id: Annotated[str, From("id")]
    source_id: str
    label: Annotated[str, From("name")]
    value: Annotated[str, From("content")]
    limit: int
    is_open: bool


def file_blocks(directories: Sequence[PromptDirectory]) -> list[Json]:
    """Return the files that the prompt names, as they are told."""
    return [
        FileBlockResponse.of(file, source_id=one.id) for one in directories for file in one.files
    ]
