"""The output of a chat: colours and live tokens on a terminal, only the answers in a pipe."""

import sys
from collections.abc import Callable
from contextlib import suppress

import typer

_WIDEST_FIELD = 48


def screen() -> "Screen":
    return Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Screen()


class Screen:
    """A pipe: a message a line in, an answer out; everything else goes to standard error, or is dropped."""

    is_live = False

    def ask(self) -> str | None:
        """Return the next line; None at the end."""
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def confirm(self, question: str) -> bool:
        self.complain(f"{question} This cannot be asked here, so nothing was done.")
        return False

    def say(self, text: str) -> None:
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    def think(self, text: str) -> None:
        """Print reasoning."""

    def quietly(self, text: str) -> None:
        """Print a secondary line."""

    def tell(self, text: str) -> None:
        typer.echo(printable(text))

    def complain(self, text: str) -> None:
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
            # Importing it gives `input` history and editing keys; Windows has its own.
            import readline  # noqa: F401

    def ask(self) -> str | None:
        """Return the next line; None at Ctrl-D."""
        try:
            return self._read("› ")
        except EOFError:
            self.end_line()
            return None

    def confirm(self, question: str) -> bool:
        """Return whether the user answers yes."""
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
        self._console.print(printable(text), style="dim", no_wrap=True, overflow="ellipsis")

    def tell(self, text: str) -> None:
        self._console.print(printable(text), style="cyan")

    def complain(self, text: str) -> None:
        self._console.print(printable(text), style="red")

    def _write(self, text: str, style: str | None) -> None:
        # The terminal wraps lines: rich sees only pieces, and would break words.
        self._console.print(printable(text), style=style, end="", soft_wrap=True)
        self._console.file.flush()


def printable(text: str) -> str:
    """Remove control characters, which could control the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def shortened(text: str, width: int = _WIDEST_FIELD) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
