"""The output of commands: a chat, an answer from its events, and progress."""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

Json = dict[str, Any]
_WIDEST_FIELD = 48
# Seconds between two lines of progress: on a terminal (True), and elsewhere (False).
_EVERY = {True: 0.1, False: 5.0}
# Stop reasons of turns without an answer, each with the text to print.
_ENDS = {
    "max_steps": "It stopped after too many steps. Say “go on” to continue.",
    "max_tokens_exceeded": "The answer reached the model's limit. Say “go on” to continue.",
    "cancelled": "Stopped.",
    "no_tool_call": "The model did not answer in the form that this agent needs.",
    "invalid_tool_call": "The model called a tool in a way that cannot be read.",
    "invalid_llm_response": "The model's answer cannot be read.",
}


def screen() -> "Screen":
    return Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Screen()


class Screen:
    """The output for pipes and files.

    Each line of the standard input is a message or a command. Answers and the output of commands go
    to the standard output, and problems to standard error. Reasoning and secondary lines are left
    out.
    """

    is_live = False

    def ask(self) -> str | None:
        """Return the next line; None at the end."""
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def confirm(self, question: str) -> bool:
        """Return False and complain, since a pipe cannot be asked.

        Args:
            question: The question, without the choices.
        """
        self.complain(f"{question} This cannot be asked here, so nothing was done.")
        return False

    def say(self, text: str) -> None:
        """Print a piece of an answer, without a line break.

        Args:
            text: The next characters of the answer. Control characters are removed.
        """
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    def think(self, text: str) -> None:
        """Ignore reasoning.

        Args:
            text: The next characters. Only a terminal shows them.
        """

    def quietly(self, text: str) -> None:
        """Ignore a secondary line.

        Args:
            text: One line of text, such as a tool call. Only a terminal shows it.
        """

    def tell(self, text: str) -> None:
        """Print a line about the chat.

        Args:
            text: The line. Control characters are removed.
        """
        typer.echo(printable(text))

    def complain(self, text: str) -> None:
        """Print a problem.

        Args:
            text: The sentence. Control characters are removed.
        """
        typer.echo(printable(text), err=True)

    def end_line(self) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()


class Terminal(Screen):
    """An interactive terminal."""

    is_live = True

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False)
        self._read: Callable[[str], str] = input
        with suppress(ImportError):
            # The import gives `input` a history and editing keys. Windows needs no import for this.
            import readline  # noqa: F401

    def ask(self) -> str | None:
        """Return the next line; None at Ctrl-D."""
        try:
            return self._read("› ")
        except EOFError:
            self.end_line()
            return None

    def confirm(self, question: str) -> bool:
        """Return True if the user answers yes.

        Args:
            question: The question, without the choices, which are added.
        """
        try:
            return self._read(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            self.end_line()
            return False

    def say(self, text: str) -> None:
        self._write(text, None)

    def think(self, text: str) -> None:
        self._write(text, "dim italic")

    def quietly(self, text: str) -> None:
        """Print a secondary line in a dim style, cut to the terminal's width.

        Args:
            text: One line of text, such as a tool call.
        """
        self._console.print(printable(text), style="dim", no_wrap=True, overflow="ellipsis")

    def tell(self, text: str) -> None:
        self._console.print(printable(text), style="cyan")

    def complain(self, text: str) -> None:
        self._console.print(printable(text), style="red")

    def _write(self, text: str, style: str | None) -> None:
        # The terminal wraps lines: rich sees only pieces, and would split words.
        self._console.print(printable(text), style=style, end="", soft_wrap=True)
        self._console.file.flush()


class AnswerPrinter:
    """A printer of one answer on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._calls: dict[str, tuple[str, str]] = {}
        self._speaking: tuple[str, str] | None = None
        self._is_failed = False

    def show(self, events: Iterable[Json]) -> bool:
        """Show every event; return True if the turn succeeded.

        Args:
            events: The events of one turn, as the server streams them.
        """
        try:
            for event in events:
                self._show(event)
        finally:
            self._stop_speaking()
        return not self._is_failed

    def _show(self, event: Json) -> None:
        match event["message_type"]:
            case "assistant_message":
                self._speak(event, _text(event["content"]))
            case "reasoning_message":
                self._speak(event, event["reasoning"])
            case "tool_call_message":
                self._note_calls(event)
            case "tool_return_message":
                for result in event.get("tool_returns") or [event]:
                    self._show_result(result)
            case "stop_reason":
                self._show_end(event["stop_reason"])
            case "error_message":
                self._stop_speaking()
                self._is_failed = True
                self._screen.complain(event["message"])

    def _speak(self, event: Json, text: str) -> None:
        speaking = (event["message_type"], event["id"])
        if speaking != self._speaking:
            self._stop_speaking()
        if not text:
            return
        is_answer = event["message_type"] == "assistant_message"
        if is_answer or self._screen.is_live:
            self._speaking = speaking
        (self._screen.say if is_answer else self._screen.think)(text)

    def _stop_speaking(self) -> None:
        if self._speaking:
            self._speaking = None
            self._screen.end_line()

    def _note_calls(self, event: Json) -> None:
        calls = event.get("tool_calls") or event["tool_call"]
        if isinstance(calls, list):
            self._calls |= {
                call["tool_call_id"]: (call["name"], call["arguments"]) for call in calls
            }
            return
        # A piece of a streamed call: first the call's name, then its arguments in parts.
        name, arguments = self._calls.get(calls["tool_call_id"], ("", ""))
        self._calls[calls["tool_call_id"]] = (
            name or calls.get("name", ""),
            arguments + calls.get("arguments", ""),
        )

    def _show_result(self, result: Json) -> None:
        self._stop_speaking()
        name, arguments = self._calls.pop(result["tool_call_id"], ("a tool", ""))
        line = f"↳ {name}({_fields(arguments)})"
        if result["status"] == "error":
            line += f" failed: {shortened(_text(result['tool_return']), 120)}"
        self._screen.quietly(line)

    def _show_end(self, reason: str) -> None:
        if sentence := _ENDS.get(reason):
            self._stop_speaking()
            self._screen.complain(sentence)
            self._is_failed = True


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _fields(arguments: str) -> str:
    try:
        fields = json.loads(arguments or "{}")
    except ValueError:
        return shortened(arguments)
    if not isinstance(fields, dict):
        return shortened(arguments)
    return ", ".join(
        f"{name}={shortened(json.dumps(value, ensure_ascii=False))}"
        for name, value in fields.items()
    )


class ProgressLine:
    """A line with the progress of the work.

    With `has_parts` the work has many parts, such as tables, and each is counted separately. In
    that case, the end of a part prints no line.
    """

    def __init__(
        self,
        *,
        has_parts: bool = False,
        is_live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_live = sys.stdout.isatty() if is_live is None else is_live
        self._clock = clock
        self._has_parts = has_parts
        self._shown_at = clock() if has_parts else float("-inf")
        self._is_open = False

    def show(self, verb: str, count: int, total: int) -> None:
        """Show the progress at the end, and if some time has passed since the last line.

        Args:
            verb: The beginning of the line, such as "Importing".
            count: The number of things that are done.
            total: The number of all things; if `count` reaches it, the line ends.
        """
        is_end = count >= total and not self._has_parts
        now = self._clock()
        if not is_end and now - self._shown_at < _EVERY[self._is_live]:
            return
        self._shown_at = now
        line = f"{verb}: {count:,} of {total:,}"
        if self._is_live:
            sys.stdout.write(f"\r\x1b[K{line}" + "\n" * is_end)
            sys.stdout.flush()
            self._is_open = not is_end
        else:
            typer.echo(line)

    def end(self) -> None:
        if self._is_open:
            typer.echo()
            self._is_open = False


def as_typed(text: str) -> str:
    """Return the text; each `ricordo …` in it becomes a command that works in this shell.

    The program may not be on the PATH.

    Args:
        text: A text for people, with commands between backquotes.
    """
    script = Path(sys.executable).with_name("ricordo.exe" if os.name == "nt" else "ricordo")
    on_path = shutil.which("ricordo")
    if on_path and script.exists() and script.samefile(on_path):
        return text
    folder = Path.cwd()
    command = f"{shlex.quote(sys.executable)} -m ricordo.cli"
    if script.exists():
        path = script.relative_to(folder) if script.is_relative_to(folder) else script
        command = shlex.quote(str(path))
    return text.replace("`ricordo ", f"`{command} ")


def printable(text: str) -> str:
    """Remove control characters, which could affect the terminal.

    Args:
        text: Any text. Its line breaks and tabs stay.
    """
    return "".join(
        character for character in text if character in "\n\t" or character.isprintable()
    )


def shortened(text: str, width: int = _WIDEST_FIELD) -> str:
    """Return the text as one line, cut to a width.

    Args:
        text: The text. Line breaks and repeated spaces become one space.
        width: The most characters, with the "…" of a cut line.
    """
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
