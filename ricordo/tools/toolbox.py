"""Running tool calls: each call gets exactly one result, and a tool's failure is a result the agent sees.

A tool's schema comes from its function: parameters from the signature, words from the docstring's `Args:` section.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import ToolCallPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import NOBODY, Scope
from ricordo.domain.tool import Tool, ToolType
from ricordo.errors import Invalid, RicordoError
from ricordo.memory.recall import Recall
from ricordo.memory.working_memory import WorkingMemory
from ricordo.prompt.transcript import truncate
from ricordo.storage import tools
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
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


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use: the step's working memory to change, the store to read, all that is kept to search.

    Where it gives the agent words that are kept, it says in `quoted` whose they are. `turn_began` gives a
    timestamp: what the conversation holds since then is being said.
    """

    call_id: str
    state: AgentState
    memory: WorkingMemory
    store: Store
    scope: Scope
    recall: Recall
    quoted: Quoted = field(default_factory=Quoted)
    turn_began: Callable[[], int | None] = lambda: None

    @property
    def subject_id(self) -> str:
        """Whom what is found may be about: the conversation's user, or NOBODY, so that what others said stays with them."""
        return self.scope.subject_id or self.state.conversation.user_id or NOBODY


ToolFunction = Callable[..., Awaitable[Any] | Any]


@dataclass(eq=False)
class ServerTool:
    """A tool that runs in the server, made from a function whose first parameter is the context.

    With `acts_outside` a call is saved before it is run, since it may change something that no rollback brings back. With
    `brings_untrusted` its results are untrusted: pages, files, what other systems say. With `edits_memory` its
    calls may carry the user's words that asked for the edit, where a block wants that.
    """

    function: ToolFunction
    tool_type: ToolType
    _: KW_ONLY
    runs_in_parallel: bool = False
    acts_outside: bool = False
    brings_untrusted: bool = False
    edits_memory: bool = False
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
        named = {self.aliases.get(name, name): value for name, value in arguments.items()}
        checked = self._arguments.model_validate(named)
        fields = self._arguments.model_fields.items()
        result = self.function(context, **{str(field.alias): getattr(checked, name) for name, field in fields})
        return await result if inspect.isawaitable(result) else result


class Toolbox:
    """Every tool this server can run, by name."""

    def __init__(self, tools: Iterable[ServerTool]) -> None:
        self._tools: dict[str, ServerTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f'Two plugins offer a tool named "{tool.name}". Remove one of them.')
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[ServerTool]:
        return iter(self._tools.values())

    def get(self, name: str) -> ServerTool | None:
        """The tool with this name, if the server can run it."""
        return self._tools.get(name)

    async def run(
        self, calls: Sequence[ToolCallPart], attached: Mapping[str, Tool], context: Callable[[str], ToolContext]
    ) -> list[ToolReturnPart]:
        """Run the calls of one step; results come in the order of the calls.

        Neighbouring calls of tools that allow it run at the same time, all others one after the other.
        """
        results: list[ToolReturnPart] = []
        for group in _groups(calls, attached):
            results += await asyncio.gather(
                *(self._run_one(call, attached.get(call.name), context(call.call_id)) for call in group)
            )
        return results

    async def _run_one(self, call: ToolCallPart, tool: Tool | None, context: ToolContext) -> ToolReturnPart:
        """One result, cut to its limit, with what it quotes."""
        server_tool = self._tools.get(call.name)
        if tool is None or server_tool is None:
            names = ", ".join(tool.name for tool in context.state.tools if tool.name in self._tools) or "none"
            return failed_result(call, f"There is no tool named {call.name} here. Tools you can call: {names}.")
        result = await _attempt(server_tool, call, context)
        if len(result.content) > tool.return_limit:
            result = replace(result, content=truncate(result.content, tool.return_limit), is_json=False)
        quoted = context.quoted
        is_untrusted = server_tool.brings_untrusted or quoted.is_untrusted
        if not (quoted.sources or is_untrusted):
            return result
        sources, said = (tuple(dict.fromkeys(ids)) for ids in (quoted.sources, quoted.said))
        return replace(result, sources=sources, said=said, is_untrusted=is_untrusted)


async def _attempt(server_tool: ServerTool, call: ToolCallPart, context: ToolContext) -> ToolReturnPart:
    """What the tool returns, or its failure as a result."""
    try:
        result = await server_tool.call(context, _read_arguments(call))
        if isinstance(result, str):
            return ToolReturnPart(call.call_id, call.name, "success", _whole(result))
        content = orjson.dumps(result, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        return ToolReturnPart(call.call_id, call.name, "success", content, is_json=True)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        told = f"The arguments of {call.name} are not right: {faults}. Call it again with these corrected."
        return failed_result(call, told)
    except RicordoError as error:
        return failed_result(call, str(error), type(error).__name__)
    except Exception as error:
        # Whatever a tool does wrong, the agent gets a result; people find the traceback in the log.
        log.exception("tool failed", extra={"tool": call.name, "agent": context.state.agent.id})
        told = f"{type(error).__name__}: {error}"
        return replace(failed_result(call, told), stderr=_trace(call, told))


def _whole(text: str) -> str:
    """The text without halves of characters, which nothing could store or send."""
    return text.encode("utf-8", "replace").decode()


def schema_of(tool: Tool) -> ToolSchema:
    """A stored tool as models see it."""
    schema = tool.json_schema
    return ToolSchema(tool.name, schema.get("description", tool.description), schema["parameters"])


def failed_result(call: ToolCallPart, message: str, kind: str = "ValueError") -> ToolReturnPart:
    """The result of a call that failed; `kind` names the error in its trace."""
    return ToolReturnPart(call.call_id, call.name, "error", _whole(message), stderr=_trace(call, f"{kind}: {message}"))


def _groups(calls: Sequence[ToolCallPart], attached: Mapping[str, Tool]) -> list[list[ToolCallPart]]:
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
        raise Invalid(f"The arguments are not valid JSON ({error}). Call the tool again with valid JSON.") from error
    if not isinstance(arguments, dict):
        raise Invalid("The arguments must be a JSON object. Call the tool again with one.")
    return arguments


def _trace(call: ToolCallPart, told: str) -> tuple[str]:
    # The wording is a wire fact of the retired Letta V1 server.
    return (_whole(f"Error executing function {call.name}: {told}")[:_ERROR_LIMIT],)


def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the function's parameters, its first one (the context) left out; unknown ones are refused by name."""
    hints = get_type_hints(function)
    words = _argument_words(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # An alias, because a field of its own name could hide something of the model: json, copy, schema, …
        fields[f"argument_{name}"] = (hints[name], Field(default, alias=name, description=words.get(name)))
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def describe(function: Callable[..., Any], arguments: type[BaseModel]) -> ToolSchema:
    """The tool as models see it."""
    summary = re.split(r"\n[ \t]*(?:Args|Returns|Raises):", inspect.getdoc(function) or "")[0].strip()
    schema = _plain(arguments.model_json_schema())
    parameters = {"type": "object", "properties": schema.get("properties", {}), "required": schema.get("required", [])}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    return ToolSchema(function.__name__, summary, parameters)


def _argument_words(docstring: str) -> dict[str, str]:
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    words: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(section.group(1)).splitlines() if section else ():
        if match := _ARGUMENT.match(line):
            name = match.group(1)
            words[name] = match.group(2)
        elif name and line.strip():
            words[name] += " " + line.strip()
    return words


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
        key: {name: _plain(item) for name, item in value.items()} if key == "properties" else _plain(value)
        for key, value in schema.items()
        if key != "title" and (key, value) not in (("additionalProperties", False), ("default", None))
    }


def sync_tools(tx: Transaction, scope: Scope, toolbox: Toolbox) -> None:
    """Bring the stored tools of this organization up to date with what this server can run, as each start does."""
    tools.lock(tx, scope)  # several servers of one database may start at once
    offered = {tool.name: tool for tool in toolbox}
    stored, now = tools.by_names(tx, scope, list(offered)), tx.clock.now()
    new = [
        Tool(new_id("tool"), scope.organization_id, name, tool.tool_type, {}, created_at=now, updated_at=now)
        for name, tool in offered.items()
        if name not in stored
    ]
    tools.insert_all(tx, [_as_offered(tool, offered[tool.name]) for tool in new])
    for name, tool in stored.items():
        if (current := _as_offered(tool, offered[name])) != tool:
            tools.update(tx, replace(current, updated_at=now))


def _as_offered(tool: Tool, offered: ServerTool) -> Tool:
    schema = offered.schema
    return replace(
        tool,
        tool_type=offered.tool_type,
        json_schema={"name": schema.name, "description": schema.description, "parameters": schema.parameters},
        description=schema.description,
        source_type="python",
        runs_in_parallel=offered.runs_in_parallel,
        tags=(offered.tool_type,),
    )
