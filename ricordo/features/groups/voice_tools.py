"""Tools of voice agents, and of the agents that keep their memory."""

from typing import Any

from pydantic import BaseModel, Field

from ricordo.domain.clock import SECOND, zone
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.errors import Invalid
from ricordo.features.groups.voice_transcript import lines_in, memory_text
from ricordo.memory.edits import PassageDraft
from ricordo.memory.matching import with_line_breaks
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.search.words import query_terms, terms
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction
from ricordo.tools.builtin.memory import refuse_line_numbers
from ricordo.tools.builtin.search_results import timestamp
from ricordo.tools.toolbox import ServerTool, ToolContext

# Numbers of results, as in the retired Letta V1 server.
_PASSAGES = 5
_MESSAGES_EACH = 3
_MOST_KEYWORDS = 10
_HUMAN = "human"
_ABOUT_HUMAN = "Facts about the user."
_MINUTE = 60 * SECOND


class MemoryChunk(BaseModel):
    """A piece of the transcript."""

    start_index: int = Field(description="The number of its first line.")
    end_index: int = Field(description="The number of its last line.")
    context: str = Field(description="Why it could matter later, in a sentence or two.")


async def search_memory(
    context: ToolContext,
    convo_keyword_queries: list[str] | None = None,
    start_minutes_ago: int | None = None,
    end_minutes_ago: int | None = None,
) -> dict[str, Any]:
    """Look up the subject of the user's last words in earlier conversations and kept passages.

    The user's words are searched for by themselves.

    Args:
        convo_keyword_queries: Names, numbers or phrases to look for in earlier conversations, word
            for word.
        start_minutes_ago: Only what is from the time between so many minutes ago and
            end_minutes_ago.
        end_minutes_ago: Where that time ends, in minutes ago; now, if it is left out.
    """
    start, end = _span(context.store.clock.now(), start_minutes_ago, end_minutes_ago)
    timezone = zone(context.state.agent.timezone)
    passage_filter = PassageFilter(
        archive_ids=tuple(archive.id for archive in context.state.archives),
        subject_id=context.subject_id,
        start=start,
        end=end,
    )
    hits = await context.recall.passages(await _utterance(context), passage_filter, _PASSAGES)
    passages = [hit.passage for hit in hits]
    for passage in passages:
        context.quoted.add(passage.id, is_untrusted=passage.is_untrusted)
    answer: dict[str, Any] = {
        "archival_search_results": [
            {"timestamp": timestamp(passage.created_at, timezone), "content": passage.text}
            for passage in passages
        ]
    }
    keywords = [word.strip() for word in convo_keyword_queries or () if word.strip()]
    if keywords:
        texts_by_keyword = {
            keyword: await _find_messages(context, keyword, start, end)
            for keyword in keywords[:_MOST_KEYWORDS]
        }
        answer["convo_keyword_search_results"] = {
            keyword: texts for keyword, texts in texts_by_keyword.items() if texts
        }
    return answer


async def store_memories(context: ToolContext, chunks: list[MemoryChunk]) -> str:
    """Keep pieces of the transcript, so that they can be found later. All of them go into one call.

    Args:
        chunks: The pieces, each about one subject. Lines may be in several of them, or in none.
    """
    lines, is_kept = await _transcript(context)
    if is_kept:
        return ""
    if chunks and not lines:
        raise Invalid(
            "There is no transcript, so there is nothing to store. Call the tool without chunks."
        )
    for chunk in chunks:
        if not 0 <= chunk.start_index <= chunk.end_index < len(lines):
            raise Invalid(
                f"There are no lines {chunk.start_index} to {chunk.end_index}: the transcript has "
                f"the lines 0 to {len(lines) - 1}. Nothing was stored. Call the tool again with "
                "all chunks."
            )
    for chunk in chunks:
        piece = memory_text(lines[chunk.start_index : chunk.end_index + 1], chunk.context)
        context.memory.archive(PassageDraft(context.call_id, new_id("passage"), piece, ()))
    return ""


def rethink_user_memory(context: ToolContext, new_memory: str) -> str:
    """Rewrite the memory block about the user.

    Args:
        new_memory: The block's whole new text. It replaces the old text. Do not write line numbers.
    """
    refuse_line_numbers("new_memory", new_memory)
    new_text = with_line_breaks(new_memory)
    if context.memory.find(_HUMAN) is None:
        context.memory.create(_HUMAN, new_text, _ABOUT_HUMAN, context.call_id)
    else:
        context.memory.write(_HUMAN, new_text, context.call_id, result_kind="nothing")
    return ""


def finish_rethinking_memory(context: ToolContext) -> str:  # noqa: ARG001 - every tool takes a context
    """Say that the memory is up to date. Call it once, when nothing is left to change."""
    return ""


VOICE_TOOLS = (
    ServerTool(
        search_memory,
        "letta_voice_sleeptime_core",
        runs_in_parallel=True,
        is_read_only=True,
        searches=frozenset(("messages", "archive")),
    ),
    ServerTool(store_memories, "letta_voice_sleeptime_core"),
    ServerTool(rethink_user_memory, "letta_voice_sleeptime_core", edits_memory=True),
    ServerTool(finish_rethinking_memory, "letta_voice_sleeptime_core"),
)


def _span(
    now: int, start_minutes_ago: int | None, end_minutes_ago: int | None
) -> tuple[int | None, int | None]:
    """Return the start and end of the search in microseconds.

    If one end is missing, it is now; if both are missing, all times are searched.
    """
    if start_minutes_ago is None and end_minutes_ago is None:
        return None, None
    ends = sorted(
        now - max(0, minutes or 0) * _MINUTE for minutes in (start_minutes_ago, end_minutes_ago)
    )
    return ends[0], ends[1]


async def _find_messages(
    context: ToolContext, keyword: str, start: int | None, end: int | None
) -> list[str]:
    """Return texts with this keyword, by the user or the agent, from outside the window."""
    message_filter = MessageFilter(
        agent_ids=(context.state.agent.id,),
        roles=("user", "assistant"),
        subject_id=context.subject_id,
        start=start,
        end=end,
        own_conversation=context.state.conversation.id,
        turn_began=context.view_began() or context.turn_began(),
    )
    hits = await context.recall.messages(keyword, message_filter, _MESSAGES_EACH)
    keyword_terms = {*query_terms(keyword)}
    texts: list[str] = []
    for hit in hits:
        message = hit.message
        # The index also finds a message by the words of its neighbouring messages.
        if not keyword_terms <= {*terms(message.spoken)}:
            continue
        is_users = message.is_said and message.user_id == context.state.conversation.user_id
        context.quoted.add(message.id, is_untrusted=message.is_untrusted, is_said=is_users)
        texts.append(message.spoken)
    return texts


async def _utterance(context: ToolContext) -> str:
    """Return the user's last message."""

    def read(tx: Transaction) -> list[Message]:
        new = messages.of_run(tx, context.step.run_id)
        if any(message.is_said for message in new):
            return new
        # If the turn was resumed after an approval, the user's message is in an earlier run.
        return messages.by_ids(tx, context.state.conversation.window)

    texts = [message.text for message in await context.store.read(read) if message.is_said]
    return texts[-1] if texts else ""


async def _transcript(context: ToolContext) -> tuple[list[str], bool]:
    """Return the lines of the newest transcript in view.

    The second value says whether pieces of it were stored already.
    """

    def read(tx: Transaction) -> list[Message]:
        earlier = messages.by_ids(tx, context.state.conversation.window)
        return [*earlier, *messages.of_run(tx, context.step.run_id)]

    is_kept = False
    for message in reversed(await context.store.read(read)):
        is_kept |= any(
            part.name == "store_memories" and part.status == "success"
            for part in message.tool_returns
        )
        if message.is_event and (lines := lines_in(message.text)):
            return lines, is_kept
    return [], False
