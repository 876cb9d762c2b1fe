"""Searches over HTTP: further pages, quality of matches, hostile queries, separation."""

from typing import Any

import httpx2
import pytest
from letta_client.types import AgentState

from tests.api.conftest import Api
from tests.campaigns.sizes import short_and_long
from tests.seams.server import MODEL

SEARCHES = ("/v1/messages/search", "/v1/agents/messages/search", "/v1/passages/search")
HOSTILE = [
    "tea " * 250_000,
    " ".join(f"w{number}" for number in range(100_000)),
    "the and of to in",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467" * 50,
    '"tea" AND NEAR(tea, 2) tea* text:tea -tea <-> tea:* !tea & | ( )',
    "tea\x00 tea",
    "\u202etea\u202c \u200f\u200f",
    "e" + "\u0301" * 300_000,
    "x" * 1_000_000,
    "\u4e00" * 300_000,
]
TEXTS = [
    "x" * 2_000_000,
    " ".join(f"{number:x}" for number in range(250_000)),
    "e" + "\u0301" * 500_000,
    "\u4e00" * 500_000,
]


def add(api: Api, agent: AgentState, *texts: str, user: str | None = None) -> None:
    past = [
        {
            "role": "user",
            "content": text,
            "created_at": f"2025-01-{place // 24 + 1:02}T{place % 24:02}:00Z",
        }
        for place, text in enumerate(texts)
    ]
    answer = api.http.post(f"/v1/agents/{agent.id}/messages/import", json={"messages": past})
    assert answer.status_code == 200, answer.text


def test_pages_beyond_the_first_hundred_have_every_hit_once_while_messages_arrive(
    api: Api, agent: AgentState
) -> None:
    add(api, agent, *(f"tea number {number}" for number in range(250)))
    archive = api.client.archives.create(name="Tea")
    passages = [{"text": f"tea leaf {number}"} for number in range(130)]
    api.http.post(
        f"/v1/archives/{archive.id}/passages/batch", json={"passages": passages}
    ).raise_for_status()
    api.client.agents.archives.attach(archive.id, agent_id=agent.id)

    def pages(path: str, limit: int, **body: Any) -> list[str]:
        seen: list[str] = []
        while True:
            # This search uses words only. New vectors that arrive between two pages would move the
            # other results.
            mode = {} if "passages" in path else {"search_mode": "fts"}
            sent = {
                "query": "tea",
                "agent_id": agent.id,
                "limit": limit,
                "offset": len(seen),
                **mode,
                **body,
            }
            hits = api.http.post(path, json=sent).raise_for_status().json()
            seen += [
                (hit.get("message") or hit.get("passage") or {"id": hit.get("message_id")})["id"]
                for hit in hits
            ]
            if len(hits) < limit:
                return seen
            new = {"messages": [{"role": "user", "content": "tea, tea, tea: the newest"}]}
            api.http.post(f"/v1/agents/{agent.id}/messages/import", json=new).raise_for_status()

    for path, total in zip(SEARCHES, (250, 250, 130), strict=True):
        seen = pages(path, 60, end_date="2025-01-31" if total == 250 else None)
        assert len(seen) == len(set(seen)) == total
    (far,) = [api.http.post(path, json={"query": "tea", "offset": 10_001}) for path in SEARCHES[:1]]
    assert far.status_code == 422
    found = [
        api.http.get(
            f"/v1/agents/{agent.id}/archival-memory/search",
            params={"query": "tea", "top_k": 100, "offset": skipped},
        )
        for skipped in (0, 100)
    ]
    ids = [item["id"] for answer in found for item in answer.json()["results"]]
    assert len(ids) == len(set(ids)) == 130
    api.client.archives.delete(archive.id)


def test_a_search_result_says_whether_it_matches_well(api: Api, agent: AgentState) -> None:
    add(
        api,
        agent,
        "My aunt Berta keeps a heron.",
        *(f"The cake number {number} was good." for number in range(30)),
    )

    def best(query: str) -> dict[str, Any]:
        hits = api.http.post(
            "/v1/messages/search", json={"query": query, "agent_id": agent.id}
        ).json()
        return max(
            (hit["relevance"] for hit in hits),
            key=lambda one: one["matches_well"],
            default={"matches_well": False},
        )

    assert best("What does Berta keep, a heron?")["matches_well"]
    assert best("What does Berta keep, a heron?")["word_match"] > 0.5
    assert not best("good quarterly revenue forecast of the Mongolian steelworks")["matches_well"]


def test_no_page_mode_or_filter_shows_one_users_messages_to_another(
    api: Api, agent: AgentState
) -> None:
    archive = api.client.archives.create(name="Both")
    api.client.agents.archives.attach(archive.id, agent_id=agent.id)
    for user in ("ada", "bruno"):
        talk = api.http.post(
            "/v1/conversations/", params={"agent_id": agent.id}, json={"user_id": user}
        )
        past = [{"role": "user", "content": f"tea of {user} {number}"} for number in range(6)]
        sent = {"messages": past, "conversation_id": talk.raise_for_status().json()["id"]}
        api.http.post(f"/v1/agents/{agent.id}/messages/import", json=sent).raise_for_status()
        passage = {"text": f"tea leaf of {user}", "user_id": user, "tags": ["t"]}
        api.http.post(f"/v1/archives/{archive.id}/passages", json=passage)
    seen = set()
    for path in SEARCHES:
        more: list[dict[str, Any]] = [
            {},
            {"start_date": "2020-01-01"},
            {"roles": ["user"]},
            {"tags": ["t"]},
        ]
        for filters in more:
            if ("tags" if "passages" not in path else "roles") in filters:
                continue
            for mode in ("hybrid", "fts", "vector"):
                for skipped in (0, 2, 4):
                    body = {
                        "query": "tea of bruno",
                        "agent_id": agent.id,
                        "user_id": "ada",
                        "search_mode": mode,
                    }
                    answer = api.http.post(
                        path, json={**body, **filters, "limit": 2, "offset": skipped}
                    )
                    assert "bruno" not in answer.raise_for_status().text, (path, body)
                    seen.add(path) if "of ada" in answer.text else None
    assert seen >= set(SEARCHES[:2])
    api.client.archives.delete(archive.id)


# All searches parse the query in the same way.
@pytest.mark.parametrize(
    "path", [SEARCHES[0], *(pytest.param(path, marks=pytest.mark.soak) for path in SEARCHES[1:])]
)
@pytest.mark.parametrize("modes", short_and_long((["hybrid"],), (["hybrid", "fts", "vector"],)))
def test_a_hostile_query_gets_a_response(
    api: Api, agent: AgentState, path: str, modes: list[str]
) -> None:
    """A hybrid search includes both other kinds."""
    add(api, agent, "tea", "Berta")
    for query in HOSTILE:
        for mode in modes:
            answer = api.http.post(
                path, json={"query": query, "search_mode": mode, "agent_id": agent.id}
            )
            assert answer.status_code in (200, 400, 422), (query[:40], mode, answer.text[:300])
    lone = b'{"query": "tea \\ud800"}'
    assert (
        api.http.post(path, content=lone, headers={"content-type": "application/json"}).status_code
        < 500
    )


def test_a_hostile_text_is_accepted_or_refused_and_can_be_searched(api: Api) -> None:
    agent = api.client.agents.create(name="Hostile", model=MODEL)
    archive = api.client.archives.create(name="Hostile")
    for number, text in enumerate(TEXTS):
        answers: list[httpx2.Response] = [
            api.http.post(
                f"/v1/agents/{agent.id}/messages/import",
                json={"messages": [{"role": "user", "content": text}]},
            ),
            api.http.post(f"/v1/archives/{archive.id}/passages", json={"text": text}),
        ]
        assert all(answer.status_code in (200, 413, 422) for answer in answers), [
            a.text[:200] for a in answers
        ]
        path = SEARCHES[number % len(SEARCHES)]  # all parse the query in the same way
        api.http.post(path, json={"query": text[:100]}).raise_for_status()
    api.client.agents.delete(agent.id)
    api.client.archives.delete(archive.id)
