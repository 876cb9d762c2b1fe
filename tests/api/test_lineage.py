"""What an answer knew, over HTTP."""

import httpx2
import pytest
from letta_client.types import AgentState

from ricordo.api.models.memory import LineageResponse
from ricordo.llm.scripted import call
from tests.api.fits import require_fits
from tests.api.memory import ok
from tests.support.serving import ServerInThread, StrictLetta


def test_an_answer_knew_the_versions_that_were_in_its_prompt_and_the_passages_that_were_found(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    (passage,) = client.agents.passages.create(agent.id, text="Jasmine tea is her favourite.", tags=["tea"])
    server.says(call("archival_memory_search", query="favourite tea"), "Jasmine.")

    answer = client.agents.messages.create(agent.id, input="Which tea do I like?")

    why = ok(http.get(f"/v1/messages/{answer.messages[-1].id}/memory"))
    require_fits(LineageResponse, why)
    versions = {
        block.label: ok(http.get(f"/v1/blocks/{block.id}/history"))[0] for block in client.agents.blocks.list(agent.id)
    }
    assert {held["label"]: held["version"] for held in why["blocks"]} == versions
    assert {held["label"]: held["sha"] for held in why["blocks"]} == {
        label: version["sha"] for label, version in versions.items()
    }
    assert [(one["id"], one["text"], one["tags"]) for one in why["passages"]] == [(passage.id, passage.text, ["tea"])]

    client.agents.passages.delete(str(passage.id), agent_id=agent.id)
    later = ok(http.get(f"/v1/messages/{answer.messages[-1].id}/memory"))
    assert (later["passages"], later["forgotten_passage_ids"]) == ([], [passage.id])


def test_a_step_that_edited_tells_what_it_changed(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    edit = call("memory_replace", label="human", old_string="Ada", new_string="Ada L.")
    server.says(edit, "Noted.")

    answer = client.agents.messages.create(agent.id, input="My name is Ada L.")

    why = ok(http.get(f"/v1/messages/{answer.messages[0].id}/memory"))
    (changed,) = why["changed"]
    human = client.agents.blocks.retrieve("human", agent_id=agent.id)
    newest, first = ok(http.get(f"/v1/blocks/{human.id}/history"))
    assert changed == newest
    # It read the version before its own.
    assert first["sha"] in {held["sha"] for held in why["blocks"]}


def test_what_a_user_said_knew_nothing(client: StrictLetta, http: httpx2.Client, agent: AgentState) -> None:
    client.agents.messages.create(agent.id, input="Hello.")
    (first, *_) = [
        one for one in client.agents.messages.list(agent.id, order="asc") if one.message_type == "user_message"
    ]

    why = ok(http.get(f"/v1/messages/{first.id}/memory"))

    assert (why["step_id"], why["blocks"], why["passages"]) == (None, [], [])


@pytest.mark.parametrize("id", ["message-00000000-0000-4000-8000-00000000dead", "nothing"])
def test_a_message_that_is_not_there_has_no_memory(http: httpx2.Client, id: str) -> None:
    assert http.get(f"/v1/messages/{id}/memory").status_code == 404
