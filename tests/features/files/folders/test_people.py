"""Folders of users are private everywhere, and are deleted with the user."""

import pytest

from ricordo.llm.scripted import call
from tests.seams.http import ok
from tests.seams.people import OPERATOR, World
from tests.seams.server import MODEL, serving
from tests.seams.waiting import wait_for
from tests.support.canaries import CANARY, in_tables

SECRET = f"{CANARY} keeps bees"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with (
        serving(tmp_path_factory.mktemp("data"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        made = World(server, http)
        made.ada, bob = made.key("ada"), made.key("bob")
        made.shared["bob"] = bob
        yield made


def upload(world: World, key: str, folder: str, name: str, text: str) -> str:
    file = world.ask(
        key, "POST", f"/v1/folders/{folder}/upload", files={"file": (name, text.encode())}
    )["id"]
    place = f"/v1/folders/{folder}/files/{file}"
    wait_for(lambda: world.ask(key, "GET", place)["processing_status"] == "completed")
    return str(file)


def say(world: World, key: str, agent: str, *lines: object) -> str:
    """Take one turn; return the prompt of its last step and the results of its tools."""
    world.server.says(*lines, "Done.")  # type: ignore[arg-type]
    said = {"messages": [{"role": "user", "content": "Go."}]}
    told = ok(world.send(key, "POST", f"/v1/agents/{agent}/messages", json=said))["messages"]
    answers = [one["tool_return"] for one in told if one["message_type"] == "tool_return_message"]
    return "\n".join([world.server.model.requests[-1].messages[0].text, *answers])


def test_a_users_folder_is_private_and_erased_with_the_user(world: World) -> None:
    ada, bob = world.ada, world.shared["bob"]
    own = world.ask(ada, "POST", "/v1/folders/", json={"name": "Mine"})
    assert own["user_id"] == world.id_of("ada")
    assert world.ask(bob, "POST", "/v1/folders/", json={"name": "Mine"})["id"] != own["id"]
    file = upload(world, ada, own["id"], "diary.txt", f"{SECRET}.\nIn June.\n")
    shelf = world.ask(OPERATOR, "POST", "/v1/folders/", json={"name": "Shelf"})["id"]
    shared = upload(world, OPERATOR, shelf, "poem.txt", "A poem.\nAbout tea.\n")
    for path in ("", "/files", f"/files/{file}", "/agents", "/passages"):
        assert world.send(bob, "GET", f"/v1/folders/{own['id']}{path}").status_code == 404
    assert [one["name"] for one in world.ask(bob, "GET", "/v1/folders/")] == ["Shelf", "Mine"]
    # She may read shared folders, but not change them.
    assert world.ask(
        ada, "GET", f"/v1/folders/{shelf}/files/{shared}", params={"include_content": True}
    )["content"]
    for method, path in (("PATCH", ""), ("DELETE", ""), ("DELETE", f"/{shared}")):
        refused = world.send(
            ada, method, f"/v1/folders/{shelf}{path}", **({"json": {}} if method == "PATCH" else {})
        )
        assert refused.status_code == 403, refused.text
    sent = {"file": ("x.txt", b"x")}
    assert world.send(ada, "POST", f"/v1/folders/{shelf}/upload", files=sent).status_code == 403

    agent = world.ask(
        OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "folder_ids": [shelf]}
    )["id"]
    assert world.send(ada, "PATCH", f"/v1/agents/{agent}/folders/detach/{shelf}").status_code == 403
    assert (
        world.send(bob, "PATCH", f"/v1/agents/{agent}/folders/attach/{own['id']}").status_code
        == 404
    )
    world.ask(ada, "PATCH", f"/v1/agents/{agent}/folders/attach/{own['id']}")
    assert [one["name"] for one in world.ask(ada, "GET", f"/v1/agents/{agent}")["sources"]] == [
        "Shelf",
        "Mine",
    ]
    assert [one["name"] for one in world.ask(bob, "GET", f"/v1/agents/{agent}")["sources"]] == [
        "Shelf"
    ]

    opens = call(
        "open_files", file_requests=[{"file_name": "diary.txt"}, {"file_name": "poem.txt"}]
    )
    assert SECRET in say(world, ada, agent, opens)
    looks = (
        call("grep_files", pattern=".*"),
        call("semantic_search_files", query="who keeps bees"),
        opens,
        call("open_files", file_requests=[{"file_name": "Mine/diary.txt"}]),
    )
    world.ask(ada, "PATCH", f"/v1/agents/{agent}/files/close-all")
    for other in (bob, OPERATOR):
        told = say(world, other, agent, *looks)
        assert CANARY not in told.replace('"Mine/diary.txt"', "")
        # A file that she closes stays open for others, so they do not learn what she reads.
        assert '<file status="open" name="Shelf/poem.txt">' in told
        assert 'name="Mine/diary' not in told
    assert SECRET not in say(world, ada, agent)
    assert SECRET in say(world, ada, agent, opens)
    assert [
        one["file_name"] for one in world.ask(bob, "GET", f"/v1/agents/{agent}/files")["files"]
    ] == ["Shelf/poem.txt"]
    assert (
        len(world.ask(ada, "GET", f"/v1/agents/{agent}/files", params={"is_open": True})["files"])
        == 2
    )

    receipt = world.send(OPERATOR, "DELETE", "/users/ada").json()
    wait_for(
        lambda: world.send(OPERATOR, "GET", f"/v1/receipts/{receipt['id']}").status_code == 200
    )
    assert world.send(OPERATOR, "GET", f"/v1/folders/{own['id']}").status_code == 404
    assert world.server.read(in_tables) == []
    assert "About tea." in say(
        world, bob, agent, call("open_files", file_requests=[{"file_name": "poem.txt"}])
    )


def test_an_operator_can_create_a_folder_for_a_user(world: World) -> None:
    made = world.ask(OPERATOR, "POST", "/v1/folders/", json={"name": "For Bob", "user": "bob"})
    assert made["user_id"] == world.id_of("bob")
    assert world.ask(world.shared["bob"], "GET", f"/v1/folders/{made['id']}")["name"] == "For Bob"
    assert (
        world.send(
            OPERATOR, "POST", "/v1/folders/", json={"name": "x", "user": "nobody-there"}
        ).status_code
        == 404
    )
