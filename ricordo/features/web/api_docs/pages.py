"""`/docs`: every operation of the API by tag, with its models and a command."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.pages.shell import Pages, done, render

router = Pages()
_DEEPEST = 3  # levels of objects and lists that are shown
_METHODS = ("get", "post", "put", "patch", "delete")
_REF = "#/components/schemas/"


@router.get("/docs")
@needs()
async def index(request: Request) -> Response:
    """List all operations, one on each line."""
    document = await _document(request)
    tags: dict[str, list[Json]] = {}
    for operation in _operations(document):
        tags.setdefault(operation["tag"], []).append(operation)
    api_info = document["info"]
    return await render(
        request,
        "web.api_docs/index.html",
        tags=sorted(tags.items()),
        info=api_info,
        is_large=True,
    )


@router.get("/docs/{tag}")
@needs()
async def show(request: Request, tag: str) -> Response:
    """Show the operations with this tag in full."""
    document = await _document(request)
    summaries = [summary for summary in _operations(document) if summary["tag"] == tag]
    if not summaries:
        raise NotFound(f'No operation has the tag "{tag[:80]}".')
    address = str(request.base_url).rstrip("/")
    operations = await asyncio.to_thread(
        lambda: [_whole(summary, document, address) for summary in summaries]
    )
    return await render(
        request, "web.api_docs/tag.html", tag=tag, operations=operations, is_large=True
    )


@router.get("/redoc")
@needs()
async def redoc(request: Request) -> Response:
    """Redirect from the address that another viewer usually has."""
    return done(request, "/docs")


async def _document(request: Request) -> Json:
    document: Json = await request.app.document()
    return document


def _operations(document: Json) -> Iterator[Json]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if operation := methods.get(method):
                tag = (operation.get("tags") or ["other"])[0]
                anchor = f"{method}-{path.strip('/')}"
                yield {
                    "tag": tag,
                    "method": method.upper(),
                    "path": path,
                    "anchor": anchor,
                    "operation": operation,
                }


def _whole(summary: Json, document: Json, address: str) -> Json:
    """Return an operation with all parts that its page shows."""
    operation = summary["operation"]
    schemas = document["components"]["schemas"]
    bodies: dict[str, Json] = (operation.get("requestBody") or {}).get("content") or {}
    kind = next(iter(bodies), "")
    parameters = [
        (
            parameter["name"],
            parameter["in"],
            bool(parameter.get("required")),
            _text(shape_of(parameter.get("schema") or {}, schemas)),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    schema: Json = bodies[kind].get("schema") or {} if kind else {}
    body = _text(shape_of(schema, schemas)) if kind else ""
    return {
        **summary,
        "parameters": parameters,
        "kind": kind,
        "body": body,
        "answers": [
            (status, answer.get("description", ""), _answer(answer, schemas))
            for status, answer in sorted(operation["responses"].items())
        ],
        "command": _command(summary, address, _body_options(kind, schema, schemas)),
    }


def _answer(answer: Json, schemas: Mapping[str, Json]) -> str:
    bodies: dict[str, Json] = answer.get("content") or {}
    kind = next(iter(bodies), "")
    if "json" not in kind:
        return kind
    return _text(shape_of(bodies[kind].get("schema") or {}, schemas))


def _text(shape: Any) -> str:
    return shape if isinstance(shape, str) else json.dumps(shape, indent=2, ensure_ascii=False)


def _command(summary: Json, address: str, body_options: Sequence[str]) -> str:
    """Return the command for the operation, with the names of the parameters in its path."""
    path = quote(summary["path"], safe="/{}").replace("{", "").replace("}", "")
    parts = [
        f"curl -X {summary['method']} {address}{path}",
        '-H "authorization: Bearer $RICORDO_KEY"',
    ]
    return " \\\n  ".join([*parts, *body_options])


def _body_options(kind: str, schema: Json, schemas: Mapping[str, Json]) -> list[str]:
    """Return the options of curl that send a body of this media type; none for ""."""
    if not kind:
        return []
    if kind == "multipart/form-data":
        # curl adds the header itself, since it chooses the boundary between the fields.
        if ref := schema.get("$ref"):
            schema = schemas[ref.removeprefix(_REF)]
        return [
            f"-F {name}={'@' if 'contentMediaType' in schema['properties'][name] else ''}{name}"
            for name in schema.get("required", ())
        ]
    return [
        f"-H 'content-type: {kind}'",
        "-d @body.json" if "json" in kind else "--data-binary @file",
    ]


def shape_of(schema: Json, schemas: Mapping[str, Json], depth: int = 0) -> Any:
    """Return an example of the schema's values, or the name of their type.

    Below `_DEEPEST` levels, a schema is only named. So a schema that contains itself ends there.
    """
    if ref := schema.get("$ref"):
        name = ref.removeprefix(_REF)
        return name if depth >= _DEEPEST else shape_of(schemas[name], schemas, depth)
    if several := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _shape_of_choices(several, schemas, depth)
    if "enum" in schema or "const" in schema:
        constants = schema.get("enum", [schema.get("const")])
        return " | ".join(json.dumps(constant) for constant in constants)
    kind = schema.get("type")
    if kind == "array":
        return [shape_of(schema.get("items") or {}, schemas, depth + 1)]
    if kind == "object" and schema.get("properties") and depth < _DEEPEST:
        return _shape_of_fields(schema, schemas, depth)
    return str(kind or "any")


def _shape_of_choices(several: Sequence[Json], schemas: Mapping[str, Json], depth: int) -> Any:
    """Return the shape of the only choice, or the names of several. Null does not count."""
    choices = [choice for choice in several if choice.get("type") != "null"]
    if len(choices) == 1:
        return shape_of(choices[0], schemas, depth)
    return " or ".join(dict.fromkeys(_named(choice, schemas) for choice in choices))


def _shape_of_fields(schema: Json, schemas: Mapping[str, Json], depth: int) -> dict[str, Any]:
    """Return the shapes of an object's fields by name; optional ones are marked with ?."""
    required = schema.get("required", ())
    return {
        name if name in required else f"{name}?": shape_of(field, schemas, depth + 1)
        for name, field in schema["properties"].items()
    }


def _named(schema: Json, schemas: Mapping[str, Json]) -> str:
    """Return a short name of one of several choices."""
    shape = shape_of(schema, schemas, _DEEPEST)
    return shape if isinstance(shape, str) else str(schema.get("type", "object"))
