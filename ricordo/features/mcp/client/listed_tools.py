"""Check and limit the tools that an MCP server lists, and remove invisible text from them."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from mcp import Client

SchemaHealth = Literal["STRICT_COMPLIANT", "NON_STRICT_ONLY"]
MOST_TOOLS = 128  # of one server
_MOST_PAGES = 20
_LONGEST_NAME = 128  # characters
_LONGEST_DESCRIPTION = 8_000  # characters
_LARGEST_SCHEMA = 32_000  # bytes as JSON
_DEEPEST_SCHEMA = 24
_MOST_REASONS = 10
_LONGEST_REASON = 200
# Argument names that model providers accept. A provider that refuses a name would end every turn of
# the agent.
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "if", "$ref")
_UNKNOWN_TO_STRICT = frozenset(
    {"oneOf", "allOf", "not", "if", "patternProperties", "dependentSchemas"}
)


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it now.

    `warnings` are the reasons why a provider cannot enforce its schema strictly.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def health(self) -> SchemaHealth:
        if self.warnings:
            return "NON_STRICT_ONLY"
        return "STRICT_COMPLIANT"

    @property
    def fingerprint(self) -> str:
        """Return a hash of the text and schema that a model sees."""
        return fingerprint_of(self.description, self.parameters)


def fingerprint_of(description: str, parameters: Mapping[str, Any]) -> str:
    """Return a hash of the text and schema that a model sees.

    Args:
        description: The description, without invisible characters.
        parameters: The JSON schema of the arguments; the order of its keys has no effect.
    """
    text = orjson.dumps([description, parameters], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


class ToolList:
    """Reduces lists of tools to names, descriptions and schemas.

    Tools that the library cannot read are left out and recorded, since the library would refuse
    the whole list because of one such tool.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def filtered(self, tools: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the tools that the library can read, reduced to three fields.

        Args:
            tools: The tools of one page, as the server sent them; they are not trusted. All after
                the first 129 are ignored.
        """
        usable = []
        for tool in tools[: MOST_TOOLS + 1]:
            if isinstance(tool, dict):
                name = tool.get("name")
            else:
                name = None
            if not isinstance(name, str):
                self.refuse("?", "It has no name.")
            elif not isinstance(schema := tool.get("inputSchema"), dict):
                self.refuse(name, "It has no schema of its arguments, or one of a wrong type.")
            elif schema.get("type", "object") != "object":
                self.refuse(name, "The schema of its arguments is not of the type object.")
            else:
                description = tool.get("description")
                if not isinstance(description, str):
                    description = ""
                usable.append(
                    {
                        "name": name,
                        "description": description,
                        "inputSchema": {**schema, "type": "object"},
                    }
                )
        return usable

    def refuse(self, name: str, reason: str) -> None:
        """Record that a tool is left out.

        Args:
            name: The name of the tool, maybe with invisible characters.
            reason: The reason as a sentence, cut to 200 characters.
        """
        if len(self.refused) <= MOST_TOOLS:
            self.refused[plain(name)[:_LONGEST_NAME] or "?"] = reason[:_LONGEST_REASON]


async def read_tools(client: "Client", refused: ToolList) -> list[ListedTool]:
    """Return the usable tools that the server lists.

    Args:
        client: The library's client in an open session.
        refused: The list of the session's stream. It is emptied, then receives all other tools,
            each with the reason.
    """
    from mcp.types import PaginatedRequestParams

    refused.refused.clear()
    listed: dict[str, ListedTool] = {}
    cursor: str | None = None
    seen_cursors: set[str] = set()
    for _ in range(_MOST_PAGES):
        position = None
        if cursor:
            position = PaginatedRequestParams(cursor=cursor)
        page = await client.session.list_tools(params=position)
        for tool in page.tools:
            if tool.name in listed:
                refused.refuse(tool.name, "The server lists it twice; the first is used.")
            elif len(listed) >= MOST_TOOLS:
                refused.refuse(
                    tool.name, f"The server lists more than {MOST_TOOLS} tools; the first are used."
                )
            else:
                fault = _fault(tool.name, tool.description or "", tool.input_schema)
                if fault:
                    refused.refuse(tool.name, fault)
                else:
                    listed[tool.name] = _listed(
                        tool.name, tool.description or "", tool.input_schema
                    )
        cursor = page.next_cursor
        if not cursor or cursor in seen_cursors or len(listed) >= MOST_TOOLS:
            break
        seen_cursors.add(cursor)
    return list(listed.values())


def plain(text: str) -> str:
    """Remove invisible characters that models read: controls, tags, directions.

    Args:
        text: A text from a server. Line feeds and tabs stay.
    """
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )


def _listed(name: str, description: str, schema: Mapping[str, Any]) -> ListedTool:
    ignored = ("$schema", "$id", "title")
    parameters = _cleaned({key: part for key, part in schema.items() if key not in ignored})
    parameters.setdefault("properties", {})
    warnings = tuple(_looseness(parameters))[:_MOST_REASONS]
    return ListedTool(name, plain(description).strip(), parameters, warnings)


def _fault(name: str, description: str, schema: Mapping[str, Any]) -> str:
    """Return the reason why the tool cannot be used; empty if it can."""
    if not name or len(name) > _LONGEST_NAME or plain(name) != name or "\n" in name:
        return f"Its name is empty, longer than {_LONGEST_NAME} characters, or cannot be shown."
    if len(description) > _LONGEST_DESCRIPTION:
        return f"Its description has more than {_LONGEST_DESCRIPTION:,} characters."
    if _depth_is_over(schema):
        return f"Its schema is nested more than {_DEEPEST_SCHEMA} deep."
    try:
        size = len(orjson.dumps(schema))
    except TypeError:
        return (
            "Its schema cannot be stored: it holds integers of more than 64 bits, or lone "
            "surrogates."
        )
    if size > _LARGEST_SCHEMA:
        return f"Its schema has {size:,} bytes, and {_LARGEST_SCHEMA:,} are allowed."
    return _invalidity(schema)


def _invalidity(schema: Mapping[str, Any]) -> str:
    """Return the reason why model providers refuse this schema; empty if they accept it."""
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

    if keywords := [key for key in _NOT_AT_TOP if key in schema]:
        return f"Its schema has {keywords[0]} at the top, which providers of models refuse."
    properties = schema.get("properties", {})
    if isinstance(properties, dict):
        for name in properties:
            if not _ARGUMENT.fullmatch(name):
                shown_name = plain(name)[:60]
                return f"Its argument {shown_name!r} has a name that providers of models refuse."
    if any(not str(part["$ref"]).startswith("#") for part in _objects(schema) if "$ref" in part):
        return "Its schema refers to another document."
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"Its schema is not valid: {plain(str(error.message))}"
    return ""


def _looseness(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a provider cannot enforce the schema in strict mode, as OpenAI does."""
    for part in _objects(schema):
        properties = part.get("properties")
        if isinstance(properties, dict) and part.get("type") == "object":
            if part.get("additionalProperties") is not False:
                yield "An object allows further properties."
            required = part.get("required")
            if not isinstance(required, list):
                required = []
            if missing := [name for name in properties if name not in required]:
                yield f"Not required: {', '.join(missing)[:100]}."
        if keywords := _UNKNOWN_TO_STRICT & part.keys():
            yield f"It uses {', '.join(sorted(keywords))}."


def _depth_is_over(schema: Any) -> bool:
    level = [schema]
    for _ in range(_DEEPEST_SCHEMA):
        level = [child for node in level for child in _inside(node)]
        if not level:
            return False
    return True


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
        waiting.extend(_inside(node))


def _inside(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, list):
        return node
    return []


def _cleaned(node: Any) -> Any:
    if isinstance(node, str):
        return plain(node)
    if isinstance(node, list):
        return [_cleaned(child) for child in node]
    if isinstance(node, dict):
        return {plain(key): _cleaned(child) for key, child in node.items()}
    return node
