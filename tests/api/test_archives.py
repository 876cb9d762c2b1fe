"""Archives and passages, with the official client: created, shared, filled, searched, deleted."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from letta_client import BadRequestError, NotFoundError
from letta_client.types import AgentState

from ricordo.api.models.base import MOST_ITEMS
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from ricordo.llm.embedding.remote import RemoteEmbedder, count
from ricordo.llm.policy import CallPolicy
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL, StrictLetta


def test_an_archive_is_created_updated_and_deleted(
    client: StrictLetta, http: httpx2.Client
) -> None:
    made = client.archives.create(name="Recipes", description="Of tea")

    assert is_id(made.id, "archive")
    assert (made.name, made.description, made.metadata) == ("Recipes", "Of tea", {})
    assert (made.vector_db_provider, made.created_by_id) == ("native", LOCAL_USER)
    assert made.embedding == made.embedding_config.handle == "ricordo/wordllama-256"
    assert client.archives.retrieve(made.id).to_dict() == made.to_dict()
    changed = client.archives.update(made.id, name="Drinks")
    assert (changed.name, changed.description) == ("Drinks", "Of tea")
    assert changed.updated_at is not None
    assert made.updated_at is not None
    assert changed.updated_at > made.updated_at
    assert client.archives.update(made.id, description=None).description is None
    assert http.patch(f"/v1/archives/{made.id}", json={"metadata": {"a": 1}}).json()[
        "metadata"
    ] == {"a": 1}
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


def test_agents_share_an_archive(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
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
    first = http.get(
        f"/v1/archives/{archive.id}/agents", params={"order": "asc", "limit": 1}
    ).json()
    assert [user["id"] for user in first] == [agent.id]

    client.agents.archives.detach(archive.id, agent_id=other.id)
    client.agents.archives.detach(archive.id, agent_id=other.id)

    assert client.agents.passages.search(other.id, query="Darjeeling").count == 0
    assert client.agents.passages.search(agent.id, query="Darjeeling").count >= 1
    client.archives.delete(archive.id)
    assert client.agents.passages.list(agent.id) == []
    (anew,) = client.agents.passages.create(agent.id, text="New.")
    assert anew.archive_id != archive.id
    assert [item.text for item in client.agents.passages.list(agent.id)] == ["New."]


def test_a_passage_is_added_to_an_archive_and_deleted(
    client: StrictLetta, http: httpx2.Client
) -> None:
    archive = client.archives.create(name="Notes")
    made = client.archives.passages.create(
        archive.id,
        text="Tea.",
        tags=["b", "a", "b"],
        metadata={"page": 4},
        created_at="2024-05-06T07:08:09Z",
    )

    assert is_id(made.id or "", "passage")
    assert (made.archive_id, made.text, made.tags, made.metadata) == (
        archive.id,
        "Tea.",
        ["b", "a"],
        {"page": 4},
    )
    assert made.created_at == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    elsewhere = client.archives.create(name="Elsewhere")
    with pytest.raises(NotFoundError):
        client.archives.passages.delete(made.id or "", archive_id=elsewhere.id)
    assert http.delete(f"/v1/archives/{archive.id}/passages/{made.id}").status_code == 204
    with pytest.raises(NotFoundError):
        client.archives.passages.delete(made.id or "", archive_id=archive.id)


def test_a_batch_of_passages_is_added_in_order(api: Api, agent: AgentState) -> None:
    archive = api.client.archives.create(name="Many")
    api.client.agents.archives.attach(archive.id, agent_id=agent.id)
    items: Any = [{"text": f"Tea number {number}", "tags": ["tea"]} for number in range(1000)]

    made = api.client.archives.passages.create_many(archive.id, passages=items)

    assert [item.text for item in made] == [item["text"] for item in items]
    assert len({item.id for item in made}) == len(items)
    listed = api.client.agents.passages.list(agent.id, limit=1000)
    assert [item.id for item in listed] == [item.id for item in made[:1000]]
    assert (
        api.client.agents.passages.search(agent.id, query="number 942").results[0].content
        == "Tea number 942"
    )


BAD_PASSAGES: list[dict[str, Any]] = [
    {"text": ""},
    {"text": None},
    {"tags": ["a"]},
    {"text": "Tea", "tags": "a"},
    {"text": "Tea", "tags": [""]},
    {"text": "Tea", "created_at": "yesterday"},
    {"text": "Tea", "created_at": "0001-01-01T00:00:00+14:00"},
    {"text": "Tea\0"},
]


def test_too_many_or_too_long_tags_are_refused_on_every_route(api: Api, agent: AgentState) -> None:
    archive = api.client.archives.create(name="Tags")
    block = api.client.blocks.create(label="tagged", value="")
    most = [f"{number:0100}" for number in range(64)]
    for method, path, sent in (
        ("POST", f"/v1/archives/{archive.id}/passages", {"text": "Tea"}),
        ("POST", f"/v1/agents/{agent.id}/archival-memory", {"text": "Tea"}),
        ("POST", "/v1/blocks/", {"label": "b", "value": ""}),
        ("PATCH", f"/v1/blocks/{block.id}", {}),
        ("POST", "/v1/agents/", {"name": "tagged", "model": MODEL}),
        ("PATCH", f"/v1/agents/{agent.id}", {}),
    ):
        rows = api.server.rows()
        for tags, told in (
            ([*most, "one"], "at most 64 items"),
            (["t" * 101], "at most 100 characters"),
        ):
            answer = api.http.request(method, path, json={**sent, "tags": tags})
            assert (answer.status_code, told in answer.text) == (422, True), (path, answer.text)
        assert api.server.rows() == rows, path
        assert api.http.request(method, path, json={**sent, "tags": most}).status_code == 200, path


def test_one_bad_passage_refuses_the_whole_batch(api: Api) -> None:
    archive = api.client.archives.create(name="Clean")
    rows = api.server.rows()
    path = f"/v1/archives/{archive.id}/passages/batch"
    items = [{"text": f"Tea {number}"} for number in range(600)]
    for wrong in BAD_PASSAGES:
        assert api.http.post(path, json={"passages": [*items, wrong]}).status_code in (400, 422), (
            wrong
        )
    for size in (0, MOST_ITEMS + 1):
        answer = api.http.post(path, json={"passages": [{"text": "Tea"}] * size})
        told = (
            f"A request takes 1 to {MOST_ITEMS} passages, not {size}. Send them in several "
            "requests."
        )
        assert (answer.status_code, answer.json()) == (400, {"detail": f"INVALID_ARGUMENT: {told}"})
    assert api.server.rows() == rows


def test_an_unknown_vector_database_or_embedding_model_is_refused(api: Api) -> None:
    rows = api.server.rows()

    answer = api.http.post(
        "/v1/archives/", json={"name": "Notes", "vector_db_provider": "pinecone"}
    )

    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        'INVALID_ARGUMENT: The vector database "pinecone" is not set up on this server. Leave '
        "vector_db_provider out, or use one of: native."
    )
    with pytest.raises(NotFoundError):
        api.client.archives.create(name="Notes", embedding="nobody/model")
    for body in (
        {},
        {"name": ""},
        {"name": None},
        {"name": "x" * 257},
        {"name": "Notes", "metadata": []},
    ):
        assert api.http.post("/v1/archives/", json=body).status_code == 422
    assert api.server.rows() == rows


def test_only_its_own_agent_can_delete_a_passage(api: Api, agent: AgentState) -> None:
    (made,) = api.client.agents.passages.create(
        agent.id, text="Tea grows in Darjeeling.", tags=["tea", "india", "tea"]
    )

    assert is_id(made.id or "", "passage")
    assert is_id(made.archive_id or "", "archive")
    assert (made.text, made.tags, made.metadata) == (
        "Tea grows in Darjeeling.",
        ["tea", "india"],
        {},
    )
    assert (made.embedding, made.is_deleted) == (None, False)
    assert made.embedding_config is not None
    assert made.embedding_config.handle == "ricordo/wordllama-256"
    assert made.created_by_id == LOCAL_USER
    (raw,) = api.http.get(f"/v1/agents/{agent.id}/archival-memory").json()
    assert raw["organization_id"] == LOCAL_ORGANIZATION
    (listed,) = api.client.agents.passages.list(agent.id)
    assert listed.to_dict() == made.to_dict()

    other = api.client.agents.create(model=agent.model)
    api.client.agents.passages.create(other.id, text="Coffee")
    found = api.client.agents.passages.search(other.id, query="Darjeeling")
    assert [hit.content for hit in found.results] == ["Coffee"]
    with pytest.raises(NotFoundError):
        api.client.agents.passages.delete(made.id or "", agent_id=other.id)
    answer = api.client.agents.passages.delete(made.id or "", agent_id=agent.id)
    assert answer == {"message": f"Memory id={made.id} successfully deleted"}
    assert api.client.agents.passages.list(agent.id) == []
    assert api.client.agents.passages.search(agent.id, query="tea").count == 0
    with pytest.raises(NotFoundError):
        api.client.agents.passages.delete(made.id or "", agent_id=agent.id)


def test_passages_can_be_filtered_by_a_substring(client: StrictLetta, agent: AgentState) -> None:
    for text in ("Green tea", "Black TEA", "100% coffee"):
        client.agents.passages.create(agent.id, text=text)

    assert [found.text for found in client.agents.passages.list(agent.id, search="tea")] == [
        "Green tea",
        "Black TEA",
    ]
    # A passage may be older than today.
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    (old,) = client.agents.passages.create(agent.id, text="An old one.", created_at=moment)
    assert old.created_at == moment
    assert [found.text for found in client.agents.passages.list(agent.id, limit=2)] == [
        "An old one.",
        "Green tea",
    ]
    assert [found.text for found in client.agents.passages.list(agent.id, search="0%")] == [
        "100% coffee"
    ]
    assert client.agents.passages.list(agent.id, search="_") == []


def test_a_passage_search_is_ranked_and_filtered_by_tags_dates_and_limit(
    client: StrictLetta, agent: AgentState
) -> None:
    for day, tags in ((1, ["a"]), (2, ["a", "b"]), (3, ["b"])):
        at = datetime(2025, 1, day, 12, tzinfo=UTC)
        client.agents.passages.create(agent.id, text=f"Tea on day {day}", tags=tags, created_at=at)

    def days(**query: object) -> set[str]:
        found = client.agents.passages.search(agent.id, query="tea", **query)  # type: ignore[arg-type]
        assert found.count == len(found.results)
        return {hit.content[-1] for hit in found.results}

    best = client.agents.passages.search(agent.id, query="tea day 2").results[0]
    assert (best.content, best.timestamp, best.tags) == (
        "Tea on day 2",
        "2025-01-02T12:00:00+00:00",
        ["a", "b"],
    )
    assert is_id(best.id, "passage")
    assert days() == {"1", "2", "3"}
    assert days(tags=["a", "b"]) == {"1", "2", "3"}
    assert days(tags=["a", "b"], tag_match_mode="all") == {"2"}
    assert days(tags=["none"]) == set()
    assert days(start_datetime="2025-01-02") == {"2", "3"}
    assert days(end_datetime="2025-01-02") == {"1", "2"}
    assert days(start_datetime="2025-01-02T00:00:00Z", end_datetime="2025-01-02T13:00:00Z") == {"2"}
    assert len(days(top_k=2)) == 2
    # Dates without a zone are in the agent's zone: late on the second in UTC is the third in Tokyo.
    client.agents.update(agent.id, timezone="Asia/Tokyo")
    client.agents.passages.create(
        agent.id, text="Tea on day 4", created_at=datetime(2025, 1, 2, 20, tzinfo=UTC)
    )
    assert days(end_datetime="2025-01-02") == {"1", "2"}


def test_invalid_dates_are_refused_before_anything_is_stored(api: Api, agent: AgentState) -> None:
    rows = api.server.rows()

    with pytest.raises(BadRequestError) as caught:
        api.client.agents.passages.create(agent.id, text="Tea", created_at="yesterday")
    assert caught.value.body == {
        "detail": "INVALID_ARGUMENT: Invalid created_at format: yesterday. "
        "Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
    }
    for name in ("start_datetime", "end_datetime"):
        with pytest.raises(BadRequestError) as caught:
            api.client.agents.passages.search(agent.id, query="tea", **{name: "32.13.2025"})
        assert f"Invalid {name} format: 32.13.2025." in str(caught.value.body)
    assert api.server.rows() == rows


def test_the_vectors_of_passages_are_in_the_ledger_and_in_the_budget(
    api: Api, http: httpx2.Client
) -> None:
    async def ask(texts: list[str], _purpose: EmbeddingPurpose) -> list[list[float]]:
        count("far/embed", 40 * len(texts), texts)
        return [[1.0] for _ in texts]

    info = EmbeddingInfo("far/embed", "far", "embed", "openai", dimensions=1)
    api.server.runtime.models.embedders.add(RemoteEmbedder(info, CallPolicy(), ask))
    body = {"name": "Far", "model": MODEL, "embedding": "far/embed"}
    agent = ok(http.post("/v1/agents/", json=body))["id"]
    place = f"/v1/agents/{agent}/archival-memory"
    for text in ("Ada likes tea.", "Ben likes coffee."):
        ok(http.post(place, json={"text": text}))

    def spent() -> int:
        query = {"group_by": "purpose", "agent_id": agent, "purpose": "embedding"}
        lines = ok(http.get("/v1/ledger", params=query))["lines"]
        return sum(int(line["prompt_tokens"]) for line in lines)

    before = spent()
    query = {"include_embeddings": True}
    assert [one["embedding"] for one in ok(http.get(place, params=query))] == [[1.0], [1.0]]
    assert spent() - before >= 80
    ok(http.patch(f"/v1/agents/{agent}/budget", json={"daily_tokens": 1}))
    answer = http.get(place, params=query)
    assert answer.status_code == 402, answer.text
    assert "is used up" in answer.text
    assert len(ok(http.get(place))) == 2
