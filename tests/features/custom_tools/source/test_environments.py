"""Tools that need packages.

The packages are wheels in a local folder, and the operator's pip uses no other source.
"""

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Invalid
from ricordo.features.custom_tools.source import environments
from ricordo.features.custom_tools.source.environments import texts_of
from ricordo.llm.scripted import call
from ricordo.settings import Settings
from ricordo.storage.engine.work_folders import FOLDER, PACKAGES
from tests.api.conftest import Api
from tests.seams.server import MODEL
from tests.support.attacked_server import attacked_server
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

PATIENCE = 600  # seconds that pip may take on a busy machine
GREETS = '''
def greet(whom: str) -> str:
    """Greet somebody."""
    import salve
    return salve.greeting(whom)
'''


def make_wheel(folder: Path, name: str, version: str, source: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture(autouse=True)
def _index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(
            tmp_path, "salve", version, f"def greeting(name): return f'Salve {{name}}! ({version})'"
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(environments, "_LOOK", 0.02)


def try_out(
    api: Api,
    *requirements: dict[str, Any],
    source: str = GREETS,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    arguments = {"whom": "Ada"} if args is None else args
    body = {"source_code": source, "args": arguments, "pip_requirements": list(requirements)}
    answer = api.http.post("/v1/tools/run", json=body, timeout=PATIENCE)
    made: dict[str, Any] = answer.json() | {"code": answer.status_code}
    return made


def test_simultaneous_calls_build_one_environment(api: Api) -> None:
    results: list[Any] = []
    wanted = {"name": "salve", "version": "1.0"}
    home = environments._home(api.server.settings, texts_of([wanted]))
    shutil.rmtree(home, ignore_errors=True)  # another test may have built it
    threads = [
        threading.Thread(target=lambda: results.append(try_out(api, wanted))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result["func_return"] for result in results] == ["Salve Ada! (1.0)"] * 4
    assert home.is_dir()
    work = api.server.settings.data_dir / FOLDER
    assert [
        path.name for path in work.iterdir() if path.is_dir() and path.name.startswith(PACKAGES)
    ] == []


def test_a_tool_has_its_packages_and_changed_packages_replace_them(api: Api) -> None:
    client = api.client.with_options(timeout=PATIENCE)
    tool = client.tools.create(
        source_code=GREETS, pip_requirements=[{"name": "salve", "version": "1.0"}]
    )
    assert [(one.name, one.version) for one in tool.pip_requirements or ()] == [("salve", "1.0")]
    agent = client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call("greet", whom="Ada"), "Done.")
    told = str(client.agents.messages.create(agent.id, input="Greet.").messages)
    assert "Salve Ada! (1.0)" in told
    page = api.http.post(
        f"/ui/tools/{tool.id}/try", content="arguments=%7B%22whom%22%3A%22Eve%22%7D"
    )
    assert "Packages: <code>salve==1.0</code>" in page.text
    assert "Salve Eve! (1.0)" in page.text
    client.tools.update(tool.id, pip_requirements=[{"name": "salve"}])
    result = client.agents.tools.run("greet", agent_id=agent.id, args={"whom": "Bea"})
    assert result.func_return == "Salve Bea! (2.0)", result
    client.tools.delete(tool.id)


def test_a_failed_install_quotes_pip_and_is_retried_later(api: Api, tmp_path: Path) -> None:
    wanted = {"name": "nosuchthing", "version": ">=1.0,<2"}
    failed = try_out(api, wanted)
    assert failed["code"] == 400
    assert f"cannot be installed ({texts_of([wanted])[0]}): " in failed["detail"]
    assert "No matching distribution found for nosuchthing" in failed["detail"]
    # The failure is reported at once, and recorded with the job a moment later.
    deadline = time.monotonic() + PATIENCE
    while not any(
        job["status"] == "failed" and "nosuchthing" in str(job)
        for job in api.http.get("/v1/jobs/").json()
    ):
        assert time.monotonic() < deadline, "the job did not fail"
        time.sleep(0.1)
    make_wheel(tmp_path, "nosuchthing", "1.0", "x = 1")
    failure = environments._failure(environments._home(api.server.settings, texts_of([wanted])))
    assert "cannot be installed" in try_out(api, wanted)["detail"]
    os.utime(failure, (0, 0))
    uses = "def f() -> int:\n    'x'\n    import nosuchthing\n    return nosuchthing.x"
    assert try_out(api, wanted, source=uses, args={})["func_return"] == 1


@pytest.mark.parametrize("fault", ["rename", "write", "begin"])
@pytest.mark.parametrize("database_url", ["", "postgresql://ricordo:x@127.0.0.1/none"])
async def test_an_environment_that_cannot_be_stored_fails_at_once_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, database_url: str
) -> None:
    """The disk is full at one of three steps.

    With "rename" the environment cannot be moved. With "write" the reason cannot be stored either.
    With "begin" the build cannot start.
    """
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url)
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*_: Any, **__: Any) -> None:
        raise full

    def begin(building: Path) -> None:
        if fault == "begin":
            raise full
        building.mkdir()

    async def install(*_: Any) -> None:
        pass

    monkeypatch.setattr(environments, "_begin", begin)
    monkeypatch.setattr(environments, "_install", install)
    monkeypatch.setattr(Path, "rename", fails)
    if fault == "write":
        monkeypatch.setattr(Path, "write_text", fails)
    monkeypatch.setattr(environments, "_PATIENCE", 5.0)

    class JobRunner:
        """Builds the environment at once, as the job does."""

        async def write(self, _: Any) -> None:
            with suppress(Invalid):
                await own.build(("salve==1.0",))

    own = environments.Environments(settings)
    for _ in range(2):
        with pytest.raises(Invalid, match=r"salve==1\.0.*cannot store them: .*No space left"):
            await own.python_for(JobRunner(), Scope(), ("salve==1.0",))  # type: ignore[arg-type]


def test_an_environment_on_a_volume_that_became_read_only_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", fails)
    assert environments._is_ready(tmp_path)
    assert not environments._is_ready(tmp_path / "none")


@pytest.mark.soak
async def test_each_server_with_postgresql_builds_its_environment_once(
    tmp_path: Path,
) -> None:
    settings = Settings(
        data_dir=tmp_path / "data", database_url="postgresql://ricordo:x@127.0.0.1/none"
    )
    store: Any = None  # no job is added
    own = environments.Environments(settings)
    wanted = [own.python_for(store, Scope(), ("salve==1.0",)) for _ in range(3)]
    (python,) = set(await asyncio.gather(*wanted))
    assert python is not None
    assert list(python.parent.parent.glob("lib/*/site-packages/salve.py"))


@pytest.mark.parametrize(
    "wanted",
    [
        *(
            {"name": name}
            for name in (
                "./salve",
                "/tmp/x.whl",
                "https://x.example/a.whl",
                "-r",
                "--target=x",
                "a b",
                "",
            )
        ),
        *({"name": name} for name in ("salve @ file:///x", "salve; os_name == 'x'", "salve==1")),
        *(
            {"name": "salve", "version": version}
            for version in ("1.0 --pre", "@x", "1.0;x", "file:///x", "==1.0, <2")
        ),
    ],
)
def test_requirements_other_than_a_package_name_and_versions_are_refused(
    api: Api, wanted: dict[str, Any]
) -> None:
    assert try_out(api, wanted)["code"] == 422


def test_pip_ends_when_the_server_ends() -> None:
    program = environments._PIP.replace(
        'runpy.run_module("pip", run_name="__main__", alter_sys=True)',
        "import time; time.sleep(60)",
    )
    with subprocess.Popen([sys.executable, "-I", "-c", program], stdin=subprocess.PIPE) as child:
        assert child.stdin
        time.sleep(0.1)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(20) == 1


def test_the_most_recently_used_environments_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_MOST", 2)
    for number, name in enumerate(("old", "used", "new")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "x.building").mkdir()
    environments._finish(tmp_path / "x.building", tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["new", "x"]
    own = environments.Environments(None)  # type: ignore[arg-type]
    assert asyncio.run(own.python_for(None, None, ())) is None  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
async def test_a_kill_during_a_build_leaves_nothing_and_the_next_server_builds(
    tmp_path: Path, helper: Helper
) -> None:
    async with attacked_server(helper, tmp_path) as server:
        for number in range(environments._MOST + 5):
            name = f"salve{number}"
            make_wheel(tmp_path, name, "1.0", "x = 1")
            source = (
                f"def use_{number}() -> int:\n    'Use it.'\n    import {name}\n    return {name}.x"
            )
            body = {"source_code": source, "pip_requirements": [{"name": name}]}
            tool = (await server.http.post("/v1/tools/", json=body)).json()
            await asyncio.sleep(random.uniform(0, 1.5))  # noqa: S311
            await asyncio.to_thread(server.process.kill)
            await asyncio.to_thread(server.process.start)
            agent = await server.agent(tool_ids=[tool["id"]])
            answer = await server.http.post(
                f"/v1/agents/{agent}/tools/use_{number}/run", json={"args": {}}
            )
            assert answer.json()["func_return"] == 1, answer.text
        folder = server.process.database.parent / "environments"
        assert (
            len([path for path in folder.iterdir() if path.is_dir() and not path.suffix])
            == environments._MOST
        )
