"""What fills a window: the sections add up, and are counted as compaction counts them."""

from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.model import ToolSchema
from ricordo.llm.tokens import tool_tokens, transcript_tokens
from ricordo.memory.overview import overview
from ricordo.prompt.system_prompt import system_prompt
from tests.seams import make
from tests.seams.stores import START

AGENT = make.agent(context_window=64_000)
STATE = AgentState(
    AGENT,
    make.conversation(AGENT, message_count=40),
    blocks=(make.block(),),
    archives=(make.archive(passage_count=3), make.archive(passage_count=4)),
)
SYSTEM = make.message(AGENT, system_prompt(STATE, "openai", START, recall_count=36).text, "system")
TOOLS = (ToolSchema("look", "Look around.", {"type": "object", "properties": {}}),)


def test_sections_add_up_to_about_what_a_request_takes() -> None:
    summary = make.message(AGENT, "She moved to Turin.", "summary")
    window = [SYSTEM, summary, make.message(AGENT, "Hello."), make.message(AGENT, "Hi, Ada.", "assistant")]
    seen = overview(STATE, window, TOOLS)
    whole = transcript_tokens(window) + tool_tokens(TOOLS)
    assert abs(seen.tokens.total - whole) <= 10
    assert seen.tokens.messages == transcript_tokens(window[2:])
    assert seen.tokens.summary == transcript_tokens([summary])
    assert seen.tokens.tools == tool_tokens(TOOLS)
    assert min(seen.tokens.base, seen.tokens.memory_blocks, seen.tokens.memory_metadata) > 0
    assert (seen.tokens.directories, seen.parts.directories) == (0, "")
    assert seen.summary == "She moved to Turin."
    assert seen.parts.base == AGENT.system
    assert (seen.limit, seen.recall_count, seen.passage_count, len(seen.messages)) == (64_000, 40, 7, 4)
    thread = replace(STATE.conversation, token_percent=150, context_window=8_000)
    more = overview(replace(STATE, conversation=thread), window, TOOLS)
    assert (more.tokens.messages, more.limit) == (-(-seen.tokens.messages * 150 // 100), 8_000)
    empty = overview(STATE, [], ())
    assert (empty.parts.base, empty.tokens.messages, empty.tokens.tools, empty.summary) == (AGENT.system, 0, 0, None)
