"""The commands: help, version, and invalid settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ricordo import __version__
from ricordo.cli import app
from ricordo.cli.screen import as_typed
from ricordo.settings import ProviderSettings, Settings
from tests.cli.conftest import COMMAND, Shell


def test_help_names_every_command_and_loads_nothing_slow(new_shell: Shell) -> None:
    ran = subprocess.run(
        [COMMAND[0], "-X", "importtime", *COMMAND[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {
        "fastapi",
        "sqlalchemy",
        "pydantic",
        "rich",
        "httpx2",
        "uvicorn",
        "jinja2",
        "asyncio",
    }
    for name in ("serve", "chat", "doctor", "settings"):
        assert f"\n  {name} " in ran.stdout
    assert new_shell.run("--version").stdout == f"ricordo {__version__}\n"


def test_every_setting_is_listed_with_its_description_and_no_secret_is_shown(shell: Shell) -> None:
    secrets = {"RICORDO_API_KEY": "key-one", "OPENAI_API_KEY": "key-two"}
    (shell.folder / ".env").write_text(
        "GROQ_API_KEY=key-three\nRICORDO_LOG_LEVEL=debug\nRICORDO_KEEPALIVE=7\n"
    )
    shown = shell.run(
        "settings",
        **secrets,
        OPENAI_BASE_URL="http://me:key-four@proxy.example/v1",
        GOOGLE_API_KEY="key-five",
        RICORDO_LOG_LEVEL="error",
    )
    assert shown.returncode == 0
    assert "key-" not in shown.stdout + shown.stderr
    for name, field in (Settings.model_fields | ProviderSettings.model_fields).items():
        variable = "GOOGLE_API_KEY" if name == "gemini_api_key" else name.upper()
        assert f"{variable} = " in shown.stdout
        assert str(field.description) in shown.stdout
    for line in (
        "RICORDO_API_KEY = (set, not shown)",
        "GROQ_API_KEY = (set, not shown)",
        "GOOGLE_API_KEY = (set, not shown)",
        "RICORDO_LOG_LEVEL = error (default: info)",
        "RICORDO_KEEPALIVE = 7 (default: 20)",
        "RICORDO_DURABILITY = normal (default)",
        "OPENAI_BASE_URL = http://…@proxy.example/v1",
    ):
        assert f"{line}\n" in shown.stdout


def test_every_command_reports_an_invalid_setting(shell: Shell) -> None:
    shown = shell.run("settings", RICORDO_COLOUR="red")
    assert shown.returncode == 1
    assert "RICORDO_HOST = 127.0.0.1 (default)" in shown.stdout
    assert shown.stderr.startswith("ricordo: RICORDO_COLOUR is not a setting")
    for command in ("serve", "chat"):
        ran = shell.run(command, RICORDO_PORT="many")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("ricordo: RICORDO_PORT: ")
        assert len(ran.stderr.splitlines()) == 1


def test_no_line_of_the_help_is_longer_than_80_columns() -> None:
    seen, waiting = 0, [[]]
    while waiting:
        path = waiting.pop()
        shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=80)
        assert shown.exit_code == 0, shown.output
        lines = [
            line
            for line in shown.output.splitlines()
            if "... <" not in line and not line.startswith("Usage:")
        ]
        assert [line for line in lines if "..." in line or len(line) > 80] == []
        commands = shown.output.partition("\nCommands:\n")[2].partition("\n\n")[0]
        waiting += [[*path, name] for name in re.findall(r"^  (\S+) ", commands, re.MULTILINE)]
        seen += 1
    assert seen > 30


@pytest.mark.parametrize("is_found", [True, False])
def test_printed_commands_work_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    script = Path(sys.executable).with_name("ricordo")
    (tmp_path / "ricordo").write_text("# another of this name\n")
    (tmp_path / "ricordo").chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent if is_found else tmp_path))
    for folder, name in (
        (script.parents[2], str(script.relative_to(script.parents[2]))),
        (tmp_path, str(script)),
    ):
        monkeypatch.chdir(folder)
        typed = "ricordo" if is_found else name
        assert (
            as_typed("Talk by `ricordo chat` to ricordo.") == f"Talk by `{typed} chat` to ricordo."
        )
    if not is_found:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "python"))
        assert as_typed("`ricordo chat`") == f"`'{tmp_path}/a b/python' -m ricordo.cli chat`"
