"""`ricordo doctor`: its findings, its errors, and that it changes nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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
from tests.cli.conftest import Shell
from tests.seams.server import serving
from tests.seams.stores import ManualClock
from tests.support import postgres

pytestmark = pytest.mark.usefixtures("data")


def findings() -> dict[str, tuple[str, str]]:
    return {finding.name: (finding.level, finding.text) for finding in examine()}


async def found_in_thread() -> dict[str, tuple[str, str]]:
    return await asyncio.to_thread(findings)


def test_an_empty_machine_is_fine_and_stays_empty(shell: Shell) -> None:
    examined = shell.run(
        "doctor", OPENAI_API_KEY="sk-secret", OPENAI_BASE_URL="http://127.0.0.1:9/v1"
    )
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert "sk-secret" not in examined.stdout + examined.stderr
    found = {
        line[9:24].strip(): line for line in examined.stdout.splitlines() if line.startswith("ok")
    }
    for name, text in {
        "version": __version__,
        "providers": "set: OPENAI_API_KEY, OPENAI_BASE_URL",
        "default model": "ricordo/librarian: built in",
        "plugins": "builtin",
        "database": "created at the first start",
    }.items():
        assert text in found[name]
    assert (
        "OPENAI_API_KEY is set, but openai has not listed its models. Check it, or name"
        in examined.stdout
    )
    assert not shell.data.exists()


def test_an_invalid_setting_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RICORDO_PORT", "many")
    assert not show(examine())
    shown = capsys.readouterr().out
    assert "wrong    settings       RICORDO_PORT" in shown
    assert "Wrong: 1." in shown


def test_unsuitable_folders_for_remotes_give_warnings(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (data / "repositories", data / "remotes", tmp_path / "good"):
        folder.mkdir(parents=True)
    named = [
        tmp_path / "missing",
        tmp_path,
        data,
        data / "repositories",
        data / "remotes",
        tmp_path / "good",
    ]
    monkeypatch.setenv("RICORDO_REMOTE_FOLDERS", ":".join(map(str, named)))
    told = [(one.level, one.text) for one in examine() if one.name == "remote folder"]
    assert [level for level, _ in told] == ["warning"] * 4
    assert "missing does not exist" in told[0][1]
    assert all("Choose a separate folder" in text for _, text in told[1:])


def test_an_unknown_model_and_a_file_as_data_folder_are_wrong(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_MODEL", "nobody/nothing")
    monkeypatch.setenv("GEMINI_API_KEY", "key")
    monkeypatch.setattr(
        "ricordo.cli.doctor._is_installed", lambda package: package != "google-genai"
    )
    found = findings()
    fault = "RICORDO_MODEL=nobody/nothing cannot be used. None of the configured providers has it."
    assert found["default model"] == ("wrong", fault)
    level, text = found["providers"]
    assert (level, "GEMINI_API_KEY is set" in text, "ricordo[google]" in text) == (
        "warning",
        True,
        True,
    )
    data.write_text("not a folder")
    level, text = findings()["data folder"]
    assert (level, "is a file" in text) == ("wrong", True)


async def test_a_database_is_read_without_changes_and_damage_is_reported(
    data: Path,
) -> None:
    await open_sqlite(data / "ricordo.db").close()
    level, text = (await found_in_thread())["database"]
    assert (level, f"schema {len(MIGRATIONS)}" in text, text.endswith("sound")) == (
        "ok",
        True,
        True,
    )
    await open_sqlite(data / "ricordo.db").close()
    file = data / "ricordo.db"
    damaged = bytearray(file.read_bytes())
    damaged[4096 * 3 : 4096 * 6] = b"\xff" * (4096 * 3)
    for content in (bytes(damaged), b"no database at all, but long enough to be read as one" * 40):
        file.write_bytes(content)
        found = await found_in_thread()
        level, text = found["database"]
        assert (level, text.count("Restore it from a backup")) == ("wrong", 1)
        assert "doctor" not in text
        assert found["keys"] == ("warning", "not known: the database cannot be read")
        assert file.read_bytes() == content
    # The database's marker file says that the database was used.
    for remains in (b"", None):
        file.unlink()
        if remains is not None:
            file.write_bytes(remains)
        level, text = (await found_in_thread())["database"]
        assert (level, "missing or empty" in text) == ("wrong", True)
        file.touch()


async def fail_a_job(store: Store) -> None:
    """Store one job that failed and one that waits for years, and close the store."""

    def work(tx: Transaction) -> None:
        jobs.add(tx, Job("embed", LOCAL_ORGANIZATION, most_attempts=1))
        (held,) = jobs.claim(tx, "elsewhere", 1)
        jobs.fail(tx, held, {"type": "Unavailable", "message": "The service is down."})
        jobs.add(tx, Job("later", LOCAL_ORGANIZATION, not_before=4_000_000_000_000_000))

    await store.write(work)
    await store.close()


async def test_jobs_are_counted_from_the_file_or_by_the_running_server(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_a_job(open_sqlite(data / "ricordo.db"))
    found = await found_in_thread()
    assert found["jobs"] == ("ok", "1 waiting, 0 running, 1 failed recently")
    assert found["job error"] == (
        "warning",
        "embed (1 of 1 tries): Unavailable: The service is down.",
    )
    with serving(data, api_key="a key of its own") as server:
        level, text = (await found_in_thread())["database"]
        assert (level, "in use by a running server" in text) == ("warning", True)
        monkeypatch.setenv("RICORDO_PORT", server.url.rpartition(":")[2])
        # A person who can read the data folder needs no key.
        assert (await found_in_thread())["jobs"][0] == "ok"
        monkeypatch.setenv("RICORDO_API_KEY", "a wrong key")
        # A server answers nothing without its key.
        assert (await found_in_thread())["jobs"][0] == "warning"
        monkeypatch.setenv("RICORDO_API_KEY", "a key of its own")
        found = await found_in_thread()
    assert (found["database"][0], f"version {__version__}" in found["database"][1]) == ("ok", True)
    assert found["jobs"][1].endswith("1 failed recently")
    assert "The service is down." in found["job error"][1]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    made = postgres.server().new_database()
    monkeypatch.setenv("RICORDO_DATABASE_URL", made)
    yield made
    postgres.server().drop(made)


async def test_a_long_waiting_job_is_a_warning_only_with_a_running_server(
    data: Path, url: str
) -> None:
    store = open_postgres(url, backups=data, clock=ManualClock())  # The clock is some years behind.
    await store.write(lambda tx: jobs.add(tx, Job("embed", LOCAL_ORGANIZATION)))
    assert (await found_in_thread())["jobs"][0] == "warning"
    await store.close()
    level, text = (await found_in_thread())["jobs"]
    assert (level, text.startswith("1 waiting (one for ")) == ("ok", True)


async def test_pgvector_counts_only_if_the_database_has_the_extension(data: Path, url: str) -> None:
    await open_postgres(url, backups=data, clock=ManualClock()).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        assert "with pgvector 0." in (await found_in_thread())["database"][1]
        connection.execute("DROP EXTENSION vector CASCADE")
    assert "without the extension of pgvector 0." in (await found_in_thread())["database"][1]


@pytest.mark.parametrize(
    ("free", "level"), [(0, "wrong"), (2**20, "wrong"), (2**27, "warning"), (2**40, "ok")]
)
def test_a_full_disk_is_wrong(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    free: int,
    level: str,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=free))
    found = findings()["data folder"]
    assert (found[0], "Free some space" in found[1]) == (level, level != "ok")
    assert show(examine()) == (level != "wrong")
    assert ("All is well." in capsys.readouterr().out) == (level == "ok")


def test_an_unknown_host_is_wrong(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_HOST", "nowhere.invalid")
    found = findings()
    assert "keys" not in found
    assert (found["host"][0], "nowhere.invalid" in found["host"][1]) == ("wrong", True)
