"""`/docs`: every operation of the API by its tag, with what it takes and answers, and the command that asks for it."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from ricordo.api.models.base import Json
from ricordo.api.routing import needs
from ricordo.errors import NotFound
from ricordo.features.web.shell import Pages, done, render

router = Pages()
_DEEPEST = 3  # objects in objects that are shown
_METHODS = ("get", "post", "put", "patch", "delete")
_REF = "#/components/schemas/"


@router.get("/docs")
@needs()
async def index(request: Request) -> Response:
    """All operations, a line each."""
    document = await _document(request)
    tags: dict[str, list[Json]] = {}
    for one in _operations(document):
        tags.setdefault(one["tag"], []).append(one)
    info = document["info"]
    return await render(
        request, "api_docs/index.html", tags=sorted(tags.items()), info=info, is_large=True
    )


@router.get("/docs/{tag}")
@needs()
async def show(request: Request, tag: str) -> Response:
    """The operations with this tag, whole."""
    document = await _document(request)
    found = [one for one in _operations(document) if one["tag"] == tag]
    if not found:
        raise NotFound(f'No operation has the tag "{tag[:80]}".')
    address = str(request.base_url).rstrip("/")
    operations = await asyncio.to_thread(lambda: [_whole(one, document, address) for one in found])
    return await render(request, "api_docs/tag.html", tag=tag, operations=operations, is_large=True)


@router.get("/redoc")
@needs()
async def redoc(request: Request) -> Response:
    """Where some look for the same."""
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


def _whole(one: Json, document: Json, address: str) -> Json:
    """An operation with what its page shows."""
    operation, schemas = one["operation"], document["components"]["schemas"]
    bodies: dict[str, Json] = (operation.get("requestBody") or {}).get("content") or {}
    kind = next(iter(bodies), "")
    parameters = [
        (
            each["name"],
            each["in"],
            bool(each.get("required")),
            _text(shape_of(each.get("schema") or {}, schemas)),
            each.get("description", ""),
        )
        for each in operation.get("parameters", ())
    ]
    return {
        **one,
        "parameters": parameters,
        "kind": kind,
        "body": _text(shape_of(bodies[kind].get("schema") or {}, schemas)) if kind else "",
        "answers": [
            (status, answer.get("description", ""), _answer(answer, schemas))
            for status, answer in sorted(operation["responses"].items())
        ],
        "command": _command(one, kind, address),
    }


def _answer(answer: Json, schemas: Mapping[str, Json]) -> str:
    bodies: dict[str, Json] = answer.get("content") or {}
    kind = next(iter(bodies), "")
    return _text(shape_of(bodies[kind].get("schema") or {}, schemas)) if "json" in kind else kind


def _text(shape: Any) -> str:
    return shape if isinstance(shape, str) else json.dumps(shape, indent=2, ensure_ascii=False)


def _command(one: Json, kind: str, address: str) -> str:
    """The command that asks for it; names in capitals are to be filled in."""
    path = quote(one["path"], safe="/{}").replace("{", "").replace("}", "")
    parts = [f"curl -X {one['method']} {address}{path}", '-H "authorization: Bearer $RICORDO_KEY"']
    if kind:
        parts += [
            f"-H 'content-type: {kind}'",
            "-d @body.json" if "json" in kind else "--data-binary @file",
        ]
    return " \\\n  ".join(parts)


def shape_of(schema: Json, schemas: Mapping[str, Json], depth: int = 0) -> Any:
    """What a value of the schema looks like: an object as one, any other value as the words for its type.

    Schemas that hold themselves, or are deeper than a reader looks, are named.
    """
    if ref := schema.get("$ref"):
        name = ref.removeprefix(_REF)
        return name if depth >= _DEEPEST else shape_of(schemas[name], schemas, depth)
    if several := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        real = [each for each in several if each.get("type") != "null"]
        if len(real) == 1:
            return shape_of(real[0], schemas, depth)
        return " or ".join(dict.fromkeys(_named(each, schemas) for each in real))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return [shape_of(schema.get("items") or {}, schemas, depth + 1)]
    if kind == "object" and (fields := schema.get("properties")):
        if depth >= _DEEPEST:
            return "object"
        required = schema.get("required", ())
        return {
            name if name in required else f"{name}?": shape_of(each, schemas, depth + 1)
            for name, each in fields.items()
        }
    return str(kind or "any")


def _named(schema: Json, schemas: Mapping[str, Json]) -> str:
    """One of several things that a value can be, in a few words."""
    shape = shape_of(schema, schemas, _DEEPEST)
    return shape if isinstance(shape, str) else str(schema.get("type", "object"))
