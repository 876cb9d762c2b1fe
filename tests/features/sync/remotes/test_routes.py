"""Remotes over HTTP: added, listed without their passwords, synced and removed.

There are remotes of git, of Dolt and of a plugin.
"""

import time
from collections.abc import Iterator

import httpx2
import pytest

from ricordo import app
from ricordo.domain.ids import new_id
from ricordo.features import FEATURES
from ricordo.plugins import Plugins, load_plugins
from tests.seams.http import ok, put, refused
from tests.seams.server import ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support.notebook import Notebooks

LIMIT = 60
NOTEBOOKS = Notebooks()


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with a plugin that adds a kind of remote."""
    with pytest.MonkeyPatch.context() as patch:
        loaded = [*load_plugins(FEATURES)._plugins, ("notebooks", NOTEBOOKS)]
        patch.setattr(app, "load_plugins", lambda _: Plugins(loaded))
        with serving(tmp_path_factory.mktemp("data")) as server:
            yield server


def place(server: ServerInThread, kind: str) -> str:
    folder = server.settings.data_dir / "remotes"
    name = new_id("memory")
    return f"doltlite://{folder}/{name}.db" if kind == "dolt" else str(folder / f"{name}.git")


@pytest.mark.parametrize("kind", ["git", "dolt", "notebook"])
def test_a_remote_can_be_added_synced_and_removed(
    http: httpx2.Client, server: ServerInThread, kind: str
) -> None:
    user, other = new_id("ada"), new_id("bob")
    put(http, user, "human", "Ada")
    body = {"kind": kind, "address": place(server, kind)}
    made = ok(http.put(f"/users/{user}/remotes", json=body))
    assert (made["kind"], made["address"]) == (kind, body["address"])
    assert "already" in refused(http.put(f"/users/{user}/remotes", json=body), 409)

    def followed(versions: int, since: str | None = None) -> str:
        deadline = time.monotonic() + LIMIT
        while True:
            (now,) = ok(http.get(f"/users/{user}/remotes"))
            if now["followed"] == versions and now["last_at"] and now["last_at"] != since:
                assert now["last_error"] is None
                return str(now["last_at"])
            assert time.monotonic() < deadline, now
            time.sleep(0.02)

    followed(1)
    put(http, user, "human", "Ada, again")
    last = followed(2)
    ok(http.post(f"/users/{user}/remotes/{made['id']}/follow"))
    followed(2, since=last)
    put(http, other, "human", "Bob")
    refused(http.delete(f"/users/{other}/remotes/{made['id']}"), 404)
    ok(http.delete(f"/users/{user}/remotes/{made['id']}"))
    assert ok(http.get(f"/users/{user}/remotes")) == []


def test_a_plugins_remote_gets_its_options_and_password(
    http: httpx2.Client, server: ServerInThread
) -> None:
    user = new_id("ada")
    body = {
        "kind": "notebook",
        "address": place(server, "notebook"),
        "password": "s3cret",
        "options": {"title": "A"},
    }
    assert "s3cret" not in http.put(f"/users/{user}/remotes", json=body).text
    wait_for(lambda: "s3cret" in NOTEBOOKS.passwords)
    said = refused(http.put(f"/users/{user}/remotes", json={**body, "kind": "paper"}), 400)
    assert 'no remotes of the kind "paper". Use one of: dolt, git, notebook, openwebui.' in said
    for kind in ("git", "dolt"):
        other = {"kind": kind, "address": place(server, kind), "options": {"title": "A"}}
        assert "option" in refused(http.put(f"/users/{user}/remotes", json=other), 400)


def test_a_remotes_password_is_never_shown(http: httpx2.Client, server: ServerInThread) -> None:
    user = new_id("ada")
    server.runtime.settings.allow_private_remotes = True
    body = {"kind": "dolt", "address": "mysql://ada:s3cret@127.0.0.1:9/memory"}
    answer = http.put(f"/users/{user}/remotes", json=body)
    server.runtime.settings.allow_private_remotes = False
    assert ok(answer)["address"] == "mysql://ada@127.0.0.1:9/memory"
    assert "s3cret" not in answer.text + http.get(f"/users/{user}/remotes").text


def test_a_refused_address_creates_no_user(http: httpx2.Client) -> None:
    user = new_id("ada")
    for kind, address, setting in (
        ("dolt", "mysql://10.0.0.7/memory", "RICORDO_ALLOW_PRIVATE_REMOTES"),
        ("dolt", "mysql://localhost/memory", "RICORDO_ALLOW_PRIVATE_REMOTES"),
        ("git", "http://127.0.0.1/memory.git", "RICORDO_ALLOW_PRIVATE_REMOTES"),
        ("git", "/etc/memory.git", "RICORDO_REMOTE_FOLDERS"),
        ("dolt", "doltlite:///tmp/memory.db", "RICORDO_REMOTE_FOLDERS"),
    ):
        said = refused(
            http.put(f"/users/{user}/remotes", json={"kind": kind, "address": address}), 400
        )
        assert setting in said, address
        refused(http.get(f"/users/{user}/remotes"), 404)
