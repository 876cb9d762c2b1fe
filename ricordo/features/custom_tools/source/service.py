"""Create, change, delete and search tools made from source code."""

from collections.abc import Sequence
from dataclasses import replace

import orjson

from ricordo.domain.ids import new_id
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.errors import Conflict, Invalid, Unsupported
from ricordo.features.custom_tools.source.environments import add_build, texts_of
from ricordo.features.custom_tools.source.javascript import is_function_name
from ricordo.features.custom_tools.source.models import ToolCreateRequest, ToolUpdateRequest
from ricordo.features.custom_tools.source.source import (
    function_name,
    name_and_description,
    read_source,
)
from ricordo.storage import agents, tools
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

FUNCTION = "function"
OPTIONS = ("args_json_schema", "pip_requirements")
# The fields of a change that affect the tool's schema.
_SCHEMA_FIELDS = ("args_json_schema", "description", "json_schema", "source_code", "source_type")
_LONGEST_SCHEMA = 100_000  # bytes
_MOST_SEARCHED = 1_000  # tools


class ToolChanged(Conflict):
    """Another request has changed the tool since its new schema was made.

    `tool` is the tool as it is now.
    """

    def __init__(self, tool: Tool) -> None:
        super().__init__(
            "The tool was changed by another request. Read it again, then repeat the change."
        )
        self.tool = tool


def name_for(request: ToolCreateRequest) -> str:
    """Return the name of the requested tool.

    Args:
        request: The request. Without a `json_schema`, the source is read.

    Raises:
        Invalid: There is no name, or the schema or the source cannot be used.
    """
    name = (request.json_schema or {}).get("name")
    if isinstance(name, str):
        return name
    return schema_for(request).name


def tool_by_name(tx: Transaction, scope: Scope, name: str) -> Tool | None:
    """Return the tool of this name, or None.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        name: The exact name.
    """
    return tools.by_names(tx, scope, [name]).get(name)


def schema_for(request: ToolCreateRequest, *, renames: bool = False) -> ToolSchema:
    """Return the tool's schema, which was sent or is read from the source.

    For a long source this takes some time.

    Args:
        request: The request for a tool, with its source.
        renames: The name in the schema may differ from the function's name.

    Raises:
        Invalid: The schema or the source cannot be used, or a name is missing.
    """
    whole = request.json_schema
    arguments = request.args_json_schema
    for schema in (whole, arguments):
        if schema is not None and len(orjson.dumps(schema)) > _LONGEST_SCHEMA:
            raise Invalid(f"The JSON schema has more than {_LONGEST_SCHEMA:,} bytes. Shorten it.")
    name = whole.get("name") if whole else None
    if whole is not None:
        parameters = whole.get("parameters", {"type": "object", "properties": {}})
        if not isinstance(name, str) or not isinstance(parameters, dict):
            raise Invalid("A json_schema is an object with name, description and parameters.")
        if request.source_type == "python":
            function = function_name(request.source_code, name)
        else:
            function = name
            if not renames and not is_function_name(name):
                raise Invalid(
                    f"The json_schema names {name[:100]}, but no function in JavaScript can have "
                    "this name. Use letters, digits and _, with no digit first, and no word of "
                    "the language."
                )
        if function != name and not renames:
            raise Invalid(
                f"The json_schema names {name}, but the source defines no function of this name."
            )
        description = request.description or str(whole.get("description") or "")
        return _checked(ToolSchema(name, description, parameters))
    if request.source_type != "python":
        raise Invalid(
            "Send a json_schema {name, description, parameters}. Only for Python is it read from "
            "the source."
        )
    if arguments is not None:
        function, description = name_and_description(request.source_code)
        description = request.description or description
        return _checked(
            ToolSchema(function, description, {"type": "object", "properties": {}, **arguments})
        )
    return _checked(read_source(request.source_code, description=request.description))


def _checked(schema: ToolSchema) -> ToolSchema:
    name = schema.name
    if not (
        0 < len(name) <= 64
        and name.isascii()
        and name.replace("-", "_").replace("_", "a").isalnum()
    ):
        raise Invalid(
            f'A tool cannot be named "{name[:100]}": Use letters, digits, _ and -, at most 64.'
        )
    if schema.parameters.get("type", "object") != "object" or not isinstance(
        schema.parameters.get("properties", {}), dict
    ):
        raise Invalid(
            "The parameters of a tool are a JSON schema of the type object, with properties."
        )
    return schema


def create(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    """Store a new tool.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the creator.
        request: The tool's source and options.
        schema: The tool's schema, from `schema_for`.

    Raises:
        Conflict: A tool of this name exists.
    """
    tools.lock(tx, scope)
    if schema.name in tools.by_names(tx, scope, [schema.name]):
        raise Conflict(
            f"A tool named {schema.name} already exists. Change it, or rename the function."
        )
    return _insert(tx, scope, request, schema)


def upsert(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    """Store a tool, or replace the custom tool of the same name.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the author.
        request: The tool's source and options. An option that is missing here is removed from an
            existing tool.
        schema: The tool's schema, from `schema_for`; its name selects the tool.

    Raises:
        Unsupported: The existing tool belongs to the server or a plugin.
    """
    tools.lock(tx, scope)
    tool = tools.by_names(tx, scope, [schema.name]).get(schema.name)
    if tool is None:
        return _insert(tx, scope, request, schema)
    _require_own(tool)
    return _update(tx, scope, _of_request(tool, request, schema))


def _insert(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    now = tx.clock.now()
    new_tool = Tool(
        new_id("tool"),
        scope.organization_id,
        schema.name,
        tool_type="custom",
        json_schema={},
        created_by=scope.user_id,
        created_at=now,
        updated_by=scope.user_id,
        updated_at=now,
    )
    tool = _of_request(new_tool, request, schema)
    tools.insert_all(tx, [tool])
    _build_early(tx, scope, tool)
    return tool


def _of_request(tool: Tool, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    options = request.model_dump(include=set(OPTIONS), exclude_none=True)
    return replace(
        _with_schema(tool, schema),
        source_code=request.source_code,
        source_type=request.source_type,
        return_limit=request.return_char_limit,
        needs_approval=bool(request.default_requires_approval),
        runs_in_parallel=bool(request.enable_parallel_execution),
        tags=tuple(request.tags or ()),
        options={name: option for name, option in options.items() if option},
    )


def _with_schema(tool: Tool, schema: ToolSchema) -> Tool:
    whole = {
        "name": schema.name,
        "description": schema.description,
        "parameters": schema.parameters,
    }
    return replace(tool, name=schema.name, description=schema.description, json_schema=whole)


def change(
    tx: Transaction,
    scope: Scope,
    read_tool: Tool,
    request: ToolUpdateRequest,
    schema: ToolSchema | None,
) -> Tool:
    """Change a tool.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the author of the change.
        read_tool: The tool as it was when the schema was made.
        request: The changes; a field that is null or was not sent keeps its value.
        schema: The new schema, as `new_schema` returns it; None to keep the old one. Another name
            in it renames the tool.

    Raises:
        NotFound: There is no such tool.
        Unsupported: The tool was not made from source code, and the change is not one of the few
            that such a tool allows.
        ToolChanged: The schema was made from an older version of the tool.
        Conflict: A tool has the new name, or an agent has a rule about the old one.
        Invalid: The source defines no function.
    """
    tools.lock(tx, scope)
    tool = tools.get(tx, scope, read_tool.id)
    if schema and read_tool != tool:
        raise ToolChanged(tool)
    changes = {
        name: change
        for name in request.model_fields_set
        if (change := getattr(request, name)) is not None
    }
    if foreign := changes.keys() - {"return_char_limit", "default_requires_approval", "metadata_"}:
        _require_own(tool, sorted(foreign)[0])
    changed = replace(
        tool,
        return_limit=changes.get("return_char_limit", tool.return_limit),
        needs_approval=changes.get("default_requires_approval", tool.needs_approval),
        runs_in_parallel=changes.get("enable_parallel_execution", tool.runs_in_parallel),
        tags=tuple(changes.get("tags", tool.tags)),
        metadata=changes.get("metadata_", tool.metadata),
        source_code=changes.get("source_code", tool.source_code),
        source_type=changes.get("source_type", tool.source_type),
    )
    if options := request.model_dump(include=set(OPTIONS), exclude_none=True):
        changed = replace(changed, options={**changed.options, **options})
    if schema:
        changed = _with_function(changed, schema.name, keeps_source=request.source_code is None)
        changed = _with_schema(changed, schema)
        if changed.name != tool.name:
            if changed.name in tools.by_names(tx, scope, [changed.name]):
                raise Conflict(f"A tool named {changed.name} already exists. Rename the function.")
            _require_no_rule(tx, scope, tool)
    return _update(tx, scope, changed)


def new_schema(tool: Tool, update: ToolUpdateRequest) -> ToolSchema | None:
    """Return the tool's schema after a change; None if the change does not affect it.

    Args:
        tool: The tool before the change.
        update: The changes.

    Raises:
        Unsupported: The tool was not made from source code.
        Invalid: The schema or the source cannot be used.
    """
    changed_names = [name for name in _SCHEMA_FIELDS if getattr(update, name) is not None]
    if not changed_names:
        return None
    _require_own(tool, changed_names[0])
    language = update.source_type or tool.source_type or "python"
    keeps_schema = (
        update.source_code is None or language != "python"
    ) and update.args_json_schema is None
    source = update.source_code or tool.source_code or ""
    description = update.description
    if not description and not (update.json_schema or {}).get("description"):
        description = _kept_description(tool, source, language)
    request = ToolCreateRequest(
        source_code=source,
        source_type=language,
        json_schema=update.json_schema or (tool.json_schema if keeps_schema else None),
        args_json_schema=update.args_json_schema or tool.options.get("args_json_schema"),
        description=description,
    )
    has_same_name = (update.json_schema or {}).get("name") in (None, tool.name)
    keeps_function = update.source_code is None or (language != "python" and has_same_name)
    return schema_for(request, renames=keeps_function)


def _kept_description(tool: Tool, source: str, language: str) -> str | None:
    """Return the description to keep if a change sends none.

    Returns None if the old description came from the old source, and the new source has one.
    """
    if language != "python" or tool.description != _docstring(tool.source_code or ""):
        return tool.description or None
    if _docstring(source):
        return None
    return tool.description


def _docstring(source: str) -> str:
    try:
        return name_and_description(source)[1]
    except Invalid:
        return ""


def _with_function(tool: Tool, name: str, *, keeps_source: bool) -> Tool:
    """Return the tool with the option `function` if its function has another name, else without.

    `name` is the tool's new name. In Python, the function with this name is preferred to the old
    one. In JavaScript, the old function is kept if the source or the tool's name stays the same.
    """
    options = {key: option for key, option in tool.options.items() if key != FUNCTION}
    function = name
    old_function = tool.options.get(FUNCTION, tool.name)
    if tool.source_type == "python":
        function = function_name(tool.source_code or "", name)
        if function != name:
            function = function_name(tool.source_code or "", old_function)
    elif keeps_source or name == tool.name:
        function = old_function
    if function != name:
        options[FUNCTION] = function
    return replace(tool, options=options)


def delete(tx: Transaction, scope: Scope, tool_id: str) -> None:
    """Delete a tool; agents lose it.

    Args:
        tx: The transaction.
        scope: The caller.
        tool_id: A custom tool, or the tool of an MCP server.

    Raises:
        NotFound: There is no such tool.
        Unsupported: The tool belongs to the server or a plugin.
        Conflict: An agent has a rule about the tool.
    """
    tool = tools.get(tx, scope, tool_id)
    if tool.tool_type != "external_mcp":
        _require_own(tool, "it")
    _require_no_rule(tx, scope, tool)
    tools.remove(tx, tool.id)


def _update(tx: Transaction, scope: Scope, tool: Tool) -> Tool:
    changed = replace(tool, updated_by=scope.user_id, updated_at=tx.clock.now())
    tools.update(tx, changed)
    _build_early(tx, scope, changed)
    return changed


def _build_early(tx: Transaction, scope: Scope, tool: Tool) -> None:
    """Add a job that installs the packages before a first call needs them."""
    if requirements := texts_of(tool.pip_requirements):
        add_build(tx, scope, requirements)


def _require_own(tool: Tool, part: str = "source_code") -> None:
    if tool.tool_type != "custom" or tool.source_code is None:
        raise Unsupported(
            f"{tool.name} belongs to this server, an MCP server or a plugin, so {part} cannot be "
            "changed or deleted."
        )


def _require_no_rule(tx: Transaction, scope: Scope, tool: Tool) -> None:
    """Raise Conflict if an agent has a rule about the tool, other than one for approval.

    Without the tool, the agent's other rules might never let a turn end.
    """
    for agent in agents.with_rule_about(tx, scope, tool):
        if any(
            rule.tool_name == tool.name and rule.type != "requires_approval"
            for rule in agent.tool_rules
        ):
            raise Conflict(
                f'The agent "{agent.name}" ({agent.id}) has a rule about {tool.name}. Change its '
                "tool rules first."
            )


def search_candidates(
    tx: Transaction, scope: Scope, types: Sequence[str], tags: Sequence[str]
) -> list[Tool]:
    """Return the tools of these types that have one of the tags.

    Only the newest 1,000 tools of these types are examined.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        types: Types of tools; empty for all types.
        tags: Tags of which a tool must have one; empty for all tools of these types.
    """
    rows = tools.page(tx, scope, Page(_MOST_SEARCHED), tools.ToolFilter(types=tuple(types)))
    return [tool for tool in rows if not tags or set(tags) & set(tool.tags)]
