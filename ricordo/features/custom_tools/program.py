"""The program of a call, which runs in the sandbox: it makes the function from its source, calls it, and answers in JSON.

The request on standard input: {source, function, arguments}. The answer on descriptor 3: {"value": …}, or {"error": "…"} with
a traceback of the tool's own lines.
"""

import dataclasses
import enum
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
_FRAMES = 20


class WrongArguments(Exception):
    """The arguments do not fit the function."""


def main() -> None:
    """Serve the one request."""
    request = json.load(sys.stdin)
    source, name = request["source"], request["function"]
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType("tool")
    sys.modules["tool"] = module
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what the sandbox is for
        function = module.__dict__[name]
        result = function(**_prepared(function, request["arguments"]))
        if inspect.isawaitable(result):
            import asyncio  # few tools wait, and it takes longer to import than most of them to run

            result = asyncio.run(_awaited(result))
        answer = {"value": _plain(result)}
    except WrongArguments as error:
        answer = {"error": str(error)}
    except SystemExit as error:
        answer = {"error": f"The tool left with exit({error.code!r}) in place of a return."}
    except BaseException as error:
        answer = {"error": _trace(error)}
    sys.stdout.flush()
    with os.fdopen(ANSWER, "wb") as out:
        out.write(_written(answer))


async def _awaited(result: typing.Any) -> typing.Any:
    return await result


def _prepared(function: typing.Callable[..., typing.Any], arguments: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """The arguments as the function's types want them: models, enumerations and numbers out of plain JSON."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        hints = {}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise WrongArguments(f"The arguments do not fit: {error}.") from None
    made = {}
    for name, value in arguments.items():
        try:
            made[name] = _of_type(hints.get(name), value)
        except (TypeError, ValueError) as error:
            raise WrongArguments(f"The argument {name} is not right: {error}") from None
    return made


def _of_type(hint: typing.Any, value: typing.Any) -> typing.Any:
    pydantic = sys.modules.get("pydantic")  # only a source that imports it has models
    if pydantic and _has_model(hint, pydantic.BaseModel):
        return pydantic.TypeAdapter(hint).validate_python(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return hint(**value)
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
    return json.loads(text)


def _as_json(value: typing.Any) -> typing.Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def _trace(error: BaseException) -> str:
    """The traceback from the tool's first line on, its end where it is long."""
    own = __file__ if "__file__" in globals() else "<program>"
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == own:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-_FRAMES)).rstrip()
    except Exception:  # an error whose own text fails
        text = f"{type(error).__name__}"
    return text if len(text) <= _LONGEST_TRACE else f"…{text[-_LONGEST_TRACE:]}"


def _written(answer: dict[str, typing.Any]) -> bytes:
    try:
        return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        return b'{"error": "The result cannot be written as JSON."}'


if __name__ == "__main__":
    main()
