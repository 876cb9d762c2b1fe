"""The ledger and budgets over HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest
from letta_client import APIStatusError
from letta_client.types import AgentState

from ricordo.domain.clock import to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.usage import Usage
from ricordo.features.operations.ledger.routes import LedgerParameters
from ricordo.features.operations.ledger.service import FILE
from tests.api.conftest import Api
from tests.seams.server import MODEL, ServerInThread, StrictLetta

PRICES = f'currency = "EUR"\n["{MODEL}"]\ninput = 10\ncached = 1\noutput = 100\n'


@pytest.fixture
def prices(server: ServerInThread) -> Iterator[None]:
    file = server.runtime.settings.data_dir / FILE
    file.write_text(PRICES)
    yield
    file.unlink()


def spend(client: StrictLetta, server: ServerInThread, agent_id: str, usage: Usage) -> None:
    server.says(ModelReply((TextPart("Fine."),), usage))
    client.agents.messages.create(agent_id, input="Hello.")


@pytest.mark.usefixtures("prices")
def test_configured_prices_yield_the_cost_by_kind_of_token(api: Api, agent: AgentState) -> None:
    spend(api.client, api.server, agent.id, Usage(1_000_000, 10_000, cached_tokens=400_000))

    ledger = api.http.get("/v1/ledger", params={"agent_id": agent.id, "group_by": "model"}).json()

    assert ledger["currency"] == "EUR"
    (line,) = ledger["lines"]
    assert (line["key"], line["unpriced_tokens"]) == (MODEL, 0)
    assert line["cost"] == {
        "input": 6.0,
        "cached": 0.4,
        "cache_write": 0.0,
        "output": 1.0,
        "total": 7.4,
    }


def test_the_ledger_can_be_filtered_and_grouped_and_totals_all_lines(
    api: Api, agent: AgentState
) -> None:
    other = api.client.agents.create(model=MODEL)
    spend(api.client, api.server, agent.id, Usage(7, 0))
    spend(api.client, api.server, other.id, Usage(900_000, 0))

    def lines(**query: object) -> dict[str, int]:
        found = api.http.get("/v1/ledger", params=query).json()  # type: ignore[arg-type]
        return {line["key"]: line["total_tokens"] for line in found["lines"]}

    whole = api.http.get("/v1/ledger", params={"agent_id": agent.id}).json()
    (line,) = whole["lines"]
    assert (whole["group_by"], whole["currency"], line["key"]) == (
        "day",
        None,
        datetime.now(UTC).date().isoformat(),
    )
    assert (
        line["cached_input_tokens"],
        line["reasoning_tokens"],
        line["cost"],
        line["unpriced_tokens"],
    ) == (None,) * 4
    assert whole["total"] == line | {"key": None}
    by_agent = lines(group_by="agent")
    assert (by_agent[agent.id], by_agent[other.id]) == (7, 900_000)
    assert list(lines(group_by="agent", agent_id=agent.id)) == [agent.id]
    assert lines(agent_id=agent.id, purpose="sleeptime", model="other/model") == {}
    assert lines(agent_id=agent.id, to="2020-01-01") == {}
    assert len(lines(agent_id=agent.id, **{"from": "2020-01-01"})) == 1
    api.http.post(
        f"/v1/agents/{agent.id}/messages",
        json={"input": "Hello."},
        headers={"x-ricordo-user": "ada"},
    )
    (hers,) = lines(user_id="ada", group_by="user").items()
    assert lines(user_id=hers[0], group_by="user") == dict([hers])
    for headers in ({}, {"x-ricordo-user": "ada"}):
        assert lines(agent_id=agent.id, user_id="ada", group_by="agent") == {agent.id: hers[1]}, (
            headers
        )
    first = api.http.get("/v1/ledger", params={"group_by": "agent", "limit": 1}).json()
    assert len(first["lines"]) == 1
    assert first["total"]["total_tokens"] >= 900_007


@pytest.mark.parametrize("last", ["2026-05-30", "2026-05-30T12:00:00", "2026-05-30T00:00:00", None])
def test_the_default_range_has_thirty_days_with_and_without_a_last_day(last: str | None) -> None:
    now = to_micros(datetime(2026, 5, 30, 23, 59, 59, 999_999, UTC))

    query = LedgerParameters(until=last).query(now)

    assert query.since == to_micros(datetime(2026, 5, 1, tzinfo=UTC))


def test_the_ledger_accepts_the_first_and_last_dates_of_the_calendar(http: httpx2.Client) -> None:
    first, last = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
    for query, since, until in (
        ({"to": "0001-01-01"}, first, "0001-01-01T23:59:59.999999Z"),
        ({"to": "0001-01-01T00:00:00+14:00"}, first, first),
        ({"from": "0001-01-01T00:00:00+14:00", "to": "9999-12-31"}, first, last),
        (
            {"from": "9999-12-31", "to": "9999-12-31T23:59:59-12:00"},
            "9999-12-31T00:00:00.000000Z",
            last,
        ),
    ):
        answer = http.get("/v1/ledger", params=query).json()
        assert (answer["since"], answer["until"]) == (since, until)


def test_invalid_ledger_queries_and_budgets_are_refused(
    http: httpx2.Client, agent: AgentState
) -> None:
    for query, status, sentence in (
        ({"from": "soon"}, 400, "Invalid from format"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, 400, "is before `from`"),
        ({"group_by": "colour"}, 422, "query.group_by: Input should be "),
        ({"limit": "0"}, 422, "limit"),
    ):
        answer = http.get("/v1/ledger", params=query)
        assert (answer.status_code, sentence in answer.json()["detail"]) == (status, True), (
            answer.text
        )
    budget = f"/v1/agents/{agent.id}/budget"
    for body in ({}, {"daily_tokens": 0}, {"daily_tokens": 1.5}, {"daily_tokens": 5, "monthly": 1}):
        assert http.patch(budget, json=body).status_code == 422, body
    missing = f"/v1/agents/{new_id('agent')}/budget"
    assert (
        http.patch(missing, json={"daily_tokens": 5}).status_code
        == http.get(missing).status_code
        == 404
    )


def test_a_budget_can_be_set_shown_and_removed(api: Api, agent: AgentState) -> None:
    path = f"/v1/agents/{agent.id}/budget"
    none = dict.fromkeys(("daily_tokens", "used_tokens", "remaining_tokens", "resets_at"))
    assert api.http.get(path).json() == none
    spend(api.client, api.server, agent.id, Usage(30, 0))
    given = api.http.patch(path, json={"daily_tokens": 100}).json()
    assert (given["daily_tokens"], given["used_tokens"], given["remaining_tokens"]) == (100, 30, 70)
    assert given["resets_at"].endswith("T00:00:00.000000Z")
    assert api.http.get(path).json() == given
    assert api.http.patch(path, json={"daily_tokens": None}).json() == none
    # A change of other settings keeps the budget.
    api.http.patch(path, json={"daily_tokens": 100})
    api.client.agents.update(agent.id, compaction_settings={"mode": "all"})
    assert api.http.get(path).json() == given


def test_an_exhausted_budget_refuses_turns_with_402(api: Api, agent: AgentState) -> None:
    api.http.patch(f"/v1/agents/{agent.id}/budget", json={"daily_tokens": 10})
    spend(api.client, api.server, agent.id, Usage(10, 0))
    before = api.server.rows()

    for stream in (False, True):
        with pytest.raises(APIStatusError) as caught:
            api.client.agents.messages.create(agent.id, input="Hello.", streaming=stream)
        assert caught.value.status_code == 402
        error = caught.value.response.json()["error"]
        assert error["type"] == "llm_insufficient_credits"
        assert "It resets at" in error["message"]
    assert api.server.rows() == before
