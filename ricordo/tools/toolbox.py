"""Running tool calls: each call gets exactly one result, and a tool's failure is a result the agent sees.

Tools are functions of this server, or stored ones of a type that a `ToolRunner` runs elsewhere: in a sandbox, on another server.
A tool's schema comes from its function: parameters from the signature, words from the docstring's `Args:` section.
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
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import ToolCallPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.text import normal_json
from ricordo.domain.tool import Tool, ToolType
from ricordo.errors import Invalid, RicordoError
from ricordo.memory.recall import Recall
from ricordo.memory.working_memory import WorkingMemory
from ricordo.prompt.transcript import truncate
from ricordo.settings import Settings
from ricordo.storage import tools
from ricordo.storage.engine.store import Store, Transaction
from ricordo.tools.docstrings import read_docstring

log = logging.getLogger(__name__)
_ERROR_LIMIT = 1000  # characters of an error that reach the agent's stderr


@dataclass(slots=True)
class Quoted:
    """What a call's result quotes of what is kept: ids of messages and passages, and whether some of it is untrusted."""

    sources: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    is_untrusted: bool = False

    def add(self, id: str, *, is_untrusted: bool, is_said: bool = False) -> None:
        """Say that the result holds the words of this message or passage; `is_said`: the conversation's user wrote it."""
        self.sources.append(id)
        self.is_untrusted |= is_untrusted
        if is_said and not is_untrusted:
            self.said.append(id)


CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolReturnPart]]


@dataclass(frozen=True, slots=True)
class CallingStep:
    """The step that makes a call.

    `callers` are the agents whose calls led to its turn, the first one first. `is_untrusted` tells whether its prompt holds
    untrusted content. `jobs` are added in the transaction that saves the step: a kill neither loses nor doubles one.
    """

    id: str = ""
    run_id: str = ""
    callers: tuple[str, ...] = ()
    is_untrusted: Callable[[], bool] = lambda: False
    jobs: list[Job] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use: the step's working memory to change, the store to read, all that is kept to search.

    Where it gives the agent words that are kept, it says in `quoted` whose they are. `turn_began` gives a
    timestamp: what the conversation holds since then is being said. `call_tool` calls another of the agent's tools, as the
    rules allow it then; a tool that needs an approval is refused. `report` tells the turn's readers how far a long call is.
    `step` is the step that makes the call, and `runtime` the server's, for tools that begin turns.
    """

    call_id: str
    state: AgentState
    memory: WorkingMemory
    store: Store
    scope: Scope
    recall: Recall
    settings: Settings
    call_tool: CallTool
    quoted: Quoted = field(default_factory=Quoted)
    turn_began: Callable[[], int | None] = lambda: None
    # When the oldest message was said that the agent has in view.
    view_began: Callable[[], int | None] = lambda: None
    report: Callable[[str], None] = lambda _text: None
    step: CallingStep = field(default_factory=CallingStep)
    # The runtime's type lies to the right of here; it is the Runtime.
    runtime: Any = None

    @property
    def subject_id(self) -> str:
        """Whom what is found may be about: the conversation's user, or NOBODY, so that what others said stays with them."""
        return self.scope.subject_id or self.state.conversation.user_id or NOBODY


ToolFunction = Callable[..., Awaitable[Any] | Any]
# Messages outside the window, and passages.
SearchedStore = Literal["messages", "archive"]
# The id of tools that are not stored.
UNSTORED = ""


@dataclass(eq=False)
class ServerTool:
    """A tool that runs in the server, made from a function whose first parameter is the context.

    With `acts_outside` a call is saved before it is run, since it may change something that no rollback brings back. With
    `brings_untrusted` its results are untrusted: pages, files, what other systems say. With `edits_memory` its
    calls may carry the user's words that asked for the edit, where a block wants that. With `is_read_only` an equal call in the
    same turn would bring the same. `searches` names the stores that it finds things in; models are offered it once there is
    something in one of them. One without `is_stored` belongs to a
    profile of models: nobody attaches it, so its name stays free for tools of others.
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
    is_stored: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.brings_untrusted |= self.tool_type.startswith("external_")
        self._arguments = arguments_model(self.function)
        self.schema = describe(self.function, self._arguments)

    @property
    def name(self) -> str:
        """The name models call it by."""
        return self.schema.name

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and run; raises ValidationError and whatever the function raises."""
        named = {
            self.aliases.get(name, name): value for name, value in normal_json(arguments).items()
        }
        checked = self._arguments.model_validate(named)
        fields = self._arguments.model_fields.items()
        result = self.function(
            context, **{str(field.alias): getattr(checked, name) for name, field in fields}
        )
        if inspect.isawaitable(result):
            return await result
        return result


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a call of a stored tool gave: a value for the agent, and the lines that it wrote. With `is_error` the value says why."""

    value: Any
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    is_error: bool = False


class ToolRunner(Protocol):
    """Runs stored tools of some types. Its calls act outside, and what they give is untrusted."""

    @property
    def tool_types(self) -> Sequence[ToolType]: ...

    async def run(
        self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]
    ) -> ToolOutput:
        """Run one call; it is cancelled with its turn. Raises a RicordoError that the agent reads."""

    async def close(self) -> None:
        """End what still runs; the server calls it at its end."""


class Toolbox:
    """Every tool this server can run: its own by name, stored ones by their type."""

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
        """The tool of this name that no agent has attached."""
        return self._unstored[name]

    def edits_memory(self, tool: Tool) -> bool:
        """Return whether calls of this tool edit memory, and are made by this server."""
        found = self.find(tool)
        return isinstance(found, ServerTool) and found.edits_memory

    def is_read_only(self, tool: Tool) -> bool:
        """Return whether an equal call in the same turn would bring the same."""
        found = self.find(tool)
        return isinstance(found, ServerTool) and found.is_read_only

    def searches(self, tool: Tool) -> frozenset[SearchedStore]:
        """Return the stores that this tool finds things in, and in nothing else."""
        found = self.find(tool)
        if isinstance(found, ServerTool):
            return found.searches
        return frozenset()

    def find(self, tool: Tool) -> ServerTool | ToolRunner | None:
        """What runs this tool, if anything does."""
        if tool.id == UNSTORED:
            return self._unstored.get(tool.name)
        offered = self._tools.get(tool.name)
        if offered and tool.source_code is None and tool.tool_type == offered.tool_type:
            return offered
        return self._runners.get(tool.tool_type)

    def runner(self, tool_type: ToolType) -> ToolRunner | None:
        """What runs stored tools of this type, if a plugin does."""
        return self._runners.get(tool_type)

    def acts_outside(self, tool: Tool) -> bool:
        """Whether a call of it may change something that no rollback brings back."""
        found = self.find(tool)
        if isinstance(found, ServerTool):
            return found.acts_outside
        return found is not None

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
        """Run the calls of one step; results come in the order of the calls.

        Neighbouring calls of tools that allow it run at the same time, all others one after the other.
        """
        results: list[ToolReturnPart] = []
        for group in _groups(calls, attached):
            results += await asyncio.gather(
                *(
                    self._run_one(call, attached.get(call.name), context(call.call_id))
                    for call in group
                )
            )
        return results

    async def _run_one(
        self, call: ToolCallPart, tool: Tool | None, context: ToolContext
    ) -> ToolReturnPart:
        """One result, cut to its limit, with what it quotes."""
        found = self.find(tool) if tool else None
        if tool is None or found is None:
            names = (
                ", ".join(tool.name for tool in context.state.tools if self.find(tool)) or "none"
            )
            return failed_result(
                call, f"There is no tool named {call.name} here. Tools you can call: {names}."
            )
        result = await _attempt(found, tool, call, context)
        if len(result.content) > tool.return_limit:
            result = replace(
                result, content=truncate(result.content, tool.return_limit), is_json=False
            )
        quoted = context.quoted
        is_untrusted = (
            not isinstance(found, ServerTool) or found.brings_untrusted or quoted.is_untrusted
        )
        if not (quoted.sources or is_untrusted):
            return result
        sources, said = (tuple(dict.fromkeys(ids)) for ids in (quoted.sources, quoted.said))
        return replace(result, sources=sources, said=said, is_untrusted=is_untrusted)


async def _attempt(
    found: ServerTool | ToolRunner, tool: Tool, call: ToolCallPart, context: ToolContext
) -> ToolReturnPart:
    """What the tool returns, or its failure as a result."""
    try:
        arguments = _read_arguments(call)
        if isinstance(found, ServerTool):
            return _result(call, await found.call(context, arguments))
        output = await found.run(tool, context, arguments)
        return _returned(call, output)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        told = (
            f"The arguments of {call.name} are not right: {faults}. "
            "Call it again with these corrected."
        )
        return failed_result(call, told)
    except RicordoError as error:
        return failed_result(call, str(error), type(error).__name__)
    except Exception as error:
        # Whatever a tool does wrong, the agent gets a result; people find the traceback in the log.
        log.exception("tool failed", extra={"tool": call.name, "agent": context.state.agent.id})
        told = f"{type(error).__name__}: {error}"
        return replace(failed_result(call, told), stderr=_trace(call, told))


def _returned(call: ToolCallPart, output: ToolOutput) -> ToolReturnPart:
    """Return a runner's output as the call's result, with what the tool printed."""
    result = replace(_result(call, output.value), stdout=output.stdout, stderr=output.stderr)
    return replace(result, status="error", is_json=False) if output.is_error else result


def _result(call: ToolCallPart, value: Any) -> ToolReturnPart:
    if isinstance(value, str):
        return ToolReturnPart(call.call_id, call.name, "success", _whole(value))
    content = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return ToolReturnPart(call.call_id, call.name, "success", content, is_json=True)


def _whole(text: str) -> str:
    """The text without halves of characters, which nothing could store or send."""
    return text.encode("utf-8", "replace").decode()


def schema_of(tool: Tool) -> ToolSchema:
    """A stored tool as models see it."""
    schema = tool.json_schema
    return ToolSchema(tool.name, schema.get("description", tool.description), schema["parameters"])


def failed_result(call: ToolCallPart, message: str, kind: str = "ValueError") -> ToolReturnPart:
    """The result of a call that failed; `kind` names the error in its trace."""
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


def _trace(call: ToolCallPart, told: str) -> tuple[str]:
    # The wording is a wire fact of the retired Letta V1 server.
    return (_whole(f"Error executing function {call.name}: {told}")[:_ERROR_LIMIT],)


def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the function's parameters, its first one (the context) left out; unknown ones are refused by name."""
    hints = get_type_hints(function, include_extras=True)
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    words = read_docstring(inspect.getdoc(function) or "", parameters).arguments
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # An alias, because a field of its own name could hide something of the model: json, copy, schema, …
        fields[f"argument_{name}"] = (
            hints[name],
            Field(default, alias=name, description=words.get(name)),
        )
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def describe(function: Callable[..., Any], arguments: type[BaseModel]) -> ToolSchema:
    """The tool as models see it."""
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
    """Drop titles, null alternatives, null defaults and `additionalProperties: false`, which only confuse small models."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **options[0]}
    return {
        key: {name: _plain(item) for name, item in value.items()}
        if key == "properties"
        else _plain(value)
        for key, value in schema.items()
        if key != "title"
        and (key, value) not in (("additionalProperties", False), ("default", None))
    }


def sync_tools(tx: Transaction, scope: Scope, toolbox: Toolbox) -> None:
    """Bring the stored tools of this organization up to date with what this server can run, as each start does."""
    tools.lock(tx, scope)  # several servers of one database may start at once
    offered = {tool.name: tool for tool in toolbox}
    stored = tools.by_names(tx, scope, list(offered))
    now = tx.clock.now()
    new = [
        Tool(
            new_id("tool"),
            scope.organization_id,
            name,
            tool.tool_type,
            {},
            created_at=now,
            updated_at=now,
        )
        for name, tool in offered.items()
        if name not in stored
    ]
    tools.insert_all(tx, [_as_offered(tool, offered[tool.name]) for tool in new])
    for name, tool in stored.items():
        if tool.source_code is not None or tool.tool_type == "external_mcp":
            continue  # somebody's own tool had this name before the server had one of it
        if (current := _as_offered(tool, offered[name])) != tool:
            tools.update(tx, replace(current, updated_at=now))


def unstored_tool(offered: ServerTool, organization_id: str) -> Tool:
    """The tool as an agent has it that is attached to none."""
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
