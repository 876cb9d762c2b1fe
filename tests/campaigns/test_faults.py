"""Faults at random awaits of turns: the next message is answered, and nothing is lost."""

import json
from pathlib import Path

import pytest

from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.support.crash_servers import run_kills
from tests.support.faults import run_campaign
from tests.support.faults_model import FaultyModel
from tests.support.model_server import Seen
from tests.support.server_process import CAN_FORK

# `faults_model` describes the tools of a turn.
_PLANS = ("insert+ring/archive", "guarded+guarded", "theirs+guarded/search", "nap+nap/insert")


@pytest.mark.campaign
@pytest.mark.parametrize("faults", short_and_long(4, 300))
async def test_after_any_fault_the_next_message_is_answered_and_nothing_is_lost(
    tmp_path: Path, faults: int, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, faults=faults, seed=7)
    print(report)
    record_property("seed", 7)
    record_property("faults", sum(report.kinds.values()))
    # The campaign checks its results. The test only checks that the campaign did something.
    assert sum(report.kinds.values()) >= faults
    assert report.restarts > 0
    assert len(report.kinds) > min(4, faults / 2)
    assert report.requests > faults


@pytest.mark.campaign
@pytest.mark.parametrize(("plans", "step"), short_and_long((_PLANS[:1], 24), (_PLANS, 1)))
async def test_a_kill_at_every_await_of_a_turn_loses_nothing(
    tmp_path: Path, plans: tuple[str, ...], step: int, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, faults=0, seed=11, swept=plans, step=step)
    print(report)
    record_property("seed", 11)
    record_property("kills", report.kinds["kill"])
    assert report.kinds["kill"] >= 2 * len(plans)
    assert report.restarts >= report.kinds["kill"]


@pytest.mark.soak
@pytest.mark.campaign
async def test_the_same_holds_on_a_shared_database_whose_connections_break_and_whose_runs_others_take_over(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    report = await run_campaign(tmp_path, faults=300, seed=3, database="postgresql")
    print(report)
    record_property("seed", 3)
    record_property("faults", sum(report.kinds.values()))
    assert sum(report.kinds.values()) >= 300
    assert report.kinds.keys() & {"cut", "overtaken"}
    assert report.requests > 300


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks")
@pytest.mark.parametrize("kills", short_and_long(1, 30))
async def test_a_server_that_is_killed_in_a_turn_or_an_approval_answers_the_next_message(
    tmp_path: Path, kills: int, record_property: RecordProperty
) -> None:
    report = await run_kills(tmp_path, kills=kills, seed=3)
    print(report)
    record_property("seed", 3)
    record_property("kills", kills)
    assert report.requests >= kills


def test_a_plainer_form_is_a_fault_but_right_after_a_refusal_without_words() -> None:
    call = {"id": "call_1", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "You remember."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."},
        {"role": "user", "content": "say-1-1"},
    ]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    for trouble, number_of_faults in (("400", 1), ("500", 1), ("429", 2), (None, 2)):
        model = FaultyModel(trouble=[trouble])
        for _ in range(2):
            model.answer(Seen("POST", "/chat/completions", b"", body))
        assert len(model.faults) == number_of_faults, (trouble, model.faults)
