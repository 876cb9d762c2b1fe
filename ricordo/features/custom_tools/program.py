"""The program of a call, which runs in the sandbox: it makes the function from its source, calls it, and answers in JSON.

The request on standard input: {source, function, arguments}, and agent_state for a function that asks for it. The answer on
descriptor 3: {"value": …}, or {"error": "…"} with what was raised and a traceback of the tool's own lines.
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
_LONGEST_TRACE, _LONGEST_LINE = 6_000, 1_000  # characters
_FRAMES = 20
# A sandbox without network has no routes; where it may make no sockets at all, making one is refused.
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
    source, name = request["source"], request["function"]
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType("tool")
    sys.modules["tool"] = module
    client = ServerClient() if "LETTA_BASE_URL" in os.environ else None
    # Clients send the function without the lines above it: types that it names are there, or unknown and never looked up.
    module.__dict__.update({name: getattr(typing, name) for name in typing.__all__}, client=client)
    try:
        code = compile(
            source, file, "exec", __future__.annotations.compiler_flag, dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 - what the sandbox is for
        function = module.__dict__[name]
        filled = {
            "agent_state": _with_fields(request.get("agent_state"), FieldsOfAgent),
            "client": client,
        }
        arguments = {**request["arguments"], **filled}
        wanted = inspect.signature(function).parameters
        arguments = {
            name: value for name, value in arguments.items() if name not in filled or name in wanted
        }
        result = function(**_prepared(function, arguments))
        if inspect.isawaitable(result):
            import asyncio  # few tools wait, and it takes longer to import than most of them to run

            result = asyncio.run(_awaited(result))
        answer = {"value": _plain(result)}
    except WrongArguments as error:
        answer = {"error": str(error)}
    except SystemExit as error:
        answer = {"error": f"The tool left with exit({error.code!r}) in place of a return."}
    except BaseException as error:
        answer = {"error": _trace(error), "is_network": _is_network_error(error)}
    sys.stdout.flush()
    with os.fdopen(ANSWER, "wb") as out:
        out.write(_written(answer))


class Fields(dict[str, typing.Any]):
    """An object of JSON whose fields are read as attributes or by name."""

    def __getattr__(self, name: str) -> typing.Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no {name} here, but: {', '.join(self)}.") from None

    def model_dump(self, **_: typing.Any) -> dict[str, typing.Any]:
        plain: dict[str, typing.Any] = json.loads(json.dumps(self))
        return plain


class FieldsOfAgent(Fields):
    """The agent and what belongs to it, as they were when the call began."""

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
            "agent_state is a copy, so changing it changes nothing. Change memory with client.agents.blocks.update(label, "
            "agent_id=agent_state.id, value=…), or return the text and let the agent store it."
        )

    __setattr__ = __setitem__ = __delattr__ = __delitem__ = update = pop = clear = setdefault = (
        popitem
    ) = _refuse
    update_block_value = set_block = create_block = link_block = _refuse


def _with_fields(value: typing.Any, kind: type[Fields]) -> typing.Any:
    return json.loads(json.dumps(value), object_hook=kind)


class ServerClient:
    """A client of this server, made at its first use: most tools that could use it do not, and it takes long to import."""

    def __getattr__(self, name: str) -> typing.Any:
        if "_made" not in self.__dict__:
            try:
                from letta_client import Letta
            except ImportError:
                raise ImportError(
                    "The package letta-client is not there: name it in pip_requirements."
                ) from None
            self._made = Letta(
                base_url=os.environ["LETTA_BASE_URL"], api_key=os.environ["LETTA_API_KEY"]
            )
        return getattr(self._made, name)


async def _awaited(result: typing.Any) -> typing.Any:
    return await result


def _prepared(
    function: typing.Callable[..., typing.Any], arguments: dict[str, typing.Any]
) -> dict[str, typing.Any]:
    """The arguments as the function's types want them: models, enumerations and numbers out of plain JSON."""
    hints = _hints(function)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise WrongArguments(f"The arguments do not fit: {error}.") from None
    made = {}
    for name, value in arguments.items():
        try:
            made[name] = (
                _of_type(hints[name], value) if name in hints else _with_unknown_type(value)
            )
        except (TypeError, ValueError) as error:
            raise WrongArguments(f"The argument {name} is not right: {error}") from None
    return made


def _with_unknown_type(value: typing.Any) -> typing.Any:
    """The value with fields in place of the model that only its author has."""
    return (
        value if isinstance(value, (FieldsOfAgent, ServerClient)) else _with_fields(value, Fields)
    )


def _hints(function: typing.Callable[..., typing.Any]) -> dict[str, typing.Any]:
    """The types of the parameters, as far as they are known here: tools name some that only their authors have."""
    made: dict[str, typing.Any] = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: hint})
        try:
            made |= typing.get_type_hints(one, function.__globals__)
        except Exception:  # noqa: S112 - such an argument stays as it came
            continue
    return made


def _of_type(hint: typing.Any, value: typing.Any) -> typing.Any:
    pydantic = sys.modules.get("pydantic")  # only a source that imports it has models
    if pydantic and _has_model(hint, pydantic.BaseModel):
        return pydantic.TypeAdapter(hint).validate_python(value)
    origin, parts = (
        typing.get_origin(hint),
        [part for part in typing.get_args(hint) if part is not type(None)],
    )
    if origin in (typing.Union, types.UnionType) and len(parts) == 1 and value is not None:
        return _of_type(parts[0], value)
    if origin is list and isinstance(value, list):
        return [_of_type(parts[0], item) for item in value]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return hint(**value)
    return _scalar(hint, value)


def _scalar(hint: typing.Any, value: typing.Any) -> typing.Any:
    if hint is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if hint is int and isinstance(value, (str, float)) and float(value) == int(float(value)):
        return int(float(value))
    if hint is float and isinstance(value, (str, int)) and not isinstance(value, bool):
        return float(value)
    return value


def _has_model(hint: typing.Any, base: type) -> bool:
    if isinstance(hint, type) and not typing.get_origin(hint):
        return issubclass(hint, base)
    return any(_has_model(part, base) for part in typing.get_args(hint))


def _plain(value: typing.Any) -> typing.Any:
    """The value as JSON has it; what JSON has not, as text."""
    try:
        text = json.dumps(value, allow_nan=False, default=_as_json)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(str(value))
    if len(text) > _LONGEST_ANSWER:
        whole = value if isinstance(value, str) else text
        return f"{whole[:_LONGEST_ANSWER]}… [cut: the tool returned {len(whole)} characters]"
    return json.loads(text, parse_int=_whole_number)


def _whole_number(text: str) -> int | str:
    """The number, as text where it is larger than others can read."""
    number = int(text)
    return number if -(2**63) <= number < 2**64 else text


def _as_json(value: typing.Any) -> typing.Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def _trace(error: BaseException) -> str:
    """What was raised, then the traceback without lines of this program, its end where it is long."""
    own = __file__ if "__file__" in globals() else "<program>"
    try:
        trace = traceback.TracebackException(type(error), error, error.__traceback__)
        part: traceback.TracebackException | None = trace
        while part:
            part.stack[:] = [frame for frame in part.stack if frame.filename != own][-_FRAMES:]
            part = part.__cause__ or part.__context__
        said = "".join(trace.format_exception_only()).strip()
        lines = f"{said}\n{''.join(trace.format())}".rstrip().splitlines()
        text = "\n".join(
            line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines
        )
    except Exception:  # an error whose own text fails
        text = f"{type(error).__name__}"
    return text if len(text) <= _LONGEST_TRACE else f"…{text[-_LONGEST_TRACE:]}"


def _is_network_error(error: BaseException) -> bool:
    """Return whether a connection that could not be made is the error, or what caused it."""
    part: BaseException | None = error
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        if _is_refused_connection(part):
            return True
        part = part.__cause__ or part.__context__
    return False


def _is_refused_connection(error: BaseException) -> bool:
    socket = sys.modules.get("socket")  # who connects has imported it
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
