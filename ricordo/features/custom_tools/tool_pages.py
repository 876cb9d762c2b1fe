"""The pages of tools: which there are, a tool's source, schema and settings, and a form to try it."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Request, Response

from ricordo.api.models.base import Json
from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.errors import Invalid
from ricordo.features.custom_tools.environments import texts_of
from ricordo.features.web.inside import Api, RefusedByApi
from ricordo.features.web.shell import Pages, address_of, done, form_of, render

router = Pages("/ui/tools", scope="tools")
_LIST, _TOOL = "custom_tools/tools.html", "custom_tools/tool.html"
_EACH, _INVALID = 50, 422
_LONGEST_TYPE = 80  # characters
_NEW: Mapping[str, Any] = {
    **{
        "id": "",
        "name": "",
        "description": "",
        "tool_type": "custom",
        "source_code": "",
        "source_type": "python",
    },
    **{"tags": [], "return_char_limit": DEFAULT_RETURN_LIMIT, "default_requires_approval": False},
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
    """The tools of the organization, by a piece of their name, the newest first."""
    query = request.query_params
    words, after = query.get("q", ""), query.get("after")
    found = await Api(request).get("/v1/tools/", search=words or None, after=after, limit=_EACH + 1)
    older = (
        address_of("/ui/tools", q=words, after=found[_EACH - 1]["id"]) if len(found) > _EACH else ""
    )
    is_builder = request.scope[REQUEST_SCOPE].may("tools:write")
    variables = await Api(request).get(await _variables(request)) if is_builder else []
    return await render(
        request, _LIST, tools=found[:_EACH], words=words, older=older, variables=variables
    )


@router.post("/variables")
async def change_variables(request: Request) -> Response:
    """Store a variable of all tools, or delete one."""
    form, api = await form_of(request), Api(request)
    if id := form.get("delete"):
        await api.ask("DELETE", f"/v1/sandbox-config/environment-variable/{id}")
        return done(request, "/ui/tools", "The variable was deleted.")
    made = await api.ask(
        "POST",
        await _variables(request),
        {"key": form.get("name", ""), "value": form.get("value", "")},
    )
    return done(request, "/ui/tools", f"{made['key']} was stored.")


async def _variables(request: Request) -> str:
    (config,) = await Api(request).get("/v1/sandbox-config/")
    return f"/v1/sandbox-config/{config['id']}/environment-variable"


@router.get("/new")
@needs("tools:write")
async def show_new(request: Request) -> Response:
    return await _show(request, {"source_code": _EXAMPLE})


@router.post("")
async def make_tool(request: Request) -> Response:
    sent = _settings(await form_of(request), {})
    try:
        made = await Api(request).ask("POST", "/v1/tools/", sent)
    except RefusedByApi as error:
        return await _show(request, sent, problem=str(error), status=error.status)
    return done(
        request,
        f"/ui/tools/{made['id']}",
        f"{made['name']} was made. Attach it to an agent in the agent's settings.",
    )


@router.get("/{tool_id}")
async def show_tool(request: Request, tool_id: str) -> Response:
    return await _show(request, await Api(request).get(f"/v1/tools/{tool_id}"))


@router.post("/{tool_id}")
async def change_tool(request: Request, tool_id: str) -> Response:
    tool = await Api(request).get(f"/v1/tools/{tool_id}")
    sent = _settings(await form_of(request), tool)
    try:
        await Api(request).ask("PATCH", f"/v1/tools/{tool_id}", sent)
    except RefusedByApi as error:
        return await _show(request, {**tool, **sent}, problem=str(error), status=error.status)
    return done(request, f"/ui/tools/{tool_id}", "Saved.")


@router.post("/{tool_id}/try")
async def try_tool(request: Request, tool_id: str) -> Response:
    """Run the tool once with these arguments, without an agent."""
    api, form = Api(request), await form_of(request)
    tool, given = await api.get(f"/v1/tools/{tool_id}"), form.get("arguments", "")
    fields = ("name", "source_code", "source_type", "json_schema", "tags", "pip_requirements")
    body = {name: tool[name] for name in fields}
    try:
        result = await api.ask("POST", "/v1/tools/run", {**body, "args": _arguments(given)})
    except (Invalid, RefusedByApi) as error:
        status = error.status if isinstance(error, RefusedByApi) else _INVALID
        return await _show(request, tool, arguments=given, problem=str(error), status=status)
    return await _show(request, tool, arguments=given, result=result)


@router.post("/{tool_id}/delete")
async def delete_tool(request: Request, tool_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/tools/{tool_id}")
    return done(request, "/ui/tools", "The tool was deleted, and taken from its agents.")


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
        name: one for name, one in schema.get("properties", {}).items() if isinstance(one, dict)
    }
    sample = {
        name: one.get("default", _SAMPLES.get(str(one.get("type"))))
        for name, one in properties.items()
    }
    required = schema.get("required") or ()
    parameters = [
        {
            "name": name,
            "type": _type(one),
            "required": name in required,
            "description": str(one.get("description", "")),
        }
        for name, one in properties.items()
    ]
    value = result["func_return"] if result else ""
    return await render(
        request,
        _TOOL,
        status=status,
        tool={**_NEW, **tool},
        parameters=parameters,
        packages=", ".join(texts_of(tool.get("pip_requirements"))),
        arguments=arguments or orjson.dumps(sample, option=orjson.OPT_INDENT_2).decode(),
        result=result,
        returned=value
        if isinstance(value, str)
        else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(),
        problem=problem,
    )


def _arguments(text: str) -> Json:
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise Invalid(f"The arguments are no JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise Invalid("The arguments are a JSON object, such as {}.")
    return arguments


def _type(schema: Json) -> str:
    choices = schema.get("enum")
    words = (
        ", ".join(map(str, choices))
        if isinstance(choices, list)
        else str(schema.get("type", "any"))
    )
    return words if len(words) <= _LONGEST_TYPE else f"{words[:_LONGEST_TYPE]}…"


def _settings(form: Mapping[str, str], tool: Json) -> Json:
    """What the form says of a tool; of one of the server's own only what can be changed."""
    sent: Json = {
        "default_requires_approval": "approval" in form,
        "return_char_limit": int(form["limit"])
        if form.get("limit", "").isdecimal()
        else DEFAULT_RETURN_LIMIT,
    }
    if not tool or tool["source_code"]:
        sent["enable_parallel_execution"] = "parallel" in form
        sent["tags"] = [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()]
    if (source := form.get("source_code")) and source.strip() != (
        tool.get("source_code") or ""
    ).strip():
        sent["source_code"] = source
    return sent
