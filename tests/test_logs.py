"""Log lines in both formats: what they hold, and what they must not."""

import io
import json
import logging

import pytest

from ricordo.logs import set_up_logs

pytestmark = pytest.mark.usefixtures("quiet_logs")


def lines(format: str, threshold: str = "info", *, logger: str = "ricordo.test", **call: object) -> list[str]:
    """What one call writes."""
    stream = io.StringIO()
    set_up_logs(threshold, format, stream=stream)  # type: ignore[arg-type]
    arguments = {"level": logging.INFO, "msg": "closed runs", "args": (), "extra": None, "exc_info": None} | call
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
    (line,) = lines("json", msg="found %s", args=("Ollama",), extra={"models": 2, "level": "deep", "port": None})
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
def test_nobody_can_forge_a_second_line(format: str) -> None:
    assert len(lines(format, msg="a\n2026 ERROR b\x1b[31m", extra={"name_": "x\ny"})) == 1


def test_a_text_line_shows_control_signs_written_out() -> None:
    (line,) = lines("text", msg="a\x1b[31m\nb")
    assert "a\\x1b[31m\\nb" in line


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_names_places_and_kinds_but_not_the_values_at_fault(format: str) -> None:
    secret = "-".join(("a", "line", "of", "memory"))  # not as it stands in this file, whose lines a traceback quotes

    def save() -> None:
        raise ValueError(f"cannot save\n[parameters: ({secret!r},)]")

    try:
        try:
            save()
        except ValueError as error:
            raise RuntimeError("turn failed") from error
    except RuntimeError as error:
        text = "\n".join(lines(format, exc_info=error))
    assert secret not in text
    for part in ("in save", "ValueError: cannot save", "which caused:", "RuntimeError: turn failed"):
        assert part in text


def test_lines_below_the_level_are_left_out() -> None:
    assert lines("text", "warning") == []
    assert len(lines("text", "warning", level=logging.WARNING)) == 1


def test_uvicorn_writes_here_too_and_only_what_matters() -> None:
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(io.StringIO()))
    (line,) = lines("json", logger="uvicorn.error", level=logging.ERROR, extra={"color_message": "red"})
    assert json.loads(line)["logger"] == "uvicorn.error"
    assert "color_message" not in line
    assert lines("text", logger="uvicorn.error") == []


def test_clients_of_models_do_not_tell_what_they_send_even_at_debug() -> None:
    assert lines("text", "debug", logger="httpx2", msg="GET /search?query=secret") == []
