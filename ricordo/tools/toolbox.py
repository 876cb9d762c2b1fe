"""Run tool calls: each call gets exactly one result, even if it fails.

A tool is a function of this server, or a stored tool. A `ToolRunner` for its type runs a stored
tool elsewhere: in a sandbox or on another server. A tool's schema comes from its function:
parameters from the signature, descriptions from the docstring's `Args:` section.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, Protocol, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ricordo.domain.agent import AgentState
from ricordo.domain.egress import IN_PROCESS, Clearance, Destination
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.text import nests_deeply, normal_json
from ricordo.domain.tool import Tool, ToolType
from ricordo.errors import Invalid, RicordoError, require_others_failure
from ricordo.memory.edits import WorkingMemory
from ricordo.memory.recall import Recall
from ricordo.prompt.transcript import truncate
from ricordo.sandbox.service import Sandbox
from ricordo.settings import Settings
from ricordo.storage import tools
from ricordo.storage.engine.store import Store, Transaction
from ricordo.tools.docstrings import read_docstring

log = logging.getLogger(__name__)
_ERROR_LIMIT = 1000  # characters of an error that reach the agent's stderr


@dataclass(slots=True)
class Quoted:
    """The stored texts in a call's result, as ids of messages and passages.

    `said` are ids of messages that the conversation's user wrote. `is_untrusted` is set if some of
    the texts are untrusted.
    """

    sources: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    is_untrusted: bool = False

    def add(self, id: str, *, is_untrusted: bool, is_said: bool = False) -> None:
        """Record that the result contains the text of this message or passage.

        Args:
            id: The id of the message or passage.
            is_untrusted: The text is untrusted, and so the whole result.
            is_said: The conversation's user wrote it. This does not count for an untrusted text.
        """
        self.sources.append(id)
        self.is_untrusted |= is_untrusted
        if is_said and not is_untrusted:
            self.said.append(id)


CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolReturnPart]]


@dataclass(frozen=True, slots=True)
class CallingStep:
    """The step that makes a call.

    Attributes:
        callers: The agents whose calls led to this turn, from the first one on.
        is_untrusted: Returns whether its prompt contains untrusted content.
        jobs: Jobs to add in the transaction that saves the step. So a kill can neither lose nor
            duplicate a job.
        shows_edits: Whether the model's next request shows the step's edits in its prompt.
    """

    id: str = ""
    run_id: str = ""
    callers: tuple[str, ...] = ()
    is_untrusted: Callable[[], bool] = lambda: False
    jobs: list[Job] = field(default_factory=list)
    shows_edits: bool = True


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a call: the working memory to edit, the store and recall to read.

    Attributes:
        open_recall: Returns the searches without the limits of egress policies; tools use
            `recall`.
        quoted: Records the stored texts that the result contains.
        turn_began: Returns the time of the turn's first message.
        view_began: Returns the time of the oldest message in the agent's view.
        call_tool: Calls another tool of the agent if the rules then allow it. Tools that need an
            approval are refused.
        report: Reports the progress of a long call to the turn's readers.
        step: The step that makes the call.
        clearance: What the turn's outgoing calls may carry.
        reader: The receiver of the turn's prompts, and so of the call's result.
        runtime: The server's Runtime, for tools that begin turns or run programs.
    """

    call_id: str
    state: AgentState
    memory: WorkingMemory
    store: Store
    scope: Scope
    open_recall: Callable[[], Recall]
    settings: Settings
    call_tool: CallTool
    quoted: Quoted = field(default_factory=Quoted)
    turn_began: Callable[[], int | None] = lambda: None
    view_began: Callable[[], int | None] = lambda: None
    report: Callable[[str], None] = lambda _text: None
    step: CallingStep = field(default_factory=CallingStep)
    clearance: Clearance = field(default_factory=Clearance)
    reader: Destination = IN_PROCESS
    # Its type, Runtime, is in a package that may not be imported here.
    runtime: Any = None

    @property
    def recall(self) -> Recall:
        """Return the searches for results that the turn's model will read."""
        return self.open_recall().for_reader(self.clearance, self.reader)

    def may_read(self, source: str, label: str | None, text: str = "") -> bool:
        """Return whether the turn's model may see a labelled text; note it in both cases.

        Args:
            source: The name of the text's source in the step's record, such as "block:human".
            label: Its egress label; None: it has no policy.
            text: The text itself. Later outgoing calls that repeat it are recognized.
        """
        return self.clearance.may_read(self.reader, source, label, text)

    def readable(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages of other conversations as the turn's model may see them.

        Args:
            messages: Messages that the user may see.
        """
        return self.clearance.messages(messages, self.reader)

    @property
    def sandbox(self) -> Sandbox:
        """Return the server's sandbox, in which programs of users and models run."""
        sandbox: Sandbox = self.runtime.sandbox
        return sandbox

    @property
    def subject_id(self) -> str:
        """Return the user whose data search results may contain.

        It is NOBODY for shared data only.
        """
        return self.scope.subject_id or self.state.conversation.user_id or NOBODY


ToolFunction = Callable[..., Awaitable[Any] | Any]
# Messages outside the window, and passages.
SearchedStore = Literal["messages", "archive"]
# The id of tools that are not stored.
UNSTORED = ""


@dataclass(eq=False)
class ServerTool:
    """A tool that runs in the server, made from a function.

    The function's first parameter is the context.

    Attributes:
        acts_outside: The call is saved before it runs, since it may change something that no
            rollback restores.
        brings_untrusted: Its results are untrusted, such as pages, files and texts from other
            systems.
        edits_memory: Its calls may quote the user's request for an edit, which some blocks require.
        is_read_only: An equal call in the same turn would have the same result.
        searches: The stores that it searches. The tool is offered to models once one of them has
            content.
        is_base: New agents get it in addition to the base tools of their type, if the type allows
            it.
        stays_here: Its arguments leave no copy outside of memory, although it acts outside.
        is_stored: False for a tool that cannot be attached, such as one of a model profile. Its
            name stays free for other tools.
        aliases: Other names of arguments that models use, each with the name of the parameter.
    """

    function: ToolFunction
    tool_type: ToolType
    _: KW_ONLY
    runs_in_parallel: bool = False
    acts_outside: bool = False
    brings_untrusted: bool = False
    edits_memory: bool = False
    is_read_only: bool = False
    searches: frozenset[SearchedStore] = frozenset()
    is_base: bool = False
    stays_here: bool = False
    is_stored: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.brings_untrusted |= self.tool_type.startswith("external_")
        self._arguments = arguments_model(self.function)
        self.schema = describe(self.function, self._arguments)

    @property
    def name(self) -> str:
        """Return the name by which models call it."""
        return self.schema.name

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and run the function.

        Args:
            context: The context of the call.
            arguments: The parsed arguments by name, or by one of the `aliases`.

        Raises:
            ValidationError: The arguments do not fit the function.
            Exception: The function's error, of any kind.
        """
        named = {
            self.aliases.get(name, name): argument
            for name, argument in normal_json(arguments).items()
        }
        checked = self._arguments.model_validate(named)
        fields = self._arguments.model_fields.items()
        outcome = self.function(
            context, **{str(field.alias): getattr(checked, name) for name, field in fields}
        )
        if inspect.isawaitable(outcome):
            return await outcome
        return outcome


@dataclass(frozen=True, slots=True)
class ForeignTraits:
    """The traits of a tool that a runner runs; the names are those of a ServerTool."""

    acts_outside: bool
    edits_memory: bool = False
    is_read_only: bool = False
    searches: frozenset[SearchedStore] = frozenset()


ToolTraits = ServerTool | ForeignTraits
UNKNOWN_CALLS = ForeignTraits(acts_outside=True)
NO_CALLS = ForeignTraits(acts_outside=False)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a stored tool's call.

    Attributes:
        value: The value for the agent: a text, or a value that becomes JSON. After an error, it is
            the error.
        stdout: The printed lines.
        stderr: The lines of errors.
        is_error: The call failed.
    """

    value: Any
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    is_error: bool = False


class ToolRunner(Protocol):
    """Runs stored tools of some types.

    Its calls act outside the server, and its results are untrusted.
    """

    @property
    def tool_types(self) -> Sequence[ToolType]: ...

    async def run(
        self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolOutput:
        """Run one call; it is cancelled with its turn.

        Args:
            tool: The stored tool, of one of `tool_types`.
            context: The context of the call.
            arguments: The parsed arguments, which are not checked yet.

        Raises:
            RicordoError: The call failed; the agent reads the message.
        """

    async def close(self) -> None:
        """Stop everything that is still running; the server calls this when it stops."""


class Toolbox:
    """All tools that this server can run: built-in tools and stored tools."""

    def __init__(self, tools: Iterable[ServerTool], runners: Iterable[ToolRunner] = ()) -> None:
        self._tools: dict[str, ServerTool] = {}
        self._unstored: dict[str, ServerTool] = {}
        for tool in tools:
            if not tool.is_stored:
                self._unstored[tool.name] = tool
                continue
            if tool.name in self._tools:
                raise ValueError(
                    f'Two plugins offer a tool named "{tool.name}". Remove one of them.'
                )
            self._tools[tool.name] = tool
        self._runners: dict[str, ToolRunner] = {}
        for runner in runners:
            for tool_type in runner.tool_types:
                if self._runners.setdefault(tool_type, runner) is not runner:
                    raise ValueError(
                        f'Two plugins run tools of the type "{tool_type}". Remove one of them.'
                    )

    def __iter__(self) -> Iterator[ServerTool]:
        return iter(self._tools.values())

    def unstored(self, name: str) -> ServerTool:
        """Return the unstored tool of this name.

        Args:
            name: The name of an existing unstored tool; another one raises KeyError.
        """
        return self._unstored[name]

    def traits(self, tool: Tool) -> "ToolTraits":
        """Return the traits of the tool's calls; without a function, calls do nothing.

        Args:
            tool: A tool of an agent.
        """
        executor = self.find(tool)
        if isinstance(executor, ServerTool):
            return executor
        return UNKNOWN_CALLS if executor else NO_CALLS

    def find(self, tool: Tool) -> ServerTool | ToolRunner | None:
        """Return the function or runner of this tool, if there is one.

        Args:
            tool: A tool of an agent.
        """
        if tool.id == UNSTORED:
            return self._unstored.get(tool.name)
        offered = self._tools.get(tool.name)
        if offered and tool.source_code is None and tool.tool_type == offered.tool_type:
            return offered
        return self._runners.get(tool.tool_type)

    def runner(self, tool_type: ToolType) -> ToolRunner | None:
        """Return the runner of stored tools of this type, if a plugin has one.

        Args:
            tool_type: The type of a stored tool.
        """
        return self._runners.get(tool_type)

    async def close(self) -> None:
        """Close the runners."""
        for runner in dict.fromkeys(self._runners.values()):
            await runner.close()

    async def run(
        self,
        calls: Sequence[ToolCallPart],
        attached: Mapping[str, Tool],
        context: Callable[[str], ToolContext],
    ) -> list[ToolReturnPart]:
        """Run the calls of one step; the results are in the order of the calls.

        Neighbouring calls run in parallel if their tools allow it; all others run one after the
        other. A call that fails, or whose tool is unknown, has a result that says so.

        Args:
            calls: The calls, each with a unique id.
            attached: The tools that the agent has, by the name that models call.
            context: Returns the context of the call with this id.

        Raises:
            DatabaseFailed: The database failed during a call. The model is not told of that.
        """
        results: list[ToolReturnPart] = []
        for group in _groups(calls, attached) if len(calls) > 1 else [calls]:
            outcomes = await asyncio.gather(
                *(
                    self._run_one(call, attached.get(call.name), context(call.call_id))
                    for call in group
                ),
                return_exceptions=True,  # no call runs on after the step has failed
            )
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
                results.append(outcome)
        return results

    async def _run_one(
        self, call: ToolCallPart, tool: Tool | None, context: ToolContext
    ) -> ToolReturnPart:
        """Return one call's result, with its sources, cut to the limit."""
        executor = self.find(tool) if tool else None
        if tool is None or executor is None:
            names = (
                ", ".join(tool.name for tool in context.state.tools if self.find(tool)) or "none"
            )
            return failed_result(
                call, f"There is no tool named {call.name} here. Tools you can call: {names}."
            )
        result = await _attempt(executor, tool, call, context)
        if len(result.content) > tool.return_limit:
            result = replace(
                result, content=truncate(result.content, tool.return_limit), is_json=False
            )
        quoted = context.quoted
        is_untrusted = (
            not isinstance(executor, ServerTool) or executor.brings_untrusted or quoted.is_untrusted
        )
        if not (quoted.sources or is_untrusted):
            return result
        return replace(
            result,
            sources=tuple(dict.fromkeys(quoted.sources)),
            said=tuple(dict.fromkeys(quoted.said)),
            is_untrusted=is_untrusted,
        )


async def _attempt(
    executor: ServerTool | ToolRunner, tool: Tool, call: ToolCallPart, context: ToolContext
) -> ToolReturnPart:
    """Run the call; return its result, or its failure as a result."""
    try:
        arguments = _read_arguments(call)
        if context.clearance.texts and (refusal := _refusal_to_send(executor, tool, call, context)):
            return failed_result(call, refusal, "Forbidden")
        if isinstance(executor, ServerTool):
            return _result(call, await executor.call(context, arguments))
        output = await executor.run(tool, context, arguments)
        return _returned(call, output)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        message = (
            f"The arguments of {call.name} are not right: {faults}. "
            "Call it again with these corrected."
        )
        return failed_result(call, message)
    except RicordoError as error:
        require_others_failure(error)
        return failed_result(call, str(error), type(error).__name__)
    except Exception as error:
        # The agent gets a result for every error of a tool, and the log has the traceback.
        log.exception("tool failed", extra={"tool": call.name, "agent": context.state.agent.id})
        message = f"{type(error).__name__}: {error}"
        return replace(failed_result(call, message), stderr=_trace(call, message))


def destination_of_call(
    executor: ServerTool | ToolRunner, tool: Tool, context: ToolContext
) -> Destination | None:
    """Return the destination of a call's arguments; None if the tool keeps them in memory.

    Arguments in memory keep their label. A destination is "mcp:" with the name of the server,
    "sandbox", or the name of the tool. The sandbox is local while its programs have no network.

    Args:
        executor: The function or the runner of the tool, as `Toolbox.find` returns it.
        tool: The stored tool.
        context: The context of the call.
    """
    if isinstance(executor, ServerTool):
        # A text that is sent to another agent keeps its label.
        stays = executor.stays_here or tool.tool_type == "letta_multi_agent_core"
        leaves = (executor.acts_outside or executor.brings_untrusted) and not stays
        return Destination(tool.name) if leaves else None
    if tool.tool_type == "external_mcp":
        server = next((tag for tag in tool.tags if tag.startswith("mcp:")), "mcp")
        return Destination(server.lower())
    if tool.tool_type == "custom" and context.runtime is not None:
        return Destination("sandbox", is_local=not context.sandbox.has_network)
    return Destination(tool.name)


def _refusal_to_send(
    executor: ServerTool | ToolRunner, tool: Tool, call: ToolCallPart, context: ToolContext
) -> str | None:
    """Return the reason not to run a call that repeats a text its destination may not see."""
    destination = destination_of_call(executor, tool, context)
    if destination is None:
        return None
    source = context.clearance.repeats(call.arguments, destination)
    if source is None:
        return None
    return (
        f"Not sent: the arguments repeat {source}, and its egress policy forbids "
        f"{destination.name}. Call the tool without that text."
    )


def _returned(call: ToolCallPart, output: ToolOutput) -> ToolReturnPart:
    """Return a runner's output, with its printed lines, as the call's result."""
    result = replace(_result(call, output.value), stdout=output.stdout, stderr=output.stderr)
    if output.is_error:
        return replace(result, status="error", is_json=False)
    return result


def _result(call: ToolCallPart, outcome: Any) -> ToolReturnPart:
    if isinstance(outcome, str):
        text = outcome if outcome.isascii() else _whole(outcome)
        return ToolReturnPart(call.call_id, call.name, "success", text)
    content = orjson.dumps(outcome, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    is_json = not nests_deeply(content, orjson.loads(content))
    return ToolReturnPart(call.call_id, call.name, "success", content, is_json=is_json)


def _whole(text: str) -> str:
    """Return the text without lone surrogates, which can be neither stored nor sent."""
    return text.encode("utf-8", "replace").decode()


def schema_of(tool: Tool) -> ToolSchema:
    """Return a stored tool's schema for models.

    Args:
        tool: The stored tool. Its JSON schema has at least `parameters`.
    """
    schema = tool.json_schema
    return ToolSchema(tool.name, schema.get("description", tool.description), schema["parameters"])


def failed_result(call: ToolCallPart, message: str, kind: str = "ValueError") -> ToolReturnPart:
    """Return the result of a failed call.

    Args:
        call: The call.
        message: A sentence for the agent.
        kind: The name of the error in its trace, such as "Forbidden".
    """
    return ToolReturnPart(
        call.call_id, call.name, "error", _whole(message), stderr=_trace(call, f"{kind}: {message}")
    )


def _groups(
    calls: Sequence[ToolCallPart], attached: Mapping[str, Tool]
) -> list[list[ToolCallPart]]:
    groups: list[list[ToolCallPart]] = []
    parallel = {name for name, tool in attached.items() if tool.runs_in_parallel}
    for call in calls:
        if groups and {call.name, groups[-1][-1].name} <= parallel:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _read_arguments(call: ToolCallPart) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call.arguments or b"{}")
    except orjson.JSONDecodeError as error:
        raise Invalid(
            f"The arguments are not valid JSON ({error}). Call the tool again with valid JSON."
        ) from error
    if not isinstance(arguments, dict):
        raise Invalid("The arguments must be a JSON object. Call the tool again with one.")
    return arguments


def _trace(call: ToolCallPart, message: str) -> tuple[str]:
    # wire fact of the retired Letta V1 server: the whole sentence.
    return (_whole(f"Error executing function {call.name}: {message}")[:_ERROR_LIMIT],)


def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of the function's parameters, without the context.

    Unknown arguments are refused by name.

    Args:
        function: The function of a tool; its first parameter is the context.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    descriptions = read_docstring(inspect.getdoc(function) or "", parameters).arguments
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty:
            default = ...
        else:
            default = parameter.default
        # An alias, since the field's name could hide a method of the model: json, copy, schema and
        # others.
        fields[f"argument_{name}"] = (
            hints[name],
            Field(default, alias=name, description=descriptions.get(name)),
        )
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def describe(function: Callable[..., Any], arguments: type[BaseModel]) -> ToolSchema:
    """Return the function's schema for models.

    Args:
        function: The function of the tool, whose docstring describes it.
        arguments: The model of its parameters, from `arguments_model`.
    """
    names = {str(field.alias) for field in arguments.model_fields.values()}
    summary = read_docstring(inspect.getdoc(function) or "", names).description
    schema = _plain(arguments.model_json_schema())
    parameters = {
        "type": "object",
        "properties": schema.get("properties", {}),
        "required": schema.get("required", []),
    }
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return ToolSchema(function.__name__, summary, parameters)


def _plain(schema: Any) -> Any:
    """Drop parts of a JSON schema that merely confuse small models.

    They are titles, null alternatives, null defaults and `additionalProperties: false`.
    """
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    alternatives = [
        alternative for alternative in schema.get("anyOf", ()) if alternative != {"type": "null"}
    ]
    if len(alternatives) == 1:
        schema = {
            **{key: content for key, content in schema.items() if key != "anyOf"},
            **alternatives[0],
        }
    return {
        key: {name: _plain(part) for name, part in content.items()}
        if key == "properties"
        else _plain(content)
        for key, content in schema.items()
        if key != "title"
        and (key, content) not in (("additionalProperties", False), ("default", None))
    }


def sync_tools(tx: Transaction, scope: Scope, toolbox: Toolbox) -> None:
    """At each start, update the organization's stored tools to this server's tools.

    Args:
        tx: The transaction.
        scope: The organization.
        toolbox: The server's tools. A user's tool that has the name of one of them stays as it is.
    """
    tools.lock(tx, scope)  # several servers of one database may start at once
    server_tools = {tool.name: tool for tool in toolbox}
    stored = tools.by_names(tx, scope, list(server_tools))
    now = tx.clock.now()
    new_tools = [
        Tool(
            new_id("tool"),
            scope.organization_id,
            name,
            tool.tool_type,
            {},
            created_at=now,
            updated_at=now,
        )
        for name, tool in server_tools.items()
        if name not in stored
    ]
    tools.insert_all(tx, [_as_offered(tool, server_tools[tool.name]) for tool in new_tools])
    for name, tool in stored.items():
        if tool.source_code is not None or tool.tool_type == "external_mcp":
            continue  # a user's tool had this name before the server did
        if (current := _as_offered(tool, server_tools[name])) != tool:
            tools.update(tx, replace(current, updated_at=now))


def unstored_tool(offered: ServerTool, organization_id: str) -> Tool:
    """Return the stored form of a server's tool that no agent has attached.

    Args:
        offered: A tool of a model profile, or another tool that is offered only in this turn.
        organization_id: The organization of the agent.
    """
    return _as_offered(
        Tool(UNSTORED, organization_id, offered.name, offered.tool_type, {}), offered
    )


def _as_offered(tool: Tool, offered: ServerTool) -> Tool:
    schema = offered.schema
    return replace(
        tool,
        tool_type=offered.tool_type,
        json_schema={
            "name": schema.name,
            "description": schema.description,
            "parameters": schema.parameters,
        },
        description=schema.description,
        source_type="python",
        runs_in_parallel=offered.runs_in_parallel,
        tags=(offered.tool_type,),
    )
