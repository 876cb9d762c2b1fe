"""Run calls of tools made from source code in the sandbox."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.tool import Tool, ToolType
from ricordo.errors import Invalid, Unavailable, Unsupported
from ricordo.features.custom_tools.source import queries
from ricordo.features.custom_tools.source.environments import KIND, Environments, texts_of
from ricordo.features.custom_tools.source.javascript import javascript_call
from ricordo.features.custom_tools.source.options import CustomToolsSettings
from ricordo.features.custom_tools.source.source import needs_of
from ricordo.features.custom_tools.source.surroundings import Caller, way_to_server
from ricordo.features.custom_tools.source.vault import SecretMask, secrets_of
from ricordo.runtime import Runtime
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.process import program_beside
from ricordo.sandbox.service import Sandbox, SandboxLimits, SandboxResult
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage.engine.store import Store
from ricordo.tools.toolbox import ToolContext, ToolOutput

NETWORK = "network"  # the tag with which a tool asks for network access
_OUTPUT_KB = 2_048
_SHOWN = 20_000  # characters of a call's standard output or error


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: its source, function, arguments and variables.

    `parameters` is the order of the arguments for JavaScript.
    """

    source: str
    function: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    source_type: str = "python"
    parameters: Sequence[str] = ()
    caller: Caller | None = None
    has_network: bool = False
    requirements: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


class CustomTools:
    """The runner of tools made from source code."""

    tool_types: Sequence[ToolType] = ("custom",)

    def __init__(self, settings: Settings, _sandbox: Sandbox) -> None:
        self._settings = settings
        self.environments = Environments(settings)

    async def run(
        self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolOutput:
        """Run one call; its standard output is streamed to the turn's readers.

        Args:
            tool: The stored tool.
            context: The context of the call, with its agent and its memory so far.
            arguments: The arguments by name, as the model gave them.

        Raises:
            Invalid: The arguments are nested too deeply, or the tool's packages cannot be
                installed.
            Unsupported: The tool has no source, or uses a client of a server that has no port.
            Unavailable: Its packages, its language or the sandbox are missing, or a variable was
                encrypted with another secret key.
        """
        caller = Caller(context.scope, context.state, context.memory.blocks())
        call = call_of(tool, arguments, caller)
        call = await self.prepare(context.store, call)
        return await run_call(context.sandbox, self._settings, call, context.report)

    async def prepare(self, store: Store, call: ToolCall) -> ToolCall:
        """Return the call with its organization's variables and an interpreter with its packages.

        Args:
            store: The server's store.
            call: The call. One without a caller is returned as it is.

        Raises:
            Unavailable: The packages are still being installed, or a variable was encrypted with
                another secret key.
            Invalid: The packages cannot be installed.
        """
        if call.caller is None:
            return call
        scope = call.caller.scope
        if stored := await store.read(lambda tx: queries.of_organization(tx, scope)):
            variables = queries.values_of(Secret(self._settings.data_dir), stored)
            call = replace(call, variables=variables)
        if call.source_type != "python" or not call.requirements:
            return call
        python = await self.environments.python_for(store, scope, call.requirements)
        return replace(call, python=python)

    async def close(self) -> None:
        """Do nothing, since the sandbox of a call ends with the call."""


def custom_tools_of(runtime: Runtime) -> CustomTools:
    """Return the server's runner of tools from source code.

    Args:
        runtime: The running server.

    Raises:
        Unavailable: A plugin has replaced the runner.
    """
    runner = runtime.toolbox.runner("custom")
    if not isinstance(runner, CustomTools):
        raise Unavailable("Another plugin runs tools from source code here.")
    return runner


def call_of(tool: Tool, arguments: Mapping[str, Any], caller: Caller) -> ToolCall:
    """Return a call of a stored tool.

    Args:
        tool: The tool.
        arguments: The arguments by name.
        caller: The scope of the call, and the calling agent.

    Raises:
        Unsupported: The tool has no source.
    """
    if not tool.source_code:
        raise Unsupported(
            f"{tool.name} has no source code, and no installed plugin runs it. Install its plugin, "
            "or detach it."
        )
    parameters = tuple(tool.json_schema.get("parameters", {}).get("properties", {}))
    return ToolCall(
        tool.source_code,
        tool.options.get("function", tool.name),
        arguments,
        source_type=tool.source_type or "python",
        parameters=parameters,
        caller=caller,
        has_network=NETWORK in tool.tags,
        requirements=texts_of(tool.pip_requirements),
    )


class _OutputReport:
    """Reports a call's standard output while it comes, without secrets."""

    def __init__(self, mask: SecretMask, report: Callable[[str], None] | None) -> None:
        self._pieces = mask.pieces()
        self._report = report

    def add(self, stream: str, piece: bytes) -> None:
        """Report a piece of output, except for an end that may begin a secret.

        Args:
            stream: "stdout" or "stderr"; only standard output is reported.
            piece: The next bytes of the stream, in order; they may end inside a character.
        """
        if stream == "stdout":
            self._show(self._pieces.add(piece))

    def end(self, result: SandboxResult) -> None:
        # Where a program was stopped, the rest may be the beginning of a secret.
        """Report the text that `add` held back, unless the call was stopped.

        Args:
            result: The end of the call.
        """
        if not result.stopped_by:
            self._show(self._pieces.rest())

    def _show(self, text: str) -> None:
        if self._report and (parts := text.split()):
            self._report(" ".join(parts)[-500:])


async def run_call(
    sandbox: Sandbox,
    settings: Settings,
    call: ToolCall,
    report: Callable[[str], None] | None = None,
) -> ToolOutput:
    """Run a call in the sandbox.

    An error of the tool's code is an output, too.

    Args:
        sandbox: The sandbox of the server.
        settings: The settings of the server, for its address and the key of secrets.
        call: The prepared call.
        report: Gets pieces of the call's standard output as text, without secrets; None for no
            reader.

    Raises:
        Invalid: The arguments are nested too deeply.
        Unsupported: The tool uses a client of a server that has no port.
        Unavailable: Code cannot run here, or the tool's language is missing.
        Forbidden: The tool asks for a network that the operator does not allow.
    """
    tool_settings = CustomToolsSettings()
    limits = SandboxLimits(
        memory_mb=tool_settings.tool_memory_mb,
        cpu_seconds=max(1, int(tool_settings.tool_seconds)),
        seconds=tool_settings.tool_seconds,
        output_kb=_OUTPUT_KB,
    )

    caller = call.caller
    secrets = dict(call.variables)
    if caller and caller.state:
        secrets |= secrets_of(settings, caller.state.agent)

    mask = SecretMask(secrets)
    output_report = _OutputReport(mask, report)
    if call.source_type == "python":
        needs = needs_of(call.source, call.function)
    else:
        needs = frozenset()
    environment = {**secrets, **call.environment}
    request: dict[str, Any] = {
        "source": call.source,
        "function": call.function,
        "arguments": dict(call.arguments),
    }
    sandbox_options: dict[str, Any] = {
        "limits": limits,
        "on_output": output_report.add,
        "has_network": call.has_network,
    }
    with ExitStack() as for_call:
        if caller and caller.state:
            environment = {"LETTA_AGENT_ID": caller.state.agent.id, **environment}
        if caller and "agent_state" in needs:
            request["agent_state"] = caller.agent
        if caller and "client" in needs:
            address, key = for_call.enter_context(
                way_to_server(sandbox, settings, caller, call.function)
            )
            environment = {"LETTA_BASE_URL": address, "LETTA_API_KEY": key, **environment}
            sandbox_options |= {"may_call_server": address, "server_key": key}
        program = program_beside(__file__)
        if call.source_type != "python":
            node = await asyncio.to_thread(
                javascript_call, call.source, call.source_type, call.function
            )
            program = node.program
            request["arguments"] = [call.arguments.get(name) for name in call.parameters]
            sandbox_options |= {"files": node.files, "readable": node.readable}
        try:
            stdin = orjson.dumps(request)
        except TypeError:
            raise Invalid(
                "The arguments are nested too deeply. Call the tool with simpler ones."
            ) from None
        result = await sandbox.run_python(
            program, stdin, call.python, environment=environment, **sandbox_options
        )
    output_report.end(result)
    return _output_of(result, call, mask)


def _without_network() -> str:
    """Return the advice for a tool that may not use the network."""
    hint = f"This tool runs without network: tag it `{NETWORK}`"
    if SandboxSettings.current().sandbox_network:
        return f"{hint}."
    return f"{hint}, and set RICORDO_SANDBOX_NETWORK=true on the server."


def _output_of(result: SandboxResult, call: ToolCall, mask: SecretMask) -> ToolOutput:
    """Return the output for the agent, without secrets.

    Check the answer, since the tool's code may have written anything.
    """
    stdout = _lines(result.stdout, mask)
    stderr = _lines(result.stderr, mask)
    if result.stopped_by:
        return ToolOutput(result.reason, stdout, stderr, is_error=True)
    try:
        answer = orjson.loads(result.answer)
    except orjson.JSONDecodeError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        # The beginning of this text is a wire fact of the retired Letta V1 server.
        error = mask.mask(answer["error"])
        error_text = f"Error executing function {call.function}: {error}"
        if answer.get("is_network") is True and not call.has_network:
            error_text = f"{error_text}\n{_without_network()}"
        return ToolOutput(error_text, stdout, (*stderr, error), is_error=True)
    if isinstance(answer, dict) and "value" in answer:
        return ToolOutput(mask.mask(_writable(answer["value"])), stdout, stderr)
    if stderr:
        written = f" It wrote: {stderr[0][-1000:]}"
    else:
        written = ""
    return ToolOutput(
        f"The tool ended without a result (exit code {result.exit_code}).{written}",
        stdout,
        stderr,
        is_error=True,
    )


def _writable(value: Any) -> Any:
    """Return the value; as text if it is nested too deeply for a response."""
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])
    except TypeError:
        with suppress(RecursionError):
            return json.dumps(value, ensure_ascii=False)
        return "[the result is nested too deeply]"
    return value


def _lines(written: bytes, mask: SecretMask) -> tuple[str, ...]:
    text = mask.mask(written.decode("utf-8", "replace")).rstrip()
    if len(text) > _SHOWN:
        return (f"{text[:_SHOWN]}…",)
    return (text,) if text else ()


async def _build_environment(runtime: Runtime, job: Job, report: Report) -> None:
    runner = runtime.toolbox.runner("custom")
    if isinstance(runner, CustomTools):
        environments = runner.environments
    else:
        environments = Environments(runtime.settings)
    await environments.build(job.payload["requirements"], report)


BUILD = JobHandler(KIND, _build_environment)
