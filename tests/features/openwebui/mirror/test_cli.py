"""The command that prints the pipe."""

from importlib import resources

from typer.testing import CliRunner

from ricordo.cli import app


def test_the_pipe_is_printed_as_it_is() -> None:
    printed = CliRunner().invoke(app, ["openwebui", "pipe"])
    pipe = (
        resources.files("ricordo.features.openwebui.mirror").joinpath("pipe.py").read_text("utf-8")
    )
    assert (printed.exit_code, printed.output) == (0, pipe)
