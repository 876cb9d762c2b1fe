"""Methods over JSON-RPC 2.0 (https://www.jsonrpc.org/specification): one route, many methods."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from fastapi import Response
from pydantic import ConfigDict, ValidationError

from ricordo.api.call import RequestContext
from ricordo.api.models.base import ForeignRequest, ResponseModel
from ricordo.domain.text import Json
from ricordo.errors import Forbidden, NotFound, RicordoError

NO_METHOD = -32601
BAD_PARAMETERS = -32602
INTERNAL = -32603


class RpcRequest(ForeignRequest):
    """A request of JSON-RPC 2.0."""

    id: str | int | None = None
    method: str
    params: Json | None = None


class RpcAnswer(ResponseModel):
    """An answer of JSON-RPC 2.0, with `result` or `error`."""

    model_config = ConfigDict(extra="allow")

    jsonrpc: Literal["2.0"]


class RpcFailure(Exception):
    """A failure of a method, with the code of the error that the caller gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


Method = Callable[[RequestContext, str, RpcRequest], Awaitable[Any]]
"""A method gets the caller's context, the id in the address, and the request.

It returns its result as JSON, or a whole response.
"""


async def call_method(
    methods: Mapping[str, Method],
    codes: Mapping[type[RicordoError], int],
    context: RequestContext,
    id: str,
    body: RpcRequest,
) -> Json | Response:
    """Call a method, and return its answer, which may be an error of JSON-RPC.

    Args:
        methods: The methods by name.
        codes: The codes of errors by class; the first class that fits is used. Other errors get
            the code `BAD_PARAMETERS`.
        context: The caller's context.
        id: The id in the request's address, such as an agent's.
        body: The request.

    Raises:
        Forbidden: The caller may not do this. The answer then has the status 403.
        NotFound: The caller cannot see the object in the address. The answer then has the status
            404.
    """
    if body.method not in methods:
        return error_answer(body, NO_METHOD, f"Unknown method. Here are: {', '.join(methods)}.")
    try:
        result = await methods[body.method](context, id, body)
    except (RpcFailure, RicordoError, ValidationError) as error:
        if isinstance(error, Forbidden) or type(error) is NotFound:
            raise
        return error_answer(body, _code_of(error, codes), _text_of(error))
    return result if isinstance(result, Response) else result_answer(body, result)


def result_answer(body: RpcRequest, result: Any) -> Json:
    """Return the answer with a result."""
    return {"jsonrpc": "2.0", "id": body.id, "result": result}


def error_answer(body: RpcRequest, code: int, message: str) -> Json:
    """Return the answer with an error.

    Args:
        body: The request, whose id the answer repeats.
        code: The code of the error: one of JSON-RPC 2.0, or of the protocol over it.
        message: The sentence for people.
    """
    return {"jsonrpc": "2.0", "id": body.id, "error": {"code": code, "message": message}}


def _code_of(error: Exception, codes: Mapping[type[RicordoError], int]) -> int:
    if isinstance(error, RpcFailure):
        return error.code
    fitting = (code for kind, code in codes.items() if isinstance(error, kind))
    return next(fitting, BAD_PARAMETERS)


def _text_of(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"[:300]
