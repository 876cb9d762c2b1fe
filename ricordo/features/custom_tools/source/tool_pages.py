"""The pages of tools: a list, an editor, and a form to try one."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.domain.text import Json
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.errors import Invalid
from ricordo.features.custom_tools.source.environments import texts_of
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import Pages, address_of, done, form_of, render, require_id, typed_number

router = Pages("/ui/tools", scope="tools")
_LIST = "custom_tools.source/tools.html"
_TOOL = "custom_tools.source/tool.html"
_PAGE_SIZE = 50
_INVALID = 422  # HTTP status
_LONGEST_TYPE = 80  # characters
_NEW: Mapping[str, Any] = {
    "id": "",
    "name": "",
    "description": "",
    "tool_type": "custom",
    "source_code": "",
    "source_type": "python",
    "tags": [],
    "return_char_limit": DEFAULT_RETURN_LIMIT,
    "default_requires_approval": False,
    "enable_parallel_execution": False,
}
_SAMPLES: Mapping[str, Any] = {
    "string": "",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}
_EXAMPLE = '''def price_of(fruit: str, kilos: float = 1.0) -> str:
    """Tell what some fruit costs.

    Args:
        fruit: Which fruit, such as apple.
        kilos: How many kilograms of it.
    """
    prices = {"apple": 2.4, "pear": 3.1}
    return f"{prices[fruit] * kilos:.2f} euros"
'''


@router.get("")
async def list_tools(request: Request) -> Response:
    """Show the organization's tools, the newest first, filtered by name."""
    query = request.query_params
    search_text = query.get("q", "")
    tools = await Api(request).get(
        "/v1/tools/",
        search=search_text or None,
        after=query.get("after"),
        limit=_PAGE_SIZE + 1,
    )
    older = ""
    if len(tools) > _PAGE_SIZE:
        older = address_of("/ui/tools", q=search_text, after=tools[_PAGE_SIZE - 1]["id"])
    is_builder = request.scope[REQUEST_SCOPE].may("tools:write")
    if is_builder:
        variables = await Api(request).get(await _variables(request))
    else:
        variables = []
    return await render(
        request,
        _LIST,
        tools=tools[:_PAGE_SIZE],
        search_text=search_text,
        older=older,
        variables=variables,
    )


@router.post("/variables")
async def change_variables(request: Request) -> Response:
    """Store a variable of all tools, or delete one."""
    form = await form_of(request)
    api = Api(request)
    if id := form.get("delete"):
        variable_id = require_id(id, "sandbox-env")
        await api.ask("DELETE", f"/v1/sandbox-config/environment-variable/{variable_id}")
        return done(request, "/ui/tools", "The variable was deleted.")
    variable = await api.ask(
        "POST",
        await _variables(request),
        {"key": form.get("name", ""), "value": form.get("value", "")},
    )
    return done(request, "/ui/tools", f"{variable['key']} was stored.")


async def _variables(request: Request) -> str:
    (config,) = await Api(request).get("/v1/sandbox-config/")
    return f"/v1/sandbox-config/{config['id']}/environment-variable"


@router.get("/new")
@needs("tools:write")
async def show_new(request: Request) -> Response:
    return await _show(request, {"source_code": _EXAMPLE})


@router.post("")
async def make_tool(request: Request) -> Response:
    settings = _settings(await form_of(request), {})
    try:
        tool = await Api(request).ask("POST", "/v1/tools/", settings)
    except RefusedByApi as error:
        return await _show(request, settings, problem=str(error), status=error.status)
    return done(
        request,
        f"/ui/tools/{tool['id']}",
        f"{tool['name']} was created. Attach it to an agent in the agent's settings.",
    )


@router.get("/{tool_id}")
async def show_tool(request: Request, tool_id: str) -> Response:
    return await _show(request, await Api(request).get(f"/v1/tools/{tool_id}"))


@router.post("/{tool_id}")
async def change_tool(request: Request, tool_id: str) -> Response:
    tool = await Api(request).get(f"/v1/tools/{tool_id}")
    changes = _settings(await form_of(request), tool)
    try:
        await Api(request).ask("PATCH", f"/v1/tools/{tool_id}", changes)
    except RefusedByApi as error:
        return await _show(request, {**tool, **changes}, problem=str(error), status=error.status)
    return done(request, f"/ui/tools/{tool_id}", "Saved.")


@router.post("/{tool_id}/try")
async def try_tool(request: Request, tool_id: str) -> Response:
    """Run the tool once with these arguments, without an agent."""
    api = Api(request)
    form = await form_of(request)
    tool = await api.get(f"/v1/tools/{tool_id}")
    arguments = form.get("arguments", "")
    fields = ("name", "source_code", "source_type", "json_schema", "tags", "pip_requirements")
    body = {name: tool[name] for name in fields}
    try:
        run = await api.ask("POST", "/v1/tools/run", {**body, "args": _arguments(arguments)})
    except (Invalid, RefusedByApi) as error:
        if isinstance(error, RefusedByApi):
            status = error.status
        else:
            status = _INVALID
        return await _show(request, tool, arguments=arguments, problem=str(error), status=status)
    return await _show(request, tool, arguments=arguments, result=run)


@router.post("/{tool_id}/delete")
async def delete_tool(request: Request, tool_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/tools/{tool_id}")
    return done(request, "/ui/tools", "The tool was deleted, and detached from its agents.")


async def _show(
    request: Request,
    tool: Json,
    *,
    arguments: str = "",
    result: Json | None = None,
    problem: str = "",
    status: int = 200,
) -> Response:
    schema = (tool.get("json_schema") or {}).get("parameters", {})
    properties = {
        name: field
        for name, field in schema.get("properties", {}).items()
        if isinstance(field, dict)
    }
    sample = {
        name: field.get("default", _SAMPLES.get(str(field.get("type"))))
        for name, field in properties.items()
    }
    required = schema.get("required") or ()
    parameters = [
        {
            "name": name,
            "type": _type(field),
            "required": name in required,
            "description": str(field.get("description", "")),
        }
        for name, field in properties.items()
    ]
    returned = result["func_return"] if result else ""
    if not isinstance(returned, str):
        returned = orjson.dumps(returned, option=orjson.OPT_INDENT_2).decode()
    return await render(
        request,
        _TOOL,
        status=status,
        tool={**_NEW, **tool},
        parameters=parameters,
        packages=", ".join(texts_of(tool.get("pip_requirements"))),
        arguments=arguments or orjson.dumps(sample, option=orjson.OPT_INDENT_2).decode(),
        result=result,
        returned=returned,
        problem=problem,
    )


def _arguments(text: str) -> Json:
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise Invalid(f"The arguments are not JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise Invalid("The arguments must be a JSON object, such as {}.")
    return arguments


def _type(schema: Json) -> str:
    choices = schema.get("enum")
    if isinstance(choices, list):
        text = ", ".join(map(str, choices))
    else:
        text = str(schema.get("type", "any"))
    if len(text) <= _LONGEST_TYPE:
        return text
    return f"{text[:_LONGEST_TYPE]}…"


def _settings(form: Mapping[str, str], tool: Json) -> Json:
    """Return the tool's settings from the form.

    For one of the server's tools, only settings that can be changed are returned.
    """
    limit = typed_number(form.get("limit", ""))
    settings: Json = {
        "default_requires_approval": "approval" in form,
        "return_char_limit": DEFAULT_RETURN_LIMIT if limit is None else limit,
    }
    if not tool or tool["source_code"]:
        settings["enable_parallel_execution"] = "parallel" in form
        settings["tags"] = [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()]
    source = form.get("source_code")
    old_source = tool.get("source_code") or ""
    if source and source.strip() != old_source.strip():
        settings["source_code"] = source
    return settings
