"""`ricordo doctor`: what it finds, what it calls wrong, and that it changes nothing."""

import asyncio
import os
from pathlib import Path

import pytest

from ricordo import __version__
from ricordo.cli.doctor import examine, show
from ricordo.storage.sqlite import open_sqlite
from tests.cli.conftest import Shell, environment
from tests.support.serving import ServerInThread, serving


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that is not there yet, in a machine where nothing else is set."""
    folder = tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    wanted = environment(folder)
    for name in [*os.environ]:
        if name not in wanted:
            monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    return folder


def findings() -> dict[str, tuple[str, str]]:
    """Verdict and text of the last finding by each name."""
    return {finding.name: (finding.verdict, finding.text) for finding in examine()}


def test_an_empty_machine_is_well_and_stays_empty(shell: Shell) -> None:
    examined = shell.run("doctor", OPENAI_API_KEY="sk-secret")
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert "sk-secret" not in examined.stdout + examined.stderr
    found = {line[9:24].strip(): line for line in examined.stdout.splitlines() if line.startswith("ok")}
    assert __version__ in found["version"]
    assert "set: OPENAI_API_KEY" in found["providers"]
    assert "ricordo/librarian" in found["default model"]
    assert "builtin" in found["plugins"]
    assert "made at the first start" in found["database"]
    assert not shell.data.exists()


def test_a_wrong_setting_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RICORDO_PORT", "many")
    assert not show(examine())
    shown = capsys.readouterr().out
    assert "wrong    settings       RICORDO_PORT" in shown
    assert "Wrong: 1." in shown


def test_a_model_that_nobody_has_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_MODEL", "nobody/nothing")
    verdict, text = findings()["default model"]
    assert verdict == "wrong"
    assert "Handle nobody/nothing not found" in text


def test_a_provider_without_its_extra_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    verdict, text = findings()["providers"]
    assert verdict == "warning"
    assert "GEMINI_API_KEY is set" in text
    assert "ricordo[google]" in text


async def test_a_database_is_read_and_left_to_whoever_comes_next(data: Path) -> None:
    await open_sqlite(data / "ricordo.db").close()
    verdict, text = (await _in_thread())["database"]
    assert verdict == "ok"
    assert "schema 1" in text
    assert text.endswith("sound")
    await open_sqlite(data / "ricordo.db").close()


async def _in_thread() -> dict[str, tuple[str, str]]:
    return await asyncio.to_thread(findings)


def test_a_file_that_is_no_database_is_wrong_and_left_as_it_is(data: Path) -> None:
    data.mkdir()
    content = b"no database at all, but long enough to be read as one" * 40
    (data / "ricordo.db").write_bytes(content)
    verdict, text = findings()["database"]
    assert verdict == "wrong"
    assert "Restore it from a backup" in text
    assert (data / "ricordo.db").read_bytes() == content


async def test_a_damaged_database_is_wrong(data: Path) -> None:
    await open_sqlite(data / "ricordo.db").close()
    file = data / "ricordo.db"
    content = bytearray(file.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
    file.write_bytes(content)
    verdict, text = (await _in_thread())["database"]
    assert verdict == "wrong"
    assert "Restore it from a backup" in text


def test_a_folder_that_is_a_file_is_wrong(data: Path) -> None:
    data.write_text("not a folder")
    verdict, text = findings()["data folder"]
    assert verdict == "wrong"
    assert "is a file" in text


@pytest.mark.parametrize("is_at_its_port", [True, False])
def test_a_running_server_is_asked(data: Path, monkeypatch: pytest.MonkeyPatch, is_at_its_port: bool) -> None:
    with serving(data) as server:
        if is_at_its_port:
            monkeypatch.setenv("RICORDO_PORT", _port(server))
        verdict, text = findings()["database"]
    assert "in use by a running server" in text
    assert (verdict, f"version {__version__}" in text) == (("ok", True) if is_at_its_port else ("warning", False))


def _port(server: ServerInThread) -> str:
    return server.url.rpartition(":")[2]
