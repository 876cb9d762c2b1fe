"""`ricordo doctor`: what it finds, what it calls wrong, and that it changes nothing."""

import asyncio
import os
from pathlib import Path

import psycopg
import pytest

from ricordo import __version__
from ricordo.cli.doctor import examine, show
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage import jobs
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations import MIGRATIONS
from tests.cli.conftest import Shell, environment
from tests.seams.server import ServerInThread, serving
from tests.seams.stores import ManualClock
from tests.support import postgres


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
    return {finding.name: (finding.level, finding.text) for finding in examine()}


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


def test_folders_for_remotes_that_are_missing_or_not_only_for_them_are_warned_of(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (data / "repositories", data / "remotes", tmp_path / "good"):
        folder.mkdir(parents=True)
    named = [tmp_path / "missing", tmp_path, data, data / "repositories", data / "remotes", tmp_path / "good"]
    monkeypatch.setenv("RICORDO_REMOTE_FOLDERS", ":".join(map(str, named)))

    told = [(one.level, one.text) for one in examine() if one.name == "remote folder"]

    assert [level for level, _ in told] == ["warning"] * 4
    assert "missing does not exist" in told[0][1]
    assert all("Choose a separate folder" in text for _, text in told[1:])


def test_a_model_that_nobody_has_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_MODEL", "nobody/nothing")
    level, text = findings()["default model"]
    assert level == "wrong"
    assert "Handle nobody/nothing not found" in text


def test_a_provider_without_its_extra_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    monkeypatch.setattr("ricordo.cli.doctor._is_installed", lambda module: module != "google.genai")
    level, text = findings()["providers"]
    assert level == "warning"
    assert "GEMINI_API_KEY is set" in text
    assert "ricordo[google]" in text


async def test_a_database_is_read_and_left_to_whoever_comes_next(data: Path) -> None:
    await open_sqlite(data / "ricordo.db").close()
    level, text = (await _in_thread())["database"]
    assert level == "ok"
    assert f"schema {len(MIGRATIONS)}" in text
    assert text.endswith("sound")
    await open_sqlite(data / "ricordo.db").close()


async def _in_thread() -> dict[str, tuple[str, str]]:
    return await asyncio.to_thread(findings)


def test_a_file_that_is_no_database_is_wrong_and_left_as_it_is(data: Path) -> None:
    data.mkdir()
    content = b"no database at all, but long enough to be read as one" * 40
    (data / "ricordo.db").write_bytes(content)
    level, text = findings()["database"]
    assert level == "wrong"
    assert "Restore it from a backup" in text
    assert (data / "ricordo.db").read_bytes() == content


async def test_a_damaged_database_is_wrong(data: Path) -> None:
    await open_sqlite(data / "ricordo.db").close()
    file = data / "ricordo.db"
    content = bytearray(file.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
    file.write_bytes(content)
    level, text = (await _in_thread())["database"]
    assert level == "wrong"
    assert "Restore it from a backup" in text


def test_a_folder_that_is_a_file_is_wrong(data: Path) -> None:
    data.write_text("not a folder")
    level, text = findings()["data folder"]
    assert level == "wrong"
    assert "is a file" in text


@pytest.mark.parametrize("is_at_its_port", [True, False])
def test_a_running_server_is_asked(data: Path, monkeypatch: pytest.MonkeyPatch, is_at_its_port: bool) -> None:
    with serving(data) as server:
        if is_at_its_port:
            monkeypatch.setenv("RICORDO_PORT", _port(server))
        level, text = findings()["database"]
    assert "in use by a running server" in text
    assert (level, f"version {__version__}" in text) == (("ok", True) if is_at_its_port else ("warning", False))


def _port(server: ServerInThread) -> str:
    return server.url.rpartition(":")[2]


async def test_the_jobs_of_a_database_at_rest_are_counted(data: Path) -> None:
    await _with_a_failed_job(data)
    found = await _in_thread()
    assert found["jobs"] == ("ok", "1 waiting, 0 running, 1 failed recently")
    assert found["job error"] == ("warning", "embed (1 of 1 tries): Unavailable: The service is down.")


async def test_the_jobs_of_a_running_server_are_asked_for(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _with_a_failed_job(data)
    with serving(data, api_key="a key of its own") as server:
        monkeypatch.setenv("RICORDO_PORT", _port(server))
        assert (await _in_thread())["jobs"][0] == "warning"  # a server says nothing without its key
        monkeypatch.setenv("RICORDO_API_KEY", "a key of its own")
        found = await _in_thread()
    assert found["jobs"][1].endswith("0 running, 1 failed recently")
    assert "The service is down." in found["job error"][1]


async def test_the_jobs_of_a_postgresql_at_rest_are_counted_and_left_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.server().new_database()
    try:
        monkeypatch.setenv("RICORDO_DATABASE_URL", url)
        await _fail_a_job(open_postgres(url, backups=data))
        before = postgres_rows(url)
        found = await _in_thread()
        assert found["jobs"] == ("ok", "1 waiting, 0 running, 1 failed recently")
        assert found["job error"] == ("warning", "embed (1 of 1 tries): Unavailable: The service is down.")
        assert postgres_rows(url) == before
    finally:
        postgres.server().drop(url)


async def test_a_job_that_waits_for_long_is_a_warning_where_a_server_should_do_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.server().new_database()
    try:
        monkeypatch.setenv("RICORDO_DATABASE_URL", url)
        clock = ManualClock()  # which stands some years ago
        store = open_postgres(url, backups=data, clock=clock)
        await store.write(lambda tx: jobs.add(tx, Job("embed", LOCAL_ORGANIZATION)))
        assert (await _in_thread())["jobs"][0] == "warning"
        await store.close()
        level, text = (await _in_thread())["jobs"]
        assert level == "ok"
        assert text.startswith("1 waiting (one for ")
    finally:
        postgres.server().drop(url)


def postgres_rows(url: str) -> list[tuple[object, ...]]:
    """The jobs that are there, whole."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT * FROM jobs ORDER BY seq").fetchall()


async def _with_a_failed_job(data: Path) -> None:
    """A database with one job that failed and one that waits for years."""
    await _fail_a_job(open_sqlite(data / "ricordo.db"))


async def _fail_a_job(store: Store) -> None:
    def work(tx: Transaction) -> None:
        jobs.add(tx, Job("embed", LOCAL_ORGANIZATION, most_attempts=1))
        (held,) = jobs.claim(tx, "elsewhere", 1)
        jobs.fail(tx, held, {"type": "Unavailable", "message": "The service is down."})
        jobs.add(tx, Job("later", LOCAL_ORGANIZATION, not_before=4_000_000_000_000_000))

    await store.write(work)
    await store.close()
