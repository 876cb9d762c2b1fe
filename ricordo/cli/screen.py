"""What a person sees of a chat: colours and live tokens on a terminal, nothing but the answers in a pipe."""

import sys
from collections.abc import Callable
from contextlib import suppress

import typer

_WIDEST_FIELD = 48


def screen() -> "Screen":
    """The screen for where this program's input and output are."""
    return Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Screen()


class Screen:
    """A pipe: one question a line in, one answer out; all that is not an answer goes to the other channel, or nowhere."""

    is_live = False

    def ask(self) -> str | None:
        """The next line that was said; None at the end."""
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def confirm(self, question: str) -> bool:
        """Whether the person agrees; nobody is there to ask."""
        self.complain(f"{question} Nobody can be asked here, so nothing was done.")
        return False

    def say(self, text: str) -> None:
        """Words of the answer."""
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    def think(self, text: str) -> None:
        """Words of the reasoning."""

    def quietly(self, text: str) -> None:
        """A line about what happens besides."""

    def tell(self, text: str) -> None:
        """A line that a command asked for."""
        typer.echo(printable(text))

    def complain(self, text: str) -> None:
        """A line about what went wrong."""
        typer.echo(printable(text), err=True)

    def end_line(self) -> None:
        """End the line of an answer."""
        sys.stdout.write("\n")
        sys.stdout.flush()


class Terminal(Screen):
    """A terminal with a person before it."""

    is_live = True

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False)
        self._read: Callable[[str], str] = input
        with suppress(ImportError):
            # Being imported gives `input` its history and its keys; Windows has its own.
            import readline  # noqa: F401

    def ask(self) -> str | None:
        """The next line that was typed; None at Ctrl-D."""
        try:
            return self._read("› ")
        except EOFError:
            self.end_line()
            return None

    def confirm(self, question: str) -> bool:
        """Whether the person says yes; anything else is no."""
        try:
            return self._read(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            self.end_line()
            return False

    def say(self, text: str) -> None:
        """Words of the answer, as they come."""
        self._write(text, None)

    def think(self, text: str) -> None:
        """Words of the reasoning, dim."""
        self._write(text, "dim italic")

    def quietly(self, text: str) -> None:
        """A dim line."""
        self._console.print(printable(text), style="dim", no_wrap=True, overflow="ellipsis")

    def tell(self, text: str) -> None:
        """A line that a command asked for."""
        self._console.print(printable(text), style="cyan")

    def complain(self, text: str) -> None:
        """A red line."""
        self._console.print(printable(text), style="red")

    def _write(self, text: str, style: str | None) -> None:
        # The terminal wraps: rich sees only pieces of a line, and would break words that come in two.
        self._console.print(printable(text), style=style, end="", soft_wrap=True)
        self._console.file.flush()


def printable(text: str) -> str:
    """The text without what would steer a terminal: an answer may hold anything."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def shortened(text: str, width: int = _WIDEST_FIELD) -> str:
    """The text on one line, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
