"""Making, changing, deleting and finding tools from source code."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from ricordo.domain.ids import new_id
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.errors import Conflict, Invalid, Unsupported
from ricordo.features.custom_tools.environments import add_build, texts_of
from ricordo.features.custom_tools.models import ToolCreateRequest, ToolUpdateRequest
from ricordo.features.custom_tools.source import function_name, name_and_description, read_source
from ricordo.search.words import query_terms, terms
from ricordo.storage import agents, tools
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

FUNCTION = "function"
OPTIONS = ("args_json_schema", "pip_requirements")
_LONGEST_SCHEMA = 100_000  # bytes
_MOST_SEARCHED = 1_000  # tools
_NEAR = 0.2  # cosine
_RANK_WEIGHT = 60  # of reciprocal rank fusion


def name_for(request: ToolCreateRequest) -> str:
    """Return the name of the tool that a request tells of. Raises Invalid where it has none."""
    name = (request.json_schema or {}).get("name")
    return name if isinstance(name, str) else schema_for(request).name


def named(tx: Transaction, scope: Scope, name: str) -> Tool | None:
    """Return the tool of this name."""
    return tools.by_names(tx, scope, [name]).get(name)


def schema_for(request: ToolCreateRequest, *, renames: bool = False) -> ToolSchema:
    """Return the tool as models see it: as it was sent, or read from its source. It takes some time for a long source.

    Where it `renames`, the schema may have another name than the function.
    """
    whole, arguments = request.json_schema, request.args_json_schema
    for sent in (whole, arguments):
        if sent is not None and len(orjson.dumps(sent)) > _LONGEST_SCHEMA:
            raise Invalid(f"The JSON schema has more than {_LONGEST_SCHEMA:,} bytes. Shorten it.")
    name = whole.get("name") if whole else None
    if whole is not None:
        parameters = whole.get("parameters", {"type": "object", "properties": {}})
        if not isinstance(name, str) or not isinstance(parameters, dict):
            raise Invalid("A json_schema is an object of name, description and parameters.")
        function = (
            function_name(request.source_code, name) if request.source_type == "python" else name
        )
        if function != name and not renames:
            raise Invalid(
                f"The json_schema is of {name}, and the source defines no function of this name."
            )
        told = request.description or str(whole.get("description", ""))
        return _checked(ToolSchema(name, told, parameters))
    if request.source_type != "python":
        raise Invalid(
            "Send a json_schema {name, description, parameters}: it is read from the source of Python alone."
        )
    if arguments is not None:
        function, told = name_and_description(request.source_code)
        told = request.description or told
        return _checked(
            ToolSchema(function, told, {"type": "object", "properties": {}, **arguments})
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
            f'A tool cannot be named "{name[:100]}": models know letters, digits, _ and -, 64 at most.'
        )
    if schema.parameters.get("type", "object") != "object" or not isinstance(
        schema.parameters.get("properties", {}), dict
    ):
        raise Invalid(
            "The parameters of a tool are a JSON schema of the type object, with properties."
        )
    return schema


def create(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    tools.lock(tx, scope)
    if schema.name in tools.by_names(tx, scope, [schema.name]):
        raise Conflict(
            f"A tool named {schema.name} already exists. Change it, or name the function otherwise."
        )
    return _insert(tx, scope, request, schema)


def upsert(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    tools.lock(tx, scope)
    found = tools.by_names(tx, scope, [schema.name]).get(schema.name)
    if found is None:
        return _insert(tx, scope, request, schema)
    _require_own(found)
    made = _of_request(found, request, schema)
    return _update(tx, scope, made)


def _insert(tx: Transaction, scope: Scope, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    now = tx.clock.now()
    made = _of_request(
        Tool(
            new_id("tool"),
            scope.organization_id,
            schema.name,
            "custom",
            {},
            created_by=scope.user_id,
            created_at=now,
        ),
        request,
        schema,
    )
    tools.insert_all(tx, [made := replace(made, updated_by=scope.user_id, updated_at=now)])
    _build_early(tx, scope, made)
    return made


def _of_request(tool: Tool, request: ToolCreateRequest, schema: ToolSchema) -> Tool:
    return replace(
        _with_schema(tool, schema),
        source_code=request.source_code,
        source_type=request.source_type,
        return_limit=request.return_char_limit,
        needs_approval=bool(request.default_requires_approval),
        runs_in_parallel=bool(request.enable_parallel_execution),
        tags=tuple(request.tags or ()),
        options={
            name: value
            for name, value in request.model_dump(include=set(OPTIONS), exclude_none=True).items()
            if value
        },
    )


def _with_schema(tool: Tool, schema: ToolSchema) -> Tool:
    whole = {
        "name": schema.name,
        "description": schema.description,
        "parameters": schema.parameters,
    }
    return replace(tool, name=schema.name, description=schema.description, json_schema=whole)


def change(
    tx: Transaction, scope: Scope, tool_id: str, asked: ToolUpdateRequest, schema: ToolSchema | None
) -> Tool:
    """Change a tool; `schema` is its new one, where that changes."""
    tools.lock(tx, scope)
    tool = tools.get(tx, scope, tool_id)
    sent = {
        name: value
        for name in asked.model_fields_set
        if (value := getattr(asked, name)) is not None
    }
    if foreign := sent.keys() - {"return_char_limit", "default_requires_approval", "metadata_"}:
        _require_own(tool, sorted(foreign)[0])
    made = replace(
        tool,
        return_limit=sent.get("return_char_limit", tool.return_limit),
        needs_approval=sent.get("default_requires_approval", tool.needs_approval),
        runs_in_parallel=sent.get("enable_parallel_execution", tool.runs_in_parallel),
        tags=tuple(sent.get("tags", tool.tags)),
        metadata=sent.get("metadata_", tool.metadata),
        source_code=sent.get("source_code", tool.source_code),
        source_type=sent.get("source_type", tool.source_type),
    )
    if options := asked.model_dump(include=set(OPTIONS), exclude_none=True):
        made = replace(made, options={**made.options, **options})
    if schema:
        made = _with_function(made, schema.name, keeps_source=asked.source_code is None)
        made = _with_schema(made, schema)
        if made.name != tool.name:
            if made.name in tools.by_names(tx, scope, [made.name]):
                raise Conflict(
                    f"A tool named {made.name} already exists. Name the function otherwise."
                )
            _require_no_rule(tx, scope, tool)
    return _update(tx, scope, made)


def new_schema(tool: Tool, asked: ToolUpdateRequest) -> ToolSchema | None:
    """The schema that a change gives this tool, None where it stays."""
    sent = asked.model_fields_set & {
        "source_code",
        "source_type",
        "json_schema",
        "args_json_schema",
        "description",
    }
    if not any(getattr(asked, name) is not None for name in sent):
        return None
    _require_own(tool, sorted(sent)[0])
    language = asked.source_type or tool.source_type or "python"
    keeps_schema = (
        asked.source_code is None or language != "python"
    ) and asked.args_json_schema is None
    source = asked.source_code or tool.source_code or ""
    described = asked.description or (asked.json_schema or {}).get("description")
    request = ToolCreateRequest(
        source_code=source,
        source_type=language,
        json_schema=asked.json_schema or (tool.json_schema if keeps_schema else None),
        args_json_schema=asked.args_json_schema or tool.options.get("args_json_schema"),
        description=asked.description if described else _kept_description(tool, source, language),
    )
    return schema_for(request, renames=asked.source_code is None)


def _kept_description(tool: Tool, source: str, language: str) -> str | None:
    """Return the description that stays where none is sent; None where the new source says one, as the old one did."""
    if language != "python" or tool.description != _docstring(tool.source_code or ""):
        return tool.description or None
    return None if _docstring(source) else tool.description


def _docstring(source: str) -> str:
    try:
        return name_and_description(source)[1]
    except Invalid:
        return ""


def _with_function(tool: Tool, name: str, *, keeps_source: bool) -> Tool:
    """Return the tool with what its function is called in the source, where that is not the tool's own name."""
    options = {key: value for key, value in tool.options.items() if key != FUNCTION}
    function, before = name, tool.options.get(FUNCTION, tool.name)
    if tool.source_type == "python":
        function = function_name(tool.source_code or "", name)
        if function != name:
            function = function_name(tool.source_code or "", before)
    elif keeps_source:
        function = before
    return replace(tool, options=options if function == name else {**options, FUNCTION: function})


def delete(tx: Transaction, scope: Scope, tool_id: str) -> None:
    tool = tools.get(tx, scope, tool_id)
    if tool.tool_type != "external_mcp":
        _require_own(tool, "itself")
    _require_no_rule(tx, scope, tool)
    tools.remove(tx, tool.id)


def _update(tx: Transaction, scope: Scope, tool: Tool) -> Tool:
    changed = replace(tool, updated_by=scope.user_id, updated_at=tx.clock.now())
    tools.update(tx, changed)
    _build_early(tx, scope, changed)
    return changed


def _build_early(tx: Transaction, scope: Scope, tool: Tool) -> None:
    """Have the packages installed before the first call wants them."""
    if requirements := texts_of(tool.pip_requirements):
        add_build(tx, scope, requirements)


def _require_own(tool: Tool, what: str = "source_code") -> None:
    if tool.tool_type != "custom" or tool.source_code is None:
        raise Unsupported(
            f"{tool.name} is a tool of this server or of a plugin: {what} cannot be changed or deleted."
        )


def _require_no_rule(tx: Transaction, scope: Scope, tool: Tool) -> None:
    """Raise Conflict where an agent has a rule about the tool, without which its rules might let no turn end."""
    for agent in agents.with_rule_about(tx, scope, tool):
        if any(
            rule.tool_name == tool.name and rule.type != "requires_approval"
            for rule in agent.tool_rules
        ):
            raise Conflict(
                f'The agent "{agent.name}" ({agent.id}) has a rule about {tool.name}. Change its tool rules first.'
            )


@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool that a search found; ranks begin with 1."""

    tool: Tool
    embedded_text: str
    fts_rank: int | None
    vector_rank: int | None
    combined_score: float


def text_of(tool: Tool) -> str:
    """What a tool is found by."""
    parameters = " ".join(tool.json_schema.get("parameters", {}).get("properties", {}))
    return f"{tool.name.replace('_', ' ')}: {tool.description} {parameters} {' '.join(tool.tags)}"


def by_words(query: str, texts: Sequence[str]) -> list[int]:
    """The places of the texts that share words with the query, the best first; rare words count more."""
    wanted = set(query_terms(query))
    found = [Counter(terms(text)) for text in texts]
    spread = Counter(word for counts in found for word in counts)
    weights = {word: math.log(1 + len(texts) / spread[word]) for word in wanted if spread[word]}
    scores = [
        sum(weights.get(word, 0) * count / (count + 1) for word, count in counts.items())
        for counts in found
    ]
    return sorted(
        (place for place, score in enumerate(scores) if score > 0),
        key=lambda place: (-scores[place], place),
    )


def by_vectors(query: Sequence[float], vectors: Sequence[Sequence[float]]) -> list[int]:
    nearness = [
        sum(one * other for one, other in zip(query, vector, strict=True)) for vector in vectors
    ]
    return sorted(
        (place for place, near in enumerate(nearness) if near > _NEAR),
        key=lambda place: -nearness[place],
    )


def fused(
    found: Sequence[Tool], words: Iterable[int] | None, vectors: Iterable[int] | None
) -> list[FoundTool]:
    """Tools by both rankings, the best first."""
    ranks = [
        {place: rank for rank, place in enumerate(places or (), 1)} for places in (words, vectors)
    ]
    made = []
    for place in dict.fromkeys((*ranks[0], *ranks[1])):
        of_words, of_vectors = ranks[0].get(place), ranks[1].get(place)
        score = sum(1 / (_RANK_WEIGHT + rank) for rank in (of_words, of_vectors) if rank)
        made.append(FoundTool(found[place], text_of(found[place]), of_words, of_vectors, score))
    return sorted(made, key=lambda each: -each.combined_score)


def searched(
    tx: Transaction, scope: Scope, types: Sequence[str], tags: Sequence[str]
) -> list[Tool]:
    found = tools.page(tx, scope, Page(_MOST_SEARCHED), tools.ToolFilter(types=tuple(types)))
    return [tool for tool in found if not tags or set(tags) & set(tool.tags)]
