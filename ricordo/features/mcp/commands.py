"""MCP servers that are programs of this machine: they run in the sandbox, and speak over standard input and output."""

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ricordo.errors import Forbidden, Invalid
from ricordo.features.mcp.options import McpSettings
from ricordo.features.mcp.sessions import ANSWER_BYTES, LIFE_SECONDS, Open, Traffic
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits

_LIMITS = SandboxLimits(
    memory_mb=1024,
    cpu_seconds=300,
    seconds=int(LIFE_SECONDS) + 60,
    processes=64,
    output_kb=16 * ANSWER_BYTES // 1024,
)
_PIECE = 65_536  # bytes


def program_of(options: McpSettings, command: str | None) -> str:
    """Return the path of the program. Raises Forbidden where the operator does not allow it, Invalid where it is not there."""
    folders = options.folders
    if not folders:
        raise Forbidden(
            "This server starts no programs as MCP servers. The operator can allow it with RICORDO_MCP_COMMANDS, which names the "
            "folders of the programs: /usr for those of the system. Or give the server_url of a server that runs already."
        )
    places = os.pathsep.join(str(folder / inner) for folder in folders for inner in ("bin", ""))
    found = (
        os.path.normpath(command)
        if command and Path(command).is_absolute()
        else shutil.which(command or "", path=places)
    )
    if not found or not os.access(found, os.X_OK):
        raise Invalid(
            f"There is no program {str(command)[:200]} in the folders of RICORDO_MCP_COMMANDS."
        )
    if not any(Path(found).is_relative_to(folder) for folder in folders):
        raise Forbidden(
            f"{found[:200]} lies in none of the folders of RICORDO_MCP_COMMANDS, so it is not started."
        )
    return found


def over_stdio(
    sandbox: Sandbox,
    options: McpSettings,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Open:
    """Return what starts the program and opens its streams; it ends with them."""
    call = SandboxCall(
        argv=(program_of(options, config.get("command")), *config.get("args", ())),
        environment=dict(environment),
        readable=tuple(
            folder for folder in options.folders if folder.is_dir()
        ),  # one may have vanished since
        has_network=SandboxSettings().sandbox_network,
        limits=_LIMITS,
    )

    @asynccontextmanager
    async def streams(traffic: Traffic) -> AsyncIterator[Any]:
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        to_us, read = anyio.create_memory_object_stream[Any](0)
        write, from_us = anyio.create_memory_object_stream[Any](0)

        async def receive(stdout: Any) -> None:
            rest = b""
            async with to_us:
                async for data in traffic.count(_pieces(stdout)):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in filter(None, map(bytes.strip, lines)):
                        try:
                            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        except ValueError:
                            continue  # programs that write their log to standard output are many
                        await to_us.send(SessionMessage(message))

        async def send(stdin: Any) -> None:
            # One that has ended takes nothing; that it has, the reader finds out.
            async with from_us:
                with suppress(ConnectionError, RuntimeError):
                    await pass_on(stdin)

        async def pass_on(stdin: Any) -> None:
            async for sent in from_us:
                stdin.write(
                    sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
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
    while data := await stream.read(_PIECE):
        yield data


async def _drain(stream: Any) -> None:
    """Read what a program says about itself, which would wait for a reader for ever."""
    async for _ in _pieces(stream):
        pass
