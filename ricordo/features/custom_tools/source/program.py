"""The program of a call in the sandbox: define the function, call it, answer.

The request comes on standard input: {source, function, arguments}, and agent_state for a function
with that parameter. The answer goes to descriptor 3: {"value": …}, or {"error": "…"} with the
exception and a traceback of the tool's lines.
"""

import __future__

import dataclasses
import enum
import errno
import inspect
import json
import linecache
import os
import sys
import traceback
import types
import typing

ANSWER = 3
_LONGEST_ANSWER = 800_000  # characters
_LONGEST_TRACE = 6_000  # characters
_LONGEST_LINE = 1_000  # characters
_FRAMES = 20
# A sandbox without network has no routes. If sockets are forbidden, creating one is refused.
_NO_NETWORK = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
    errno.EPERM,
    errno.EACCES,
)


class WrongArguments(Exception):
    """The arguments do not fit the function."""


def main() -> None:
    request = json.load(sys.stdin)
    source = request["source"]
    name = request["function"]
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType("tool")
    sys.modules["tool"] = module
    if "LETTA_BASE_URL" in os.environ:
        client = ServerClient()
    else:
        client = None
    # Clients send the function without its imports. So the names of `typing` are defined here.
    # Other types in its signature are not evaluated.
    module.__dict__.update({name: getattr(typing, name) for name in typing.__all__}, client=client)
    try:
        code = compile(
            source, file, "exec", __future__.annotations.compiler_flag, dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 - the purpose of the sandbox
        function = module.__dict__[name]
        filled = {
            "agent_state": _with_fields(request.get("agent_state"), FieldsOfAgent),
            "client": client,
        }
        arguments = {**request["arguments"], **filled}
        parameters = inspect.signature(function).parameters
        arguments = {
            name: argument
            for name, argument in arguments.items()
            if name not in filled or name in parameters
        }
        returned = function(**_prepared(function, arguments))
        if inspect.isawaitable(returned):
            import asyncio  # slow to import, and few tools are coroutines

            returned = asyncio.run(_awaited(returned))
        answer = {"value": _plain(returned)}
    except WrongArguments as error:
        answer = {"error": str(error)}
    except SystemExit as error:
        answer = {"error": f"The tool called exit({error.code!r}) instead of returning a value."}
    except BaseException as error:
        answer = {"error": _trace(error), "is_network": _is_network_error(error)}
    sys.stdout.flush()
    with os.fdopen(ANSWER, "wb") as stream:
        stream.write(_written(answer))


class Fields(dict[str, typing.Any]):
    """A JSON object whose fields are read as attributes or by name."""

    def __getattr__(self, name: str) -> typing.Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no {name} here, but: {', '.join(self)}.") from None

    def model_dump(self, **_: typing.Any) -> dict[str, typing.Any]:
        plain: dict[str, typing.Any] = json.loads(json.dumps(self))
        return plain


class FieldsOfAgent(Fields):
    """The agent and its memory, as they were when the call began."""

    def get_block(self, label: str) -> typing.Any:
        for block in self.blocks:
            if block.label == label:
                return block
        raise KeyError(
            f"There is no block {label}. There are: {', '.join(self.list_block_labels())}."
        )

    def get_blocks(self) -> typing.Any:
        return self.blocks

    def list_block_labels(self) -> list[str]:
        return [block.label for block in self.blocks]

    def _refuse(self, *_: typing.Any, **__: typing.Any) -> typing.NoReturn:
        raise TypeError(
            "agent_state is a copy, so changing it changes nothing. Change memory with "
            "client.agents.blocks.update(label, agent_id=agent_state.id, value=…), or return the "
            "text and let the agent store it."
        )

    __setattr__ = __setitem__ = __delattr__ = __delitem__ = update = pop = clear = setdefault = (
        popitem
    ) = _refuse
    update_block_value = set_block = create_block = link_block = _refuse


def _with_fields(argument: typing.Any, kind: type[Fields]) -> typing.Any:
    return json.loads(json.dumps(argument), object_hook=kind)


class ServerClient:
    """A client of this server, which is created when it is first used.

    Importing it is slow, and most tools do not use it.
    """

    def __getattr__(self, name: str) -> typing.Any:
        if "_client" not in self.__dict__:
            try:
                from letta_client import Letta
            except ImportError:
                raise ImportError(
                    "The package letta-client is not installed. Name it in pip_requirements."
                ) from None
            self._client = Letta(
                base_url=os.environ["LETTA_BASE_URL"], api_key=os.environ["LETTA_API_KEY"]
            )
        return getattr(self._client, name)


async def _awaited(awaitable: typing.Any) -> typing.Any:
    return await awaitable


def _prepared(
    function: typing.Callable[..., typing.Any], arguments: dict[str, typing.Any]
) -> dict[str, typing.Any]:
    """Convert the arguments from plain JSON to the function's types.

    Models, enumerations and numbers are converted.
    """
    hints = _hints(function)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise WrongArguments(f"The arguments do not fit: {error}.") from None
    prepared = {}
    for name, argument in arguments.items():
        try:
            if name in hints:
                prepared[name] = _of_type(hints[name], argument)
            else:
                prepared[name] = _with_unknown_type(argument)
        except (TypeError, ValueError) as error:
            raise WrongArguments(f"The argument {name} is not valid: {error}") from None
    return prepared


def _with_unknown_type(argument: typing.Any) -> typing.Any:
    """Accept a JSON object for a parameter whose model class is unknown here."""
    if isinstance(argument, (FieldsOfAgent, ServerClient)):
        return argument
    return _with_fields(argument, Fields)


def _hints(function: typing.Callable[..., typing.Any]) -> dict[str, typing.Any]:
    """Return the types of the parameters that can be resolved here.

    Types that exist only on the author's machine are skipped.
    """
    hints: dict[str, typing.Any] = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints |= typing.get_type_hints(holder, function.__globals__)
        except Exception:  # noqa: S112 - such an argument stays as it came
            continue
    return hints


def _of_type(hint: typing.Any, argument: typing.Any) -> typing.Any:
    pydantic = sys.modules.get("pydantic")  # only a source that imports it has models
    if pydantic and _has_model(hint, pydantic.BaseModel):
        return pydantic.TypeAdapter(hint).validate_python(argument)
    origin = typing.get_origin(hint)
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if origin in (typing.Union, types.UnionType) and len(parts) == 1 and argument is not None:
        return _of_type(parts[0], argument)
    if origin is list and isinstance(argument, list):
        return [_of_type(parts[0], element) for element in argument]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(argument)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(argument, dict):
        return hint(**argument)
    return _scalar(hint, argument)


def _scalar(hint: typing.Any, argument: typing.Any) -> typing.Any:
    if hint is bool and isinstance(argument, str) and argument.lower() in ("true", "false"):
        return argument.lower() == "true"
    if (
        hint is int
        and isinstance(argument, (str, float))
        and float(argument) == int(float(argument))
    ):
        return int(float(argument))
    if hint is float and isinstance(argument, (str, int)) and not isinstance(argument, bool):
        return float(argument)
    return argument


def _has_model(hint: typing.Any, base: type) -> bool:
    if isinstance(hint, type) and not typing.get_origin(hint):
        return issubclass(hint, base)
    return any(_has_model(part, base) for part in typing.get_args(hint))


def _plain(returned: typing.Any) -> typing.Any:
    """Return the value as plain JSON; parts that have no JSON form become text."""
    try:
        text = json.dumps(returned, allow_nan=False, default=_as_json)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(str(returned))
    if len(text) > _LONGEST_ANSWER:
        whole = returned if isinstance(returned, str) else text
        return f"{whole[:_LONGEST_ANSWER]}… [cut: the tool returned {len(whole)} characters]"
    return json.loads(text, parse_int=_whole_number)


def _whole_number(text: str) -> int | str:
    """Return the number, or its text if it is too large for other JSON readers."""
    number = int(text)
    if -(2**63) <= number < 2**64:
        return number
    return text


def _as_json(returned: typing.Any) -> typing.Any:
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return dataclasses.asdict(returned)
    if hasattr(returned, "model_dump"):
        return returned.model_dump(mode="json")
    if isinstance(returned, (set, frozenset, tuple)):
        return list(returned)
    return str(returned)


def _trace(error: BaseException) -> str:
    """Return the exception and its traceback without lines of this program.

    A long traceback keeps its end.
    """
    if "__file__" in globals():
        program_file = __file__
    else:
        program_file = "<program>"
    try:
        trace = traceback.TracebackException(type(error), error, error.__traceback__)
        part: traceback.TracebackException | None = trace
        while part:
            part.stack[:] = [frame for frame in part.stack if frame.filename != program_file][
                -_FRAMES:
            ]
            part = part.__cause__ or part.__context__
        message = "".join(trace.format_exception_only()).strip()
        lines = f"{message}\n{''.join(trace.format())}".rstrip().splitlines()
        text = "\n".join(
            line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines
        )
    except Exception:  # an error whose own text fails
        text = f"{type(error).__name__}"
    if len(text) <= _LONGEST_TRACE:
        return text
    return f"…{text[-_LONGEST_TRACE:]}"


def _is_network_error(error: BaseException) -> bool:
    """Return True if the error, or a cause of it, is a failed connection."""
    part: BaseException | None = error
    visited: set[int] = set()
    while part is not None and id(part) not in visited:
        visited.add(id(part))
        if _is_refused_connection(part):
            return True
        part = part.__cause__ or part.__context__
    return False


def _is_refused_connection(error: BaseException) -> bool:
    socket = sys.modules.get("socket")  # imported by every program that connects
    if socket is not None and isinstance(error, socket.gaierror):
        return True
    if type(error).__name__ == "ProxyError" or "Tunnel connection failed" in str(error)[:1000]:
        return True
    if isinstance(error, OSError) and error.filename is None:
        return isinstance(error, ConnectionError) or error.errno in _NO_NETWORK
    return False


def _written(answer: dict[str, typing.Any]) -> bytes:
    try:
        return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        return b'{"error": "The result cannot be written as JSON."}'


if __name__ == "__main__":
    main()
