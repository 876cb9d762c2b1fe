"""Log lines: text for people or JSON, with the `extra={...}` of a call as fields.

Lines contain ids, names and numbers, but never the text of a message or of memory. The message of
an error may quote such a text, so `describe` writes it only for kinds of errors that never do. Pass
the error itself as a field, not its text.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from traceback import format_tb
from typing import Any, Literal, TextIO

from ricordo.errors import Busy, DatabaseFailed, ModelError, Unavailable

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
# Below the level WARNING these loggers write addresses and bodies, which contain people's messages
# and searches.
_TALKATIVE = (
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "anthropic",
    "openai",
    "google_genai",
    "botocore",
    "dulwich",
)
_NOISY = ("asyncio", "filelock")
# These loggers quote the received messages that they cannot parse.
_QUOTING = ("mcp",)
_LONGEST_CAUSE = 300
# Kinds of errors whose messages name types, files, positions and states but no values.
_WITHOUT_VALUES = (
    *(
        OSError,
        ImportError,
        AttributeError,
        NameError,
        TypeError,
        RuntimeError,
        MemoryError,
        AssertionError,
    ),
    *(Unavailable, Busy),
)
_OF_DATABASES = ("OperationalError", "InterfaceError")


# The ids of the runs that a request began; its log line contains the first one.
REQUEST_RUNS: ContextVar[list[str] | None] = ContextVar("request_runs", default=None)


def note_run(run_id: str) -> None:
    """Note the run for the log line of the current request, which contains the first noted id.

    Args:
        run_id: The run that the request began. Outside a request, nothing is noted.
    """
    run_ids = REQUEST_RUNS.get()
    if run_ids is not None:
        run_ids.append(run_id)


def set_up_logs(
    level: str = "info", format: Literal["text", "json"] = "text", *, stream: TextIO | None = None
) -> None:
    """Send the lines of all loggers, including uvicorn's, to one stream in one format.

    Args:
        level: The name of the lowest level that is written, in upper or lower case.
        format: "text" for people, or "json" for one object a line.
        stream: The stream; None is standard error.
    """
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
    library_level = max(root.level, logging.WARNING)
    # uvicorn's lines about each start and stop repeat ours.
    is_debug = root.level <= logging.DEBUG
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if is_debug else library_level)
    for name in (*_TALKATIVE, *_NOISY):
        logging.getLogger(name).setLevel(library_level)
    for name in _QUOTING:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def describe(error: BaseException) -> str:
    """Return an error's kind, and its first line if this kind of error quotes no stored text.

    Args:
        error: Any error. If a provider answered with a status, its message is left out, since it
            may quote the request.
    """
    kind = type(error).__name__
    if isinstance(error, ModelError):
        kind = error.kind
        if error.status is not None:
            return f"{kind} (status {error.status})"
    elif not (isinstance(error, _WITHOUT_VALUES) or kind in _OF_DATABASES):
        return kind
    first_line = _one_line(str(error).partition("\n")[0])[:_LONGEST_CAUSE]
    return f"{kind}: {first_line}" if first_line else kind


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, then the fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one.

        Args:
            record: The record. Its `extra` becomes the fields. An error among them is shown as
                `describe` returns it.
        """
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")
        columns = [time, f"{record.levelname:<7}", record.name, _one_line(_message(record))]
        columns += [f"{key}={_quoted(field)}" for key, field in _fields(record).items()]
        return "\n".join([" ".join(columns), *(f"    {line}" for line in _traceback(record))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line.

        Args:
            record: The record. A field that has the name of a standard one gets a "_" at its end.
        """
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for key, field in _fields(record).items():
            line[key if key not in line else f"{key}_"] = field
        if trace := list(_traceback(record)):
            line["traceback"] = "\n".join(trace)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: _described(field) for key, field in vars(record).items() if key not in _STANDARD}


def _described(field: Any) -> Any:
    return describe(field) if isinstance(field, BaseException) else field


def _message(record: logging.LogRecord) -> str:
    """Return the record's message.

    Only the first line of asyncio's messages is used; the other lines show the content of objects.
    """
    text = str(record.msg)
    if isinstance(record.args, tuple) and record.args:
        text %= tuple(_described(argument) for argument in record.args)
    elif record.args:
        text %= record.args
    return text.partition("\n")[0] if record.name == "asyncio" else text


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _traceback(record: logging.LogRecord) -> Iterator[str]:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return
    if failure := _database_failure(error):
        yield describe(failure)  # the location in the program does not matter
        return
    yield from _chain(error, set())


def _database_failure(error: BaseException) -> BaseException | None:
    """Return the database's failure behind an error; None if there is none.

    The failure may be the cause of another error, such as one of the library of the job queue.
    """
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        if isinstance(current, DatabaseFailed) or _is_of_psycopg(current):
            return current
        visited.add(id(current))
        current = current.__cause__ or current.__context__
    return None


def _is_of_psycopg(error: BaseException) -> bool:
    """Return True if PostgreSQL's driver reports that the server is away, full or stopping.

    The driver may not be installed.
    """
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__)
    return ("psycopg", "OperationalError") in kinds


def _chain(error: BaseException, visited: set[int]) -> Iterator[str]:
    """Yield locations and kinds of an error and its causes, the oldest first."""
    visited.add(id(error))
    context = None if error.__suppress_context__ else error.__context__
    if error.__cause__ is not None and id(error.__cause__) not in visited:
        yield from _chain(error.__cause__, visited)
        yield "which caused:"
    elif context is not None and id(context) not in visited:
        yield from _chain(context, visited)
        yield "while handling that:"
    for entry in format_tb(error.__traceback__):
        yield from entry.rstrip("\n").split("\n")
    yield describe(error)
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield "one of its parts:"
        yield from _chain(inner, visited)
