"""Import of a Letta V1 server's whole database.

The content is equal, a repeated import adds nothing, and the old database is only read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.features.documents.imports.letta import import_letta
from ricordo.features.documents.imports.letta_tables import LettaTables
from ricordo.features.documents.imports.queries import forget_items, report_text
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import serving
from tests.support import postgres
from tests.support.letta_database import (
    ADA,
    ARCHIVE,
    BO,
    CONVERSATION,
    KEY,
    USER,
    LettaDatabase,
    fill,
    made_id,
)

Report = dict[str, Any]


@pytest.fixture
def url() -> Iterator[str]:
    made = postgres.server().new_database(empty=True)
    yield made
    postgres.server().drop(made)


@pytest.fixture
def letta(url: str) -> Iterator[LettaDatabase]:
    made = fill(url)
    yield made
    made.connection.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path) as server, server.client() as client, server.http() as http:
        yield Api(server, client, http)


def import_from(api: Api, url: str, **options: Any) -> Report:
    tables = LettaTables(url)
    try:
        return api.server.run(
            import_letta(api.server.runtime, Scope(), tables, lambda *_: None, **options)
        )
    finally:
        tables.close()


def left_out(report: Report) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in report["left_out"]:
        found.setdefault(one["what"], []).extend(one["names"] or [str(one["count"])])
    return found


def test_letta_agents_are_imported_completely(api: Api, letta: LettaDatabase, url: str) -> None:
    report = import_from(api, url, key=KEY)
    assert report["taken"] == {
        "agents": 2,
        "archives": 1,
        "blocks": 4,
        "blocks of users": 1,
        "conversations": 1,
        "earlier versions of blocks": 3,
        "files": 1,
        "folders": 1,
        "groups": 1,
        "messages": 27,
        "passages": 3,
        "tools": 1,
        "users": 1,
    }
    state = api.client.agents.retrieve(ADA)
    assert (
        state.name,
        state.description,
        state.system,
        state.tags,
        state.timezone,
        state.metadata,
    ) == (
        *("Ada's tutor", "Teaches.", "You teach.", ["school"], "Europe/Rome"),
        {"year": 1},
    )
    assert {one.name for one in state.tools} >= {"add_up", "send_message", "grep_files"}
    assert [(one.type, one.tool_name) for one in state.tool_rules or ()] == [
        ("exit_loop", "send_message")
    ]
    assert {one.key for one in state.secrets or ()} == {"PLAIN", "SHOP_KEY"}
    seen = {one.id: (one.label, one.value, one.read_only) for one in state.blocks}
    assert seen[made_id("block", "human")] == ("human", "Ada likes tea.", False)
    assert seen[made_id("block", "rules")] == ("rules", "Be kind.", True)
    assert seen[made_id("block", "history")][1] == "x" * 3000
    home = f"/v1/blocks/{made_id('block', 'human')}"
    versions = [
        ok(api.http.get(f"{home}/versions/{one['sha']}"))
        for one in ok(api.http.get(f"{home}/history"))
    ]
    assert [one["body"] for one in versions] == ["Ada likes tea.", "Ada likes coffee.", "Ada."]
    assert [one.id for one in api.client.agents.retrieve(BO).blocks] == [made_id("block", "rules")]
    (user,) = ok(api.http.get("/v1/identities/", params={"identifier_key": "ada@school"}))
    assert (user["id"], user["agent_ids"], user["block_ids"]) == (
        USER,
        [ADA],
        [made_id("block", "human")],
    )
    # The agent's passages are found, in an archive with the id that it had before the import.
    found = api.client.agents.passages.search(ADA, query="Darjeeling").results
    assert len(found) == 3
    assert found[0].tags == ["tea"]
    assert [one.id for one in api.client.archives.list(agent_id=ADA).items] == [ARCHIVE]
    (folder,) = api.client.agents.folders.list(ADA).items
    assert (folder.id, folder.name) == (made_id("source", "shelf"), "Shelf")
    assert [one["file_name"] for one in ok(api.http.get(f"/v1/folders/{folder.id}/files"))] == [
        "plan.pdf.txt"
    ]


def test_letta_messages_keep_order_times_reasoning_and_calls(
    api: Api, letta: LettaDatabase, url: str
) -> None:
    import_from(api, url)
    file = ok(api.http.get(f"/v1/agents/{ADA}/export"))
    said = file["ricordo"]["agents"]["agent-0"]["messages"]
    assert [one["role"] for one in said] == [
        "system",
        *["user", "assistant", "tool", "assistant"] * 6,
    ]
    assert [one["created_at"] for one in said] == sorted(one["created_at"] for one in said)
    question, calls, results, answer = said[5:9]
    assert question["parts"] == [{"kind": "text", "text": "Question 1 about tea."}]
    assert question["sender_id"].removeprefix("user-") == USER.removeprefix("identity-")
    assert [part["kind"] for part in calls["parts"]] == [
        "reasoning",
        "reasoning",
        "tool_call",
        "tool_call",
    ]
    assert [part.get("text") for part in calls["parts"][:2]] == ["Hm 1.", "In short."]
    first, second = results["parts"]
    assert (first["name"], first["status"], first["content"], first["stdout"]) == (
        "add_up",
        "success",
        "3",
        ["printed"],
    )
    assert (second["name"], second["status"], second["stderr"]) == ("roll_dice", "error", ["oops"])
    assert answer["parts"] == [{"kind": "text", "text": "Answer 1."}]
    # The context window has a new prompt and the same messages, and the agent can continue.
    window = file["agents"][0]["in_context_message_ids"]
    assert window[1:] == [one["id"] for one in said[-9:]]
    thread = ok(api.http.get(f"/v1/conversations/{CONVERSATION}/messages", params={"order": "asc"}))
    assert [one["message_type"] for one in thread] == [
        *("system_message", "user_message", "approval_request_message", "approval_response_message")
    ]
    assert (thread[-1]["approvals"][0]["tool_call_id"], thread[-1]["approvals"][0]["reason"]) == (
        "call-x",
        "Not now.",
    )
    api.server.says(call("send_message", message="About tea."))
    api.client.agents.messages.create(ADA, input="What did I ask?")
    asked = api.server.model.requests[0].messages
    questions = [one.text for one in asked if one.role == "user"]
    assert [
        words in text
        for words, text in zip(("tion 4 ", "tion 5 ", "What did"), questions, strict=True)
    ] == [True] * 3
    assert "Ada likes tea." in asked[0].text
    api.server.says(call("send_message", message="There."))
    sent = {"messages": [{"role": "user", "content": "Again."}], "streaming": False}
    ok(api.http.post(f"/v1/conversations/{CONVERSATION}/messages", json=sent))
    asked = api.server.model.requests[-1].messages
    assert [one.role for one in asked][:1] == ["system"]
    assert "Again." in [one.text for one in asked if one.role == "user"][-1]


def test_the_report_lists_what_was_left_out(api: Api, letta: LettaDatabase, url: str) -> None:
    report = import_from(api, url)
    told = left_out(report)
    assert told["groups"] == ["sleeptime"]
    assert told["providers"] == ["1"]
    assert sorted(told["tools"]) == ["broken", "web_thing"]
    assert sorted(told["tools of agents"]) == ["Ada's tutor: roll_dice", "Ada's tutor: web_thing"]
    assert told["values of secrets"] == ["Ada's tutor: SHOP_KEY"]
    assert told["files"] == ["lost.txt"]
    assert told["templates of blocks"] == ["template"]
    assert told["labels of blocks"] == ["history"]
    assert len(told["tool rules"]) == 1
    assert sorted(told["settings of agents"]) == ["Bo: agent_type"]
    assert len(told["messages"]) == 2
    text = report_text(report)
    assert "27 messages" in text
    assert "1 files (lost.txt): that server did not keep its text" in text
    with_wrong_key = left_out(import_from(api, url, key="another"))
    assert with_wrong_key == told  # Imported rows are not imported again.


def test_agents_share_a_template_and_none_takes_a_block_that_cannot_be_imported(
    api: Api, letta: LettaDatabase, url: str
) -> None:
    block: dict[str, Any] = {"limit": 2000, "metadata_": {}, "read_only": False, "hidden": False}
    huge = "x" * 2_000_000
    for name, value, is_template in (("shared", "Be kind.", True), ("huge", huge, False)):
        id = made_id("block", name)
        letta.put("block", id=id, label=name, value=value, is_template=is_template, **block)
        for agent in (ADA, BO):
            letta.put("blocks_agents", agent_id=agent, block_id=id, block_label=name)
    own = made_id("block", "t")
    letta.put("blocks_agents", agent_id=BO, block_id=own, block_label="template")
    for _ in range(2):
        report = import_from(api, url, key=KEY)
        assert report["taken"]["agents"] == 2
        told = left_out(report)
        assert "templates of blocks" not in told
        assert told["blocks"] == ["huge"]
        ids = [{one.id for one in api.client.agents.retrieve(agent).blocks} for agent in (ADA, BO)]
        assert all(made_id("block", "shared") in of_agent for of_agent in ids)
        assert not any(made_id("block", "huge") in of_agent for of_agent in ids)
        assert own in ids[1]


def test_a_second_letta_import_changes_nothing(api: Api, letta: LettaDatabase, url: str) -> None:
    first = import_from(api, url)
    api.client.agents.blocks.update("human", agent_id=ADA, value="Changed here.")
    before = ok(api.http.get(f"/v1/agents/{ADA}/export"))
    assert import_from(api, url) == first
    assert ok(api.http.get(f"/v1/agents/{ADA}/export")) | {"created_at": ""} == before | {
        "created_at": ""
    }
    # Deleted rows stay deleted, also if an import was killed in between.
    api.client.agents.delete(ADA)
    api.client.archives.delete(ARCHIVE)
    halves = [f"{ADA}/messages", f"{ARCHIVE}/passages"]
    for half in halves:
        api.server.write(
            lambda tx, half=half: forget_items(tx, Scope().organization_id, "letta", half)
        )
    again = import_from(api, url)
    assert (
        first["taken"] | {"messages": 0, "passages": 0}
        == {"messages": 0, "passages": 0} | again["taken"]
    )
    assert api.http.get(f"/v1/agents/{ADA}").status_code == 404


def test_databases_of_other_programs_are_refused(api: Api, url: str) -> None:
    with pytest.raises(Invalid, match="not a database of the retired Letta V1 server"):
        LettaTables(url)
    with pytest.raises(Invalid, match="postgresql://"):
        LettaTables("sqlite:///letta.db")
    with pytest.raises(Unavailable, match="cannot be read"):
        LettaTables("postgresql://nobody:hush@127.0.0.1:1/letta")
    letta = fill(url)
    llm = {"handle": "scripted/model"}
    letta.put(
        "agents",
        id=made_id("agent", 9),
        name="C",
        system="",
        llm_config=llm,
        organization_id="org-other",
    )
    with pytest.raises(Invalid, match="2 organizations"):
        import_from(api, url)
    assert json.dumps(letta.connection.execute("SELECT count(*) FROM agents").fetchall()) == "[[4]]"
    letta.connection.close()


def test_letta_groups_keep_members_settings_and_shared_blocks(
    api: Api, letta: LettaDatabase, url: str
) -> None:
    report = import_from(api, url, key=KEY)
    assert report["taken"]["groups"] == 1
    (group,) = ok(api.http.get("/v1/groups/"))
    assert (group["id"], group["description"]) == (made_id("group", 2), "Both.")
    assert (group["manager_type"], group["agent_ids"], group["max_turns"]) == (
        "round_robin",
        [BO, ADA],
        3,
    )
    assert group["shared_block_ids"] == [made_id("block", "rules")]
    assert import_from(api, url, key=KEY)["taken"]["groups"] == 1
    assert len(ok(api.http.get("/v1/groups/"))) == 1
