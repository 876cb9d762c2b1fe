"""Log lines in both formats: their content, and texts that they must not hold."""

import ast
import io
import json
import logging
import re
import sqlite3
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeGuard

import pytest
from pydantic import TypeAdapter

import ricordo
from ricordo.errors import Conflict, Forbidden, Invalid, ModelError, NotFound, Stale, Unavailable
from ricordo.logs import set_up_logs
from tests.support.canaries import canary

pytestmark = pytest.mark.usefixtures("quiet_logs")


def lines(
    format: str, threshold: str = "info", *, logger: str = "ricordo.test", **call: object
) -> list[str]:
    """Return the output of one logging call."""
    stream = io.StringIO()
    set_up_logs(threshold, format, stream=stream)  # type: ignore[arg-type]
    arguments = {
        "level": logging.INFO,
        "msg": "closed runs",
        "args": (),
        "extra": None,
        "exc_info": None,
    } | call
    logging.getLogger(logger).log(
        arguments["level"],  # type: ignore[arg-type]
        arguments["msg"],
        *arguments["args"],  # type: ignore[misc]
        extra=arguments["extra"],  # type: ignore[arg-type]
        exc_info=arguments["exc_info"],  # type: ignore[arg-type]
    )
    return stream.getvalue().splitlines()


def test_a_text_line_ends_with_its_fields() -> None:
    (line,) = lines("text", extra={"runs": 3, "work": "two words", "empty": ""})
    assert " INFO    ricordo.test closed runs runs=3 " in line
    assert line.endswith('work="two words" empty=""')


def test_a_json_line_is_one_object_with_its_fields() -> None:
    (line,) = lines(
        "json", msg="found %s", args=("Ollama",), extra={"models": 2, "level": "deep", "port": None}
    )
    record = json.loads(line)
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "info",
        "logger": "ricordo.test",
        "message": "found Ollama",
        "models": 2,
        "level_": "deep",
        "port": None,
    }


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_log_text_cannot_forge_a_second_line(format: str) -> None:
    assert len(lines(format, msg="a\n2026 ERROR b\x1b[31m", extra={"name_": "x\ny"})) == 1


def test_a_text_line_shows_control_characters_escaped() -> None:
    (line,) = lines("text", msg="a\x1b[31m\nb")
    assert "a\\x1b[31m\\nb" in line


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_has_functions_and_error_types_but_no_values(format: str) -> None:
    secret = canary("memory")

    def save() -> None:
        raise ValueError(f"cannot save {secret}")

    try:
        try:
            save()
        except ValueError as error:
            raise RuntimeError("turn failed") from error
    except RuntimeError as error:
        text = "\n".join(lines(format, exc_info=error))
    assert secret not in text
    for part in ("in save", "ValueError", "which caused:", "RuntimeError: turn failed"):
        assert part in text


def raised(work: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        work()
    return caught.value


def test_no_error_brings_a_users_text_into_a_log_line() -> None:
    said = f"I told you {canary('said')}."
    wrong = [
        raised(lambda: int(said)),
        raised(lambda: {}[said]),
        raised(lambda: json.loads(said)),
        raised(lambda: said.encode("ascii") + (said + "\udc00").encode()),
        raised(lambda: datetime.fromisoformat(said)),
        raised(lambda: tomllib.loads(said)),
        raised(lambda: re.compile(f"({said}")),
        raised(lambda: ast.literal_eval(said)),
        raised(lambda: TypeAdapter(int).validate_python(said)),
        raised(lambda: sqlite3.connect(":memory:").execute("SELECT json(?)", (said,)).fetchall()),
        *(
            kind(f"There is no {said}")
            for kind in (NotFound, Invalid, Conflict, Stale, Forbidden, Exception)
        ),
        ModelError("llm_bad_request", f"answered 400: {said}", status=400),
        ExceptionGroup(said, [ValueError(said), KeyError(said)]),
    ]
    for error in wrong:
        chained = RuntimeError("turn failed")
        chained.__cause__ = error
        for format in ("text", "json"):
            told = [
                *lines(format, extra={"reason": error}),
                *lines(format, msg="failed: %s", args=(error,)),
                *lines(format, exc_info=error),
                *lines(format, exc_info=chained),
                *lines(
                    format,
                    logger="asyncio",
                    level=logging.ERROR,
                    msg=f"never retrieved\nfuture: {error!r}",
                ),
            ]
            assert len(told) >= 5
            assert not [line for line in told if canary("said") in line], type(error)
        assert any(type(error).__name__ in line or "llm_bad_request" in line for line in told)


def test_the_line_has_the_details_that_operators_need() -> None:
    for error, words in (
        (FileNotFoundError(2, "No such file", "/data/secret.key"), "/data/secret.key"),
        (ModuleNotFoundError("No module named 'boto3'"), "boto3"),
        (Unavailable("The database failed: disk I/O error."), "disk I/O error"),
        (
            ModelError("llm_error", "ollama cannot be reached: connection refused"),
            "connection refused",
        ),
        (
            ModelError("llm_authentication", "openai answered 401", status=401),
            "llm_authentication (status 401)",
        ),
    ):
        (line,) = lines("text", extra={"reason": error})
        assert words in line


def test_no_log_line_is_built_from_an_errors_text() -> None:
    """`describe` can check an error, but not a text that was made from an error."""
    package = Path(ricordo.__file__).parent
    sources = [(path.name, path.read_text("utf-8")) for path in package.rglob("*.py")]
    logging_ones = [
        (name, source) for name, source in sources if re.search(r"\blog(ger)?\.[a-z]", source)
    ]
    assert len(logging_ones) > 20
    wrong = [f"{name}:{line}" for name, source in logging_ones for line in _worded(source)]
    assert wrong == []
    assert _worded("try: ...\nexcept Exception as e:\n log.info('x', extra={'why': str(e)})") == [3]
    assert _worded("log.info(f'{text}')") == [1]


def _worded(source: str) -> list[int]:
    """Return logging calls that hold an f-string or the text of a caught error."""
    tree = ast.parse(source)
    caught = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name
    }
    return [
        node.lineno for node in ast.walk(tree) if _is_log_call(node) and _takes_words(node, caught)
    ]


def _is_log_call(node: ast.AST) -> TypeGuard[ast.Call]:
    function = node.func if isinstance(node, ast.Call) else None
    is_method = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return (
        is_method
        and function.value.id in ("log", "_log", "logger")
        and function.attr != "isEnabledFor"
    )  # type: ignore[union-attr]


def _takes_words(call: ast.Call, caught: set[str]) -> bool:
    inside = list(ast.walk(call))
    texts = (
        node
        for node in inside
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("str", "repr")
    )
    takes = any(
        isinstance(one, ast.Name) and one.id in caught for node in texts for one in node.args
    )
    return takes or any(isinstance(node, ast.JoinedStr) for node in inside)


def test_lines_below_the_level_are_left_out() -> None:
    assert lines("text", "warning") == []
    assert len(lines("text", "warning", level=logging.WARNING)) == 1


def test_uvicorn_logs_here_too_but_only_important_lines() -> None:
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(io.StringIO()))
    (line,) = lines(
        "json", logger="uvicorn.error", level=logging.ERROR, extra={"color_message": "red"}
    )
    assert json.loads(line)["logger"] == "uvicorn.error"
    assert "color_message" not in line
    assert lines("text", logger="uvicorn.error") == []
    for threshold in ("debug", "DEBUG"):
        assert len(lines("text", threshold, logger="uvicorn.error", level=logging.DEBUG)) == 1


def test_http_clients_log_no_requests_even_at_debug() -> None:
    assert lines("text", "debug", logger="httpx2", msg="GET /search?query=secret") == []


@pytest.mark.parametrize("logger", ["httpx", "asyncio", "uvicorn.error"])
def test_the_lowest_level_also_holds_for_libraries(logger: str) -> None:
    assert lines("text", "error", logger=logger, level=logging.WARNING) == []
    assert len(lines("text", "warning", logger=logger, level=logging.WARNING)) == 1
