"""The sweep: what a dead server left open is closed by another, whatever is alive here is left alone."""

import logging

import pytest

from ricordo.agents.run_end import HANDLER, close_expired_runs
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.domain.scope import Scope
from ricordo.storage import agents
from tests.agents.stage import Stage, soon
from tests.support import make
from tests.support.clock import ManualClock

DATABASES = ("sqlite", "postgresql")


async def test_what_a_dead_server_left_open_is_closed_before_anybody_writes_there(
    stage: Stage, agent: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    turn, gate = await stage.asked(agent, "Are you there?", line="Late.")
    ours = stage.runtime.live.copy()
    clock.advance(LEASE / SECOND + 1)
    assert await close_expired_runs(stage.runtime) == 0

    stage.runtime.live.clear()  # as another server sees it
    with caplog.at_level(logging.WARNING):
        assert await close_expired_runs(stage.runtime) == 1
    assert "left open" in caplog.text
    (run,) = await stage.runs(agent)
    assert (run.status, (run.error or {})["type"]) == ("failed", "interrupted")
    assert await close_expired_runs(stage.runtime) == 0

    stage.runtime.live.update(ours)
    gate.open()
    await soon(turn.wait())
    await stage.require_sound(agent)


async def test_the_sweep_comes_by_itself_and_within_a_lease(stage: Stage) -> None:
    assert HANDLER.every_seconds is not None
    assert HANDLER.every_seconds < LEASE / SECOND
    state = await make.stored_agent(stage.store)
    await HANDLER.run(stage.runtime, None, lambda _done, _total: None)  # type: ignore[arg-type]
    assert (await stage.store.read(lambda tx: agents.load(tx, Scope(), state.agent.id))).agent.id == state.agent.id
