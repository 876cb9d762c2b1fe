"""Log lines: text for people or one JSON object each, with what a call passes by `extra={...}` as fields.

Lines hold ids, names and numbers, never the text of a message or of memory. So errors that are not ours are cut to their first
line: what follows there quotes the values that were at fault.
"""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from traceback import TracebackException
from typing import Any, Literal, TextIO

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
# Below a warning these tell what they send and to which address, and both carry what people say and search for.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2", "anthropic", "openai", "google_genai", "botocore", "dulwich")
_NOISY = ("asyncio", "filelock")
_LONGEST_CAUSE = 300


def set_up_logs(level: str = "info", format: Literal["text", "json"] = "text", *, stream: TextIO | None = None) -> None:
    """Send every logger's lines, uvicorn's too, to one place in one format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # Its account of every start and stop says nothing that ours does not.
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    for name in (*_TALKATIVE, *_NOISY):
        logging.getLogger(name).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, then the fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the traceback where there is one."""
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")
        words = [time, f"{record.levelname:<7}", record.name, _one_line(record.getMessage())]
        words += [f"{key}={_quoted(value)}" for key, value in _fields(record).items()]
        return "\n".join([" ".join(words), *(f"    {line}" for line in _traceback(record))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            line[key if key not in line else f"{key}_"] = value
        if trace := list(_traceback(record)):
            line["traceback"] = "\n".join(trace)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _traceback(record: logging.LogRecord) -> Iterator[str]:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        yield from _told(TracebackException.from_exception(error))


def _told(trace: TracebackException) -> Iterator[str]:
    """The places and kinds of an error and of those it came from, the oldest first."""
    if trace.__cause__ is not None:
        yield from _told(trace.__cause__)
        yield "which caused:"
    elif trace.__context__ is not None and not trace.__suppress_context__:
        yield from _told(trace.__context__)
        yield "while handling that:"
    for entry in trace.stack.format():
        yield from entry.rstrip("\n").split("\n")
    for only in trace.format_exception_only():
        yield _one_line(only.split("\n", 1)[0])[:_LONGEST_CAUSE]
        break
    for inner in trace.exceptions or ():
        yield "one of its parts:"
        yield from _told(inner)
