from datetime import UTC, datetime

import httpx2
import pytest
from letta_client import BadRequestError, NotFoundError
from letta_client.types import AgentState

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from tests.support.serving import ServerInThread, StrictLetta


def test_a_passage_is_archived_and_shown(client: StrictLetta, http: httpx2.Client, agent: AgentState) -> None:
    (made,) = client.agents.passages.create(agent.id, text="Tea grows in Darjeeling.", tags=["tea", "india", "tea"])

    assert is_id(made.id or "", "passage")
    assert is_id(made.archive_id or "", "archive")
    assert (made.text, made.tags, made.metadata) == ("Tea grows in Darjeeling.", ["tea", "india"], {})
    assert (made.embedding, made.embedding_config, made.is_deleted) == (None, None, False)
    assert made.created_by_id == LOCAL_USER
    (raw,) = http.get(f"/v1/agents/{agent.id}/archival-memory").json()
    assert raw["organization_id"] == LOCAL_ORGANIZATION
    (listed,) = client.agents.passages.list(agent.id)
    assert listed.to_dict() == made.to_dict()


def test_a_passage_may_be_older_than_today(client: StrictLetta, agent: AgentState) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)

    (made,) = client.agents.passages.create(agent.id, text="An old one.", created_at=moment)
    client.agents.passages.create(agent.id, text="A new one.")

    assert made.created_at == moment
    assert [passage.text for passage in client.agents.passages.list(agent.id)] == ["An old one.", "A new one."]


def test_the_list_looks_for_a_piece_of_the_text(client: StrictLetta, agent: AgentState) -> None:
    for text in ("Green tea", "Black TEA", "100% coffee"):
        client.agents.passages.create(agent.id, text=text)

    assert [found.text for found in client.agents.passages.list(agent.id, search="tea")] == ["Green tea", "Black TEA"]
    assert [found.text for found in client.agents.passages.list(agent.id, search="0%")] == ["100% coffee"]
    assert client.agents.passages.list(agent.id, search="_") == []


def test_a_search_gives_the_best_first_with_its_date_and_tags(client: StrictLetta, agent: AgentState) -> None:
    client.agents.passages.create(agent.id, text="She keeps bees.", tags=["garden"])
    client.agents.passages.create(agent.id, text="The tea of Darjeeling is the best tea.", tags=["tea"])
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    client.agents.passages.create(agent.id, text="Once she had tea in Rome.", tags=["tea", "rome"], created_at=moment)

    found = client.agents.passages.search(agent.id, query="tea Darjeeling")

    assert found.count == 2
    assert [hit.content for hit in found.results] == [
        "The tea of Darjeeling is the best tea.",
        "Once she had tea in Rome.",
    ]
    assert found.results[1].timestamp == "2024-05-06T07:08:09+00:00"
    assert found.results[1].tags == ["tea", "rome"]
    assert is_id(found.results[1].id, "passage")


def test_a_search_is_narrowed_by_tags_dates_and_number(client: StrictLetta, agent: AgentState) -> None:
    for day, tags in ((1, ["a"]), (2, ["a", "b"]), (3, ["b"])):
        at = datetime(2025, 1, day, 12, tzinfo=UTC)
        client.agents.passages.create(agent.id, text=f"Tea on day {day}", tags=tags, created_at=at)

    def days(**query: object) -> set[str]:
        found = client.agents.passages.search(agent.id, query="tea", **query)  # type: ignore[arg-type]
        assert found.count == len(found.results)
        return {hit.content[-1] for hit in found.results}

    assert days() == {"1", "2", "3"}
    assert days(tags=["a", "b"]) == {"1", "2", "3"}
    assert days(tags=["a", "b"], tag_match_mode="all") == {"2"}
    assert days(tags=["none"]) == set()
    assert days(start_datetime="2025-01-02") == {"2", "3"}
    assert days(end_datetime="2025-01-02") == {"1", "2"}
    assert days(start_datetime="2025-01-02T00:00:00Z", end_datetime="2025-01-02T13:00:00Z") == {"2"}
    assert len(days(top_k=2)) == 2


def test_dates_of_a_search_are_read_in_the_agents_time_zone(client: StrictLetta, agent: AgentState) -> None:
    client.agents.update(agent.id, timezone="Asia/Tokyo")
    late = datetime(2025, 1, 1, 20, tzinfo=UTC)  # the second of January in Tokyo
    client.agents.passages.create(agent.id, text="Tea", created_at=late)

    assert client.agents.passages.search(agent.id, query="tea", end_datetime="2025-01-01").count == 0
    assert client.agents.passages.search(agent.id, query="tea", start_datetime="2025-01-02").count == 1


def test_a_search_never_reads_the_query_as_an_expression(client: StrictLetta, agent: AgentState) -> None:
    client.agents.passages.create(agent.id, text="Tea")

    for query in ('"', "tea OR", "NEAR(", "tea*", "text:tea", "-tea", "'; DROP TABLE passages; --"):
        assert client.agents.passages.search(agent.id, query=query).count <= 1


def test_an_agent_finds_only_its_own_passages(client: StrictLetta, agent: AgentState) -> None:
    client.agents.passages.create(agent.id, text="Tea")
    other = client.agents.create(model=agent.model)

    assert client.agents.passages.search(other.id, query="tea").count == 0
    assert client.agents.passages.list(other.id) == []


def test_a_deleted_passage_is_found_no_more(client: StrictLetta, agent: AgentState) -> None:
    (made,) = client.agents.passages.create(agent.id, text="Tea", tags=["x"])

    answer = client.agents.passages.delete(made.id or "", agent_id=agent.id)

    assert answer == {"message": f"Memory id={made.id} successfully deleted"}
    assert client.agents.passages.list(agent.id) == []
    assert client.agents.passages.search(agent.id, query="tea").count == 0
    with pytest.raises(NotFoundError):
        client.agents.passages.delete(made.id or "", agent_id=agent.id)


def test_another_agents_passage_cannot_be_deleted(client: StrictLetta, agent: AgentState) -> None:
    (made,) = client.agents.passages.create(agent.id, text="Tea")
    other = client.agents.create(model=agent.model)
    client.agents.passages.create(other.id, text="Coffee")

    with pytest.raises(NotFoundError):
        client.agents.passages.delete(made.id or "", agent_id=other.id)

    assert len(client.agents.passages.list(agent.id)) == 1


def test_dates_that_are_none_are_refused_before_anything_is_kept(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    rows = server.rows()

    with pytest.raises(BadRequestError) as caught:
        client.agents.passages.create(agent.id, text="Tea", created_at="yesterday")
    assert caught.value.body == {
        "detail": "INVALID_ARGUMENT: Invalid created_at format: yesterday. "
        "Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
    }
    for name in ("start_datetime", "end_datetime"):
        with pytest.raises(BadRequestError) as caught:
            client.agents.passages.search(agent.id, query="tea", **{name: "32.13.2025"})
        assert f"Invalid {name} format: 32.13.2025." in str(caught.value.body)
    assert server.rows() == rows


def test_a_moment_beyond_the_calendar_is_refused(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    with pytest.raises(BadRequestError):
        client.agents.passages.create(agent.id, text="Tea", created_at="9999-12-31T23:59:59-12:00")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "", {"text": ""}),
        ("POST", "", {"tags": ["x"]}),
        ("POST", "", {"text": "Tea", "tags": "x"}),
        ("GET", "/search", None),
        ("GET", "/search?query=x&top_k=0", None),
        ("GET", "/search?query=x&top_k=101", None),
        ("GET", "/search?query=x&tag_match_mode=some", None),
    ],
)
def test_a_malformed_request_is_refused(
    http: httpx2.Client, server: ServerInThread, agent: AgentState, method: str, path: str, body: object
) -> None:
    rows = server.rows()

    answer = http.request(method, f"/v1/agents/{agent.id}/archival-memory{path}", json=body)

    assert answer.status_code == 422
    assert answer.json()["trace_id"] == ""
    assert server.rows() == rows


def test_nobody_has_no_archive(client: StrictLetta, server: ServerInThread) -> None:
    nobody, rows = new_id("agent"), server.rows()

    for attempt in (
        lambda: client.agents.passages.create(nobody, text="Tea"),
        lambda: client.agents.passages.list(nobody),
        lambda: client.agents.passages.search(nobody, query="tea"),
        lambda: client.agents.passages.delete(new_id("passage"), agent_id=nobody),
    ):
        with pytest.raises(NotFoundError) as caught:
            attempt()
        assert caught.value.body == {"detail": f"NOT_FOUND: Agent with ID {nobody} not found"}
    assert server.rows() == rows
