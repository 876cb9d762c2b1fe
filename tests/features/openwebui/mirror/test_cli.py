"""The commands that print functions for Open WebUI."""

from importlib import resources

import pytest
from typer.testing import CliRunner

from ricordo.cli import app


@pytest.mark.parametrize(
    ("command", "file"), [("pipe", "pipe.py"), ("deleted-chats", "deleted_chats.py")]
)
def test_the_openwebui_command_prints_the_function_files(command: str, file: str) -> None:
    printed = CliRunner().invoke(app, ["openwebui", command])
    text = resources.files("ricordo.features.openwebui.mirror").joinpath(file).read_text("utf-8")
    assert (printed.exit_code, printed.output) == (0, text)
