"""A turn that tries again without the messages of failed runs right before it."""

from ricordo.errors import ModelError
from ricordo.llm.scripted import ScriptedModel
from tests.seams.stage import Stage

BROKEN = ModelError("llm_error", "The server failed.")


async def test_the_summary_of_a_failed_run_stays_in_view(stage: Stage) -> None:
    stage.runtime.models.add(ScriptedModel(lambda _request: "Ada has a cat.", name="writer"))
    agent = await stage.agent(settings={"compaction": {"mode": "all", "model": "scripted/writer"}})
    stage.lines += ["Noted."]
    await stage.say(agent, "I am Ada and have a cat.")
    stage.lines += [ModelError("context_window_exceeded", "Too long.")]
    assert (await stage.say(agent, "Poison.")).failure is not None  # it was made shorter in vain
    stage.lines += [BROKEN, "Hello Ada.", "Still here."]
    await stage.say(agent, "Hello?")
    await stage.say(agent, "And now?")
    shown = [message.text for message in stage.model.requests[-1].messages[1:]]
    assert any("Ada has a cat." in text for text in shown)
