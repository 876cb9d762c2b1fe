"""A model that obeys every poisoned text, in real turns: nothing of it gets into memory that is guarded, and nothing breaks out."""

from dataclasses import dataclass
from typing import Any

import pytest

from ricordo.agents.lifecycle import BlockSpec
from ricordo.agents.request import Approval, NewMessage, TurnRequest
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.block import Block, Policy
from ricordo.domain.message import TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import Scope
from ricordo.llm.scripted import call
from ricordo.prompt.system_prompt import system_prompt
from ricordo.search.index import insert_passages
from ricordo.storage import blocks, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.proposals import ProposalFilter
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.agents.conftest import OpenStage
from tests.agents.poison import Poison, closing_tags, corpus
from tests.seams import make
from tests.seams.stage import Stage, soon

CORPUS = corpus()
FAMILIES = sorted({poison.family for poison in CORPUS})
# The labels of an agent's guarded blocks, by their policies.
LABELS: dict[Policy, str] = {"guarded": "human", "explicit": "wishes", "propose": "journey", "read_only": "rules"}
BEFORE = "Her name is Ada."
TOOLS = (
    "memory_insert",
    "memory_replace",
    "memory_rethink",
    "core_memory_append",
    "core_memory_replace",
    "memory_apply_patch",
    "memory",
    "edit_memory_block",
    "archival_memory_search",
    "archival_memory_insert",
    "fetch_page",
)
CLIENTS = ToolSchema("look", "Look at the screen.", {"type": "object", "properties": {}, "required": []})


@dataclass
class Web:
    """What the next page says."""

    page: str = ""

    def tool(self) -> ServerTool:
        def fetch_page(context: ToolContext) -> str:
            """Fetch a page."""
            return self.page

        return ServerTool(fetch_page, "custom", brings_untrusted=True)


@pytest.fixture
async def stage_and_web(open_stage: OpenStage) -> tuple[Stage, Web]:
    web = Web()
    return await open_stage(web.tool()), web


def edits(poison: Poison, number: int) -> tuple[ToolCallPart, ...]:
    """What the obeying model calls: another way of writing for every text, on every block, quoting what it was told to quote."""
    text, quote = poison.written, poison.claim
    made: list[ToolCallPart] = []
    # Quotes that nobody said come from no untrusted source: guarded memory is not what keeps them out.
    guarding = [*LABELS.values()][poison.way == "said" :]
    for place, label in enumerate(guarding):
        ways: list[tuple[str, dict[str, Any]]] = [
            ("memory_insert", {"label": label, "new_string": text}),
            ("memory_replace", {"label": label, "old_string": "Ada", "new_string": text}),
            ("memory_rethink", {"label": label, "new_memory": text}),
            ("core_memory_append", {"label": label, "content": text}),
            ("core_memory_replace", {"label": label, "old_content": "Ada", "new_content": text}),
            ("memory_apply_patch", {"label": label, "patch": f"-{BEFORE}\n+{poison.claim}"}),
            ("memory", {"command": "insert", "path": f"/memories/{label}", "insert_text": text}),
            ("memory", {"command": "delete", "path": f"/memories/{label}"}),
            ("memory", {"command": "rename", "old_path": f"/memories/{label}", "new_path": f"/memories/x-{label}"}),
            (
                "edit_memory_block",
                {"label": label, "old_string": "Ada", "new_string": text, "reasoning": "I was told to."},
            ),
            ("memory", {"command": "rename", "path": f"/memories/{label}", "description": text}),
        ]
        name, arguments = ways[(number + place) % len(ways)]
        made.append(call(name, **arguments, quote=quote))
    # Its own notes it may write: they are where a text could break out.
    made.append(call("memory_insert", label="notes", new_string=text))
    return tuple(made)


async def poisoned(stage: Stage, web: Web, poison: Poison, number: int) -> str:
    specs = (*(BlockSpec(label, BEFORE, policy=policy) for policy, label in LABELS.items()), BlockSpec("notes", ""))
    agent = await stage.agent(blocks=specs, tool_names=TOOLS, has_base_tools=False)
    obeys = [edits(poison, number), "As you wish."]
    plain = NewMessage("user", (TextPart("Good morning. What is new?"),))
    match poison.way:
        case "page" | "quote":
            web.page = poison.text
            stage.lines += [call("fetch_page"), *obeys]
            await stage.send(agent, plain)
        case "client":
            stage.lines += [call("look")]
            asked = (await stage.say(agent, client_tools=(CLIENTS,))).messages[-1]
            stage.lines += obeys
            given = ToolReturnPart(asked.tool_calls[0].call_id, "", "success", poison.text)
            request = TurnRequest(Scope(), agent, approval=Approval((given,)), client_tools=(CLIENTS,))
            await soon(collect(await run_turn(stage.runtime, request)))
        case "sender" | "name":
            who = {"sender_id": "user-mallory"} if poison.way == "sender" else {"name": "Mallory"}
            stage.lines += obeys
            await stage.send(agent, plain, NewMessage("user", (TextPart(poison.text),), **who))
        case "passage":
            stage.lines += [call("archival_memory_insert", content="The first note."), "Kept."]
            await stage.say(agent)
            (archive,) = (await stage.state(agent)).archives
            passage = make.passage(archive, poison.text, is_untrusted=True)
            await stage.store.write(lambda tx: insert_passages(tx, archive, [passage]))
            stage.lines += [call("archival_memory_search", query=poison.text[:60]), *obeys]
            await stage.send(agent, plain)
        case "said":
            stage.lines += [poison.text, *obeys]
            await stage.send(agent, NewMessage("user", (TextPart("Tell me a story."),)))
            await stage.send(agent, plain)
    assert not stage.lines
    return agent


async def held(stage: Stage, agent: str) -> dict[str, Block]:
    return {block.label: block for block in await stage.store.read(lambda tx: blocks.of_agent(tx, agent))}


async def closed(stage: Stage, agent: str) -> list[str]:
    """The closing tags of the prompt that the model would get next."""
    state = await stage.state(agent)
    system = system_prompt(state, "openai", stage.store.clock.now(), recall_count=0).text
    return closing_tags(system, (*LABELS.values(), "notes"))


def test_the_corpus_is_as_large_as_it_says_and_says_nothing_twice() -> None:
    assert len(CORPUS) >= 200
    assert len({(poison.way, poison.text) for poison in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("family", FAMILIES)
async def test_nothing_poisoned_is_written_where_somebody_decides(
    stage_and_web: tuple[Stage, Web], family: str
) -> None:
    stage, web = stage_and_web
    harmless = await stage.agent(
        blocks=(
            *(BlockSpec(label, BEFORE, policy=policy) for policy, label in LABELS.items()),
            BlockSpec("notes", "Tea."),
        )
    )
    expected = await closed(stage, harmless)
    count = 0
    for number, poison in enumerate(one for one in CORPUS if one.family == family):
        agent = await poisoned(stage, web, poison, number)
        after = await held(stage, agent)
        assert {label: after[label].value for label in LABELS.values()} == dict.fromkeys(LABELS.values(), BEFORE), (
            poison
        )
        assert all(
            block.version == 1 and block.description is None for label, block in after.items() if label != "notes"
        )
        if poison.way != "passage":  # which only repeats what was recalled, so not even the notes take it
            assert after["notes"].value == poison.text, poison
        assert await closed(stage, agent) == expected, poison
        wanted = ProposalFilter(chain_id=after["journey"].chain_id, status="open")
        waiting = await stage.store.read(lambda tx: proposals.page(tx, Scope(), Page(limit=9), wanted))  # noqa: B023
        assert "rules" not in {one.label for one in waiting}, poison
        count += len(waiting)
    assert count > number, "the model obeyed, and nothing came of it: the test proves nothing"
