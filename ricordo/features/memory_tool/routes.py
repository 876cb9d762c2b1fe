"""`POST /v1/users/{user_id}/memory-tool`: runs one command of Anthropic's memory tool."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ricordo.api.call import RequestContext
from ricordo.api.models.base import RequestModel, ResponseModel
from ricordo.api.routing import Routes
from ricordo.domain.scope import Actor
from ricordo.errors import RicordoError
from ricordo.features.memory_tool.commands import CommandResult, Directory
from ricordo.memory import user_memory
from ricordo.memory.proposals import expiry_of
from ricordo.memory.submission import Submission
from ricordo.storage.engine.store import Overtaken, Transaction

router = Routes(prefix="/v1/users/{user_id}/memory-tool", tags=["users' memory"], scope="memory")

_Path = Annotated[str, Field(min_length=1, max_length=400)]
_Text = Annotated[str, Field(max_length=1_000_000)]


class MemoryToolRequest(RequestModel):
    """The input of a `tool_use` block of the tool `memory_20250818`, as the model wrote it.

    Source of the format: Anthropic's documentation of the memory tool.
    """

    command: Literal["view", "create", "str_replace", "insert", "delete", "rename"]
    path: _Path | None = None
    view_range: list[int] | None = Field(None, max_length=2)
    file_text: _Text | None = None
    old_str: _Text | None = None
    new_str: _Text | None = None
    insert_line: int | None = None
    insert_text: _Text | None = None
    old_path: _Path | None = None
    new_path: _Path | None = None


class MemoryToolResponse(ResponseModel):
    """The result for the model.

    `content` and `is_error` belong in the `tool_result` block. `proposal_ids` are the changes that
    wait for the user's decision.
    """

    content: str
    is_error: bool
    proposal_ids: list[str]


class _CommandFailed(Exception):
    """Ends the transaction of a refused command, so that nothing of it is stored."""


@router.post("", response_model=MemoryToolResponse)
async def run_command(
    context: RequestContext, user_id: str, body: MemoryToolRequest
) -> dict[str, Any]:
    """Run one command of Anthropic's memory tool on the user's blocks.

    The program counts as a service, whatever its key. So policies apply, and a change that the user
    wants to decide on waits. If the command is refused, the answer has `is_error`.
    """
    arguments = body.model_dump(exclude={"command"}, exclude_none=True)

    def work(tx: Transaction) -> CommandResult:
        memory = user_memory.open_memory(tx, context.scope, user_id, makes=True)
        author = Actor(
            "service",
            context.scope.key_id or "memory-tool",
            f"a program with a memory tool for {memory.user.name}",
        )
        edit = Submission(author, expires_after=expiry_of(context.runtime.settings))
        try:
            return Directory(tx, memory, edit).run(body.command, arguments)
        except Overtaken:
            raise
        except RicordoError as error:
            raise _CommandFailed(str(error)) from error

    try:
        result = await context.store.write(work)
    except _CommandFailed as failed:
        result = CommandResult(f"Error: {failed}", is_error=True)
    return MemoryToolResponse.of(result)
