"""Run code for an agent, alone or with the agent's tools as functions."""

import asyncio
import contextlib
from typing import Any, Literal

import orjson

from ricordo.domain.message import ToolReturnPart
from ricordo.errors import RicordoError, Unavailable, require_others_failure
from ricordo.features.custom_tools.source.javascript import node_command
from ricordo.sandbox.process import SandboxProcess, program_beside
from ricordo.sandbox.service import SandboxCall, SandboxLimits
from ricordo.tools.toolbox import ServerTool, ToolContext

_SECONDS = 120.0
_LIMITS = SandboxLimits(seconds=_SECONDS, cpu_seconds=60, output_kb=512)
_LONGEST_CODE = 200_000  # characters
_MOST_CALLS = 50  # calls of tools by one piece of code
_LEFT = "The code ended while a tool answered."
_SHOWN = 20_000  # characters of each stream
_OWN = ("run_code", "run_code_with_tools")


async def run_code(
    context: ToolContext, code: str, language: Literal["python", "js", "ts", "shell"] = "python"
) -> dict[str, Any]:
    """Run code in a sandbox without network, and return its output.

    Nothing is kept from one call to the next.

    Args:
        code: The code. In Python, the value of an expression at its end is printed too.
        language: python, js, ts or shell.
    """
    if language == "python":
        return await _run_python(context, code, {})
    sandbox = context.sandbox
    if language == "shell":
        call = SandboxCall(("sh", "code.sh"), files={"code.sh": _bytes(code)}, limits=_LIMITS)
    else:
        command, readable = await asyncio.to_thread(node_command, is_typed=language == "ts")
        name = f"code.m{language}"
        call = SandboxCall(
            (*command, name), files={name: _bytes(code)}, readable=readable, limits=_LIMITS
        )
    result = await sandbox.run(call)
    return _report(result.stdout, result.stderr, result.exit_code, result.reason)


async def run_code_with_tools(context: ToolContext, code: str) -> dict[str, Any]:
    """Run Python in a sandbox, with your tools as functions.

    Call them by their names, with their parameters. A tool that fails raises ToolError. Tools that
    need approval cannot be called.

    Args:
        code: The code. The value of an expression at its end is printed too.
    """
    tools = {
        tool.name: list(tool.json_schema.get("parameters", {}).get("properties", {}))
        for tool in context.state.tools
        if tool.name not in _OWN and tool.name.isidentifier()
    }
    return await _run_python(context, code, tools)


async def _run_python(
    context: ToolContext, code: str, tools: dict[str, list[str]]
) -> dict[str, Any]:
    request = orjson.dumps({"code": _bytes(code).decode(), "tools": tools}) + b"\n"
    sandbox = context.sandbox
    if not tools:
        result = await sandbox.run_python(program_beside(__file__), request, limits=_LIMITS)
        error = _error(result.answer.splitlines()[-1:] or [b""])
        return _report(result.stdout, result.stderr, result.exit_code, result.reason, error)
    try:
        async with (
            sandbox.open(SandboxCall(limits=_LIMITS), program_beside(__file__)) as process,
            asyncio.timeout(_SECONDS),
        ):
            return await _serve_calls(context, process, request, tools)
    except TimeoutError as error:
        raise Unavailable(
            f"The code was stopped: it ran for more than {_SECONDS:g} seconds."
        ) from error


async def _serve_calls(
    context: ToolContext, process: SandboxProcess, request: bytes, tools: dict[str, list[str]]
) -> dict[str, Any]:
    """Answer the code's calls of tools until the code ends.

    The code is untrusted, so each message is checked.
    """
    streams = [
        asyncio.create_task(_read(process, stream)) for stream in (process.stdout, process.stderr)
    ]
    error = None
    calls = 0
    try:
        process.stdin.write(request)
        while line := await process.answer.readline():
            message = _json(line)
            if "tool" not in message:
                error = _error([line])
                break
            calls += 1
            if calls > _MOST_CALLS:
                error = f"The code was stopped: it called tools more than {_MOST_CALLS} times."
                break
            async with process.waiting():
                tool_result = await _call_tool(context, message, tools)
            reply = orjson.dumps(tool_result) + b"\n"
            if process.stdin.is_closing():
                error = _LEFT
                break
            process.stdin.write(reply)
            await process.stdin.drain()
        else:
            error = (
                "The code ended early: it exited, or it was stopped because it used too much memory, "
                "processor time or disk."
            )
    except ValueError:  # the line is longer than the reader allows
        error = "The code was stopped: the arguments of one call have more than 64 kB."
    except ConnectionError:
        error = _LEFT
    finally:
        process.kill()
        stdout, stderr = await asyncio.gather(*streams)
    # The code may have ended by itself before the limit of output stopped it.
    if max(len(stdout), len(stderr)) >= _LIMITS.output_kb * 1024:
        error = f"The code was stopped: it wrote more than {_LIMITS.output_kb} kB of output."
    return _report(stdout, stderr, 0 if error is None else 1, "", error)


async def _call_tool(
    context: ToolContext, call: dict[str, Any], tools: dict[str, list[str]]
) -> dict[str, Any]:
    name = call.get("tool")
    arguments = call.get("arguments")
    if name not in tools or not isinstance(arguments, dict):
        return {
            "status": "error",
            "value": "There is no such tool, or the arguments are not an object.",
        }
    try:
        tool_return = await context.call_tool(str(name), arguments)
    except RicordoError as error:
        require_others_failure(error)
        return {"status": "error", "value": str(error)}
    return {"status": tool_return.status, "value": _value(tool_return)}


def _value(tool_return: ToolReturnPart) -> Any:
    if tool_return.status == "success":
        return tool_return.decoded()
    return tool_return.content


async def _read(process: SandboxProcess, stream: asyncio.StreamReader) -> bytes:
    """Return the stream's content; at the limit, the process is killed."""
    written = bytearray()
    while piece := await stream.read(1 << 16):
        written += piece[: _LIMITS.output_kb * 1024 - len(written)]
        if len(written) >= _LIMITS.output_kb * 1024:
            process.kill()
    return bytes(written)


def _bytes(code: str) -> bytes:
    if len(code) > _LONGEST_CODE:
        raise Unavailable(f"The code has more than {_LONGEST_CODE:,} characters. Run it in parts.")
    return code.encode("utf-8", "replace")


def _json(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(orjson.JSONDecodeError):
        if isinstance(message := orjson.loads(line), dict):
            return message
    return {}


def _error(lines: list[bytes]) -> str | None:
    """Return the error in the last line; None if the code ended without one.

    The code itself may have written the line, so it is checked.
    """
    last_message = _json(lines[0])
    if last_message.get("done") is not True:
        return "The code ended early."
    error = last_message.get("error")
    if error is None or isinstance(error, str):
        return error
    return "The code failed."


def _report(
    stdout: bytes, stderr: bytes, exit_code: int, reason: str, error: str | None = None
) -> dict[str, Any]:
    """Return the tool's result for the agent, without empty parts."""
    report: dict[str, Any] = {"status": "error" if error or reason or exit_code else "success"}
    for name, stream in (("stdout", stdout), ("stderr", stderr)):
        if stream.strip():
            report[name] = _shown(stream.decode("utf-8", "replace"))
    if exit_code and not reason:
        report["exit_code"] = exit_code
    if reason or error:
        report["error"] = reason or error
    return report


def _shown(text: str) -> str:
    text = text.rstrip("\n")
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}… [cut: {len(text)} characters]"


_TRAITS: Any = {"acts_outside": True, "brings_untrusted": True}
TOOLS = (
    ServerTool(run_code, "letta_builtin", **_TRAITS),
    ServerTool(run_code_with_tools, "letta_builtin", **_TRAITS),
)
