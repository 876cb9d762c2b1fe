"""Archives over HTTP, by the official client: made, shared, filled, deleted; whatever is refused leaves nothing behind."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from letta_client import BadRequestError, NotFoundError, UnprocessableEntityError
from letta_client.types import AgentState

from ricordo.api.models.archives import MOST_ITEMS
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import LOCAL_USER
from tests.support.serving import ServerInThread, StrictLetta


def test_an_archive_is_made_changed_and_deleted(client: StrictLetta, http: httpx2.Client) -> None:
    made = client.archives.create(name="Recipes", description="Of tea")

    assert is_id(made.id, "archive")
    assert (made.name, made.description, made.metadata) == ("Recipes", "Of tea", {})
    assert (made.vector_db_provider, made.created_by_id) == ("native", LOCAL_USER)
    assert made.embedding_config is not None
    assert made.embedding == made.embedding_config.handle == "ricordo/wordllama-256"
    assert client.archives.retrieve(made.id).to_dict() == made.to_dict()
    changed = client.archives.update(made.id, name="Drinks")
    assert (changed.name, changed.description) == ("Drinks", "Of tea")
    assert changed.updated_at is not None
    assert made.updated_at is not None
    assert changed.updated_at > made.updated_at
    assert client.archives.update(made.id, description=None).description is None
    assert http.patch(f"/v1/archives/{made.id}", json={"metadata": {"a": 1}}).json()["metadata"] == {"a": 1}
    assert http.delete(f"/v1/archives/{made.id}").status_code == 204
    for attempt in (client.archives.retrieve, client.archives.delete, client.archives.update):
        with pytest.raises(NotFoundError) as caught:
            attempt(made.id)
        assert caught.value.body == {"detail": f"NOT_FOUND: Archive with ID {made.id} not found"}


def test_archives_are_listed_by_page_name_and_agent(client: StrictLetta, agent: AgentState) -> None:
    made = [client.archives.create(name=name) for name in ("a-list", "b-list", "a-list")]
    client.agents.archives.attach(made[1].id, agent_id=agent.id)

    def ids(**query: Any) -> list[str]:
        return [archive.id for archive in client.archives.list(**query)]

    assert ids(name="a-list") == [made[2].id, made[0].id]
    assert ids(name="a-list", order="asc") == [made[0].id, made[2].id]
    assert ids(name="a-list", limit=1, after=made[2].id) == [made[0].id]
    assert ids(agent_id=agent.id) == [made[1].id]
    assert ids(agent_id=new_id("agent")) == ids(name="c-list") == []


def test_agents_share_an_archive(client: StrictLetta, http: httpx2.Client, agent: AgentState) -> None:
    other = client.agents.create(model=agent.model)
    archive = client.archives.create(name="Shared")
    for one in (agent, other, other):
        client.agents.archives.attach(archive.id, agent_id=one.id)
    client.archives.passages.create(archive.id, text="Tea grows in Darjeeling.", tags=["tea"])

    assert client.agents.passages.search(other.id, query="Darjeeling").count == 1
    (filed,) = client.agents.passages.create(agent.id, text="Jasmine tea grows in Fujian.")
    assert filed.archive_id == archive.id
    assert {item.text for item in client.agents.passages.list(other.id)} == {
        "Tea grows in Darjeeling.",
        "Jasmine tea grows in Fujian.",
    }
    users = http.get(f"/v1/archives/{archive.id}/agents", params={"order": "asc"}).json()
    assert [user["id"] for user in users] == [agent.id, other.id]
    first = http.get(f"/v1/archives/{archive.id}/agents", params={"order": "asc", "limit": 1}).json()
    assert [user["id"] for user in first] == [agent.id]

    client.agents.archives.detach(archive.id, agent_id=other.id)
    client.agents.archives.detach(archive.id, agent_id=other.id)

    assert client.agents.passages.search(other.id, query="Darjeeling").count == 0
    assert client.agents.passages.search(agent.id, query="Darjeeling").count >= 1
    client.archives.delete(archive.id)
    assert client.agents.passages.list(agent.id) == []


def test_an_agent_that_lost_its_archive_makes_a_new_one(client: StrictLetta, agent: AgentState) -> None:
    (first,) = client.agents.passages.create(agent.id, text="Old.")
    client.archives.delete(first.archive_id or "")
    (second,) = client.agents.passages.create(agent.id, text="New.")
    assert second.archive_id != first.archive_id
    assert [item.text for item in client.agents.passages.list(agent.id)] == ["New."]


def test_a_passage_is_put_into_an_archive_and_taken_out(client: StrictLetta, http: httpx2.Client) -> None:
    archive = client.archives.create(name="Notes")
    made = client.archives.passages.create(
        archive.id, text="Tea.", tags=["b", "a", "b"], metadata={"page": 4}, created_at="2024-05-06T07:08:09Z"
    )

    assert is_id(made.id or "", "passage")
    assert (made.archive_id, made.text, made.tags, made.metadata) == (archive.id, "Tea.", ["b", "a"], {"page": 4})
    assert made.created_at == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    elsewhere = client.archives.create(name="Elsewhere")
    with pytest.raises(NotFoundError):
        client.archives.passages.delete(made.id or "", archive_id=elsewhere.id)
    assert http.delete(f"/v1/archives/{archive.id}/passages/{made.id}").status_code == 204
    with pytest.raises(NotFoundError):
        client.archives.passages.delete(made.id or "", archive_id=archive.id)


def test_many_passages_are_put_in_at_once_in_their_order(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    archive = client.archives.create(name="Many")
    client.agents.archives.attach(archive.id, agent_id=agent.id)
    items: Any = [{"text": f"Tea number {number}", "tags": ["tea"]} for number in range(1_203)]

    made = client.archives.passages.create_many(archive.id, passages=items)

    assert [item.text for item in made] == [item["text"] for item in items]
    assert len({item.id for item in made}) == len(items)
    listed = client.agents.passages.list(agent.id, limit=1000)
    assert [item.id for item in listed] == [item.id for item in made[:1000]]
    assert client.agents.passages.search(agent.id, query="number 1042").results[0].content == "Tea number 1042"


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"text": None},
        {"tags": ["a"]},
        {"text": "Tea", "tags": "a"},
        {"text": "Tea", "tags": [""]},
        {"text": "Tea", "created_at": "yesterday"},
        {"text": "Tea", "created_at": "0001-01-01T00:00:00+14:00"},
        {"text": "Tea\0"},
    ],
)
def test_one_bad_passage_refuses_the_whole_batch(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread, wrong: dict[str, Any]
) -> None:
    archive = client.archives.create(name="Clean")
    rows = server.rows()
    items = [{"text": f"Tea {number}"} for number in range(600)]

    answer = http.post(f"/v1/archives/{archive.id}/passages/batch", json={"passages": [*items, wrong]})

    assert answer.status_code in (400, 422)
    assert server.rows() == rows


@pytest.mark.parametrize("size", [0, MOST_ITEMS + 1])
def test_a_batch_has_a_size(client: StrictLetta, server: ServerInThread, size: int) -> None:
    archive = client.archives.create(name="Sized")
    rows = server.rows()
    with pytest.raises(BadRequestError) as caught:
        client.archives.passages.create_many(archive.id, passages=[{"text": "Tea"}] * size)
    told = f"A request takes 1 to {MOST_ITEMS} passages, not {size}. Send them in several requests."
    assert caught.value.body == {"detail": f"INVALID_ARGUMENT: {told}"}
    assert server.rows() == rows


def test_a_database_or_a_model_that_is_not_set_up_is_refused(
    client: StrictLetta, http: httpx2.Client, server: ServerInThread
) -> None:
    rows = server.rows()

    answer = http.post("/v1/archives/", json={"name": "Notes", "vector_db_provider": "pinecone"})

    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        'INVALID_ARGUMENT: The vector database "pinecone" is not set up on this server. '
        "Leave vector_db_provider out, or choose one of: native."
    )
    with pytest.raises(NotFoundError):
        client.archives.create(name="Notes", embedding="nobody/model")
    for body in ({}, {"name": ""}, {"name": None}, {"name": "x" * 257}, {"name": "Notes", "metadata": []}):
        assert http.post("/v1/archives/", json=body).status_code == 422
    assert server.rows() == rows


def test_nothing_is_attached_to_nobody(client: StrictLetta, server: ServerInThread, agent: AgentState) -> None:
    archive = client.archives.create(name="Notes")
    rows = server.rows()
    for archive_id, agent_id in ((new_id("archive"), agent.id), (archive.id, new_id("agent"))):
        for change in (client.agents.archives.attach, client.agents.archives.detach):
            with pytest.raises(NotFoundError):
                change(archive_id, agent_id=agent_id)
    for attempt in (
        lambda: client.archives.passages.create(new_id("archive"), text="Tea"),
        lambda: client.archives.passages.create_many(new_id("archive"), passages=[{"text": "Tea"}]),
    ):
        with pytest.raises(NotFoundError):
            attempt()
    assert server.rows() == rows


def test_a_bad_body_is_refused_by_the_client_s_own_error(client: StrictLetta) -> None:
    archive = client.archives.create(name="Notes")
    with pytest.raises(UnprocessableEntityError):
        client.archives.passages.create(archive.id, text="")
