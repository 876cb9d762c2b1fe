"""MCP servers that run as programs in the sandbox, over standard input and output."""

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ricordo.errors import Forbidden, Invalid
from ricordo.features.mcp.client.options import McpSettings
from ricordo.features.mcp.client.sessions import ANSWER_BYTES, Open, Traffic
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits

# Without `seconds`, a program does not count for RICORDO_SANDBOX_CALLS. The session that uses the
# program ends it, and the number of sessions is limited.
_LIMITS = SandboxLimits(
    memory_mb=1024,
    cpu_seconds=300,
    seconds=0,
    processes=64,
    output_kb=16 * ANSWER_BYTES // 1024,
)
_PIECE = 65_536  # bytes


def program_of(mcp_settings: McpSettings, command: str | None) -> str:
    """Return the path of the program.

    Args:
        mcp_settings: The settings with the folders of allowed programs.
        command: A path, or a name that is searched in these folders; None is never found.

    Raises:
        Forbidden: if the operator does not allow it.
        Invalid: if it does not exist.
    """
    folders = mcp_settings.folders
    if not folders:
        raise Forbidden(
            "This server may not start programs as MCP servers. The operator can allow it: "
            "RICORDO_MCP_COMMANDS names the folders of allowed programs, such as /usr. Or send "
            "the server_url of a running server."
        )
    search_path = os.pathsep.join(
        str(folder / inner) for folder in folders for inner in ("bin", "")
    )
    program: str | None
    if command and Path(command).is_absolute():
        program = os.path.normpath(command)
    else:
        program = shutil.which(command or "", path=search_path)
    if not program or not os.access(program, os.X_OK):
        raise Invalid(
            f"There is no program {str(command)[:200]} in the folders of RICORDO_MCP_COMMANDS."
        )
    if not any(Path(program).is_relative_to(folder) for folder in folders):
        raise Forbidden(
            f"{program[:200]} is in none of the folders of RICORDO_MCP_COMMANDS, so it is not "
            "started."
        )
    return program


def over_stdio(
    sandbox: Sandbox,
    mcp_settings: McpSettings,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Open:
    """Return a function that starts the program and opens its streams.

    The program ends with the streams.

    Args:
        sandbox: The sandbox in which the program runs.
        mcp_settings: The settings with the folders of allowed programs, which are readable for it.
        config: The server's `command`, and its arguments as `args`.
        environment: The environment variables of the program, with their secret values.

    Raises:
        Forbidden, Invalid: as `program_of` does.
    """
    call = SandboxCall(
        argv=(program_of(mcp_settings, config.get("command")), *config.get("args", ())),
        environment=dict(environment),
        # Skip a folder that was removed since the start of this server.
        readable=tuple(folder for folder in mcp_settings.folders if folder.is_dir()),
        has_network=SandboxSettings().sandbox_network,
        limits=_LIMITS,
    )

    @asynccontextmanager
    async def streams(traffic: Traffic) -> AsyncIterator[Any]:
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        incoming, read = anyio.create_memory_object_stream[Any](0)
        write, outgoing = anyio.create_memory_object_stream[Any](0)

        async def receive(stdout: Any) -> None:
            rest = b""
            async with incoming:
                async for piece in traffic.count(_pieces(stdout)):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in filter(None, map(bytes.strip, lines)):
                        try:
                            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        except ValueError:
                            continue  # many programs write their log to standard output
                        await incoming.send(SessionMessage(message))

        async def send(stdin: Any) -> None:
            # A program that has ended accepts no input; the reader of its output reports the end.
            async with outgoing:
                with suppress(ConnectionError, RuntimeError):
                    await pass_on(stdin)

        async def pass_on(stdin: Any) -> None:
            async for envelope in outgoing:
                stdin.write(
                    envelope.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                    + b"\n"
                )
                await stdin.drain()

        async with sandbox.open(call) as process, anyio.create_task_group() as tasks:
            tasks.start_soon(receive, process.stdout)
            tasks.start_soon(send, process.stdin)
            tasks.start_soon(_drain, process.stderr)
            try:
                yield read, write
            finally:
                tasks.cancel_scope.cancel()

    return streams


async def _pieces(stream: Any) -> AsyncIterator[bytes]:
    while piece := await stream.read(_PIECE):
        yield piece


async def _drain(stream: Any) -> None:
    """Read and drop a program's log, since a full pipe would block the program."""
    async for _ in _pieces(stream):
        pass
