"""Tools by which an agent speaks, searches messages and keeps an archive."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Literal

from ricordo.domain.clock import parse_date, zone
from ricordo.domain.ids import new_id
from ricordo.domain.known_facts import FactQuery, KnownFact
from ricordo.domain.passage import Passage, Relevance
from ricordo.domain.scope import NOBODY
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.errors import Invalid
from ricordo.memory.edits import PassageDraft
from ricordo.memory.recall import FoundMessage, Likeness, most_alike, passages_like
from ricordo.offload import offload
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.tools.builtin.search_results import results_of, shares_seconds, timestamp
from ricordo.tools.toolbox import ToolContext

SENT = "Sent message successfully."  # wire fact of the retired Letta V1 server
# wire fact of the retired Letta V1 server: only the first sentence.
NOTHING_OUTSIDE = "No results found. What is in view was not searched: look at the messages above."
PAGE_SIZE = 5
# With 20 results, 0.87 of the answers to questions are among them; with five, 0.73:
# docs/internals/retrieval.md
MESSAGES_SHOWN = 20
_RESULT_LIMIT = 100
_EXCERPT_LENGTH = 120  # characters of a passage that a notice repeats


def send_message(context: ToolContext, message: str) -> str:  # noqa: ARG001 - every tool takes a context
    """Say something to the user. The user sees nothing else of what you do.

    Args:
        message: What to say.
    """
    return SENT


async def conversation_search(
    context: ToolContext,
    query: str,
    roles: list[Literal["assistant", "user", "tool"]] | None = None,
    limit: int = MESSAGES_SHOWN,
    start_date: str | None = None,
    end_date: str | None = None,
) -> dict[str, Any] | str:
    """Search everything that was ever said with you and is no longer in view. The best match comes first.

    Each result says when it was said and by whom, and how well it matches; `matched_lines` are the lines of it that do. `before`
    and `after` hold what was said right before and after it.

    Args:
        query: Words to look for; the more telling, the better.
        roles: Only messages of these roles. Without it, what you and the user said; results of tools come only when asked for.
        limit: How many results at most.
        start_date: Only messages from then on, as YYYY-MM-DD or YYYY-MM-DDTHH:MM in your own time zone.
        end_date: Only messages up to then, a whole day where only a date is given.
    """
    timezone = zone(context.state.agent.timezone)
    message_filter = MessageFilter(
        agent_ids=(context.state.agent.id,),
        roles=tuple(roles) if roles else ("user", "assistant"),
        subject_id=context.subject_id,
        start=parse_date(start_date, timezone, name="start_date") if start_date else None,
        end=parse_date(end_date, timezone, name="end_date", end=True) if end_date else None,
        own_conversation=context.state.conversation.id,
        turn_began=context.view_began() or context.turn_began(),
        reads_before=True,
    )
    _require_limit(limit)
    hits = await context.recall.messages(query, message_filter, limit)
    facts = await _known_facts(context, query, hits, message_filter)
    if not hits and not facts:
        return NOTHING_OUTSIDE
    size_limit = next(
        (tool.return_limit for tool in context.state.tools if tool.name == "conversation_search"),
        DEFAULT_RETURN_LIMIT,
    )
    results, quoted = results_of(
        hits,
        query,
        agent=context.state.agent,
        timezone=timezone,
        now=context.store.clock.now(),
        limit=size_limit,
        facts=facts,
    )
    for message in quoted:
        is_users = message.is_said and message.user_id == context.state.conversation.user_id
        # The user did not write what is in a picture.
        is_untrusted = message.is_untrusted or bool(message.picture_text)
        context.quoted.add(message.id, is_untrusted=is_untrusted, is_said=is_users)
    return results


async def _known_facts(
    context: ToolContext, query: str, hits: Sequence[FoundMessage], message_filter: MessageFilter
) -> list[KnownFact]:
    """Return known facts about the user that fit the search and were said to this agent."""
    user_id = context.subject_id
    if user_id == NOBODY or context.runtime is None or "user" not in message_filter.roles:
        return []
    fact_query = FactQuery(
        user_id,
        query,
        tuple(hit.message.id for hit in hits),
        context.state.agent.id,
        message_filter.start,
        message_filter.end,
    )
    plugins = context.runtime.plugins
    facts: list[KnownFact] = await context.store.read(
        lambda tx: plugins.known_facts(tx, fact_query)
    )
    return [fact for fact in facts if context.may_read(fact.id, fact.egress, fact.text)]


async def archival_memory_insert(
    context: ToolContext, content: str, tags: list[str] | None = None
) -> str:
    """Keep a passage in your archive, for as long as you exist. What is there word for word is not kept twice.

    Args:
        content: The text to keep. Make it complete in itself: who, what, when.
        tags: A few words to find it by later, the same words for the same things.
    """
    if not content.strip():
        raise Invalid(
            "There is nothing to archive: content is empty. Call the tool again with the text to "
            "keep."
        )
    draft = PassageDraft(context.call_id, new_id("passage"), content, _cleaned(tags))
    archived = await passages_like(
        context.recall, context.state.archives, content, context.subject_id
    )
    existing: list[Passage | PassageDraft] = [*context.memory.passages, *archived]
    size = len(content) + sum(len(passage.text) for passage in existing)
    alike = await offload(lambda: most_alike(content, draft.tags, existing), size)
    timezone = zone(context.state.agent.timezone)
    if alike and alike.is_kept:
        return (
            f"Not archived again: the same text is there already, as {_described(alike, timezone)}."
        )
    context.memory.archive(draft)
    if alike is None:
        return f"Archived as {draft.id}."
    if alike.is_same:
        likeness = "The same text, under other tags,"
    else:
        likeness = "Nearly the same"
    return f"Archived as {draft.id}. {likeness} is there already, as {_described(alike, timezone)}."


async def archival_memory_search(
    context: ToolContext,
    query: str,
    tags: list[str] | None = None,
    tag_match_mode: Literal["any", "all"] = "any",
    top_k: int = PAGE_SIZE,
    start_datetime: str | None = None,
    end_datetime: str | None = None,
) -> list[dict[str, Any]] | str:
    """Search the passages in your archive.

    Args:
        query: Words to look for.
        tags: Only passages with these tags.
        tag_match_mode: Whether one of the tags is enough ("any") or a passage must have them all ("all").
        top_k: How many results at most.
        start_datetime: Only passages from then on, as YYYY-MM-DD or YYYY-MM-DDTHH:MM in your own time zone.
        end_datetime: Only passages up to then, a whole day where only a date is given.
    """
    timezone = zone(context.state.agent.timezone)
    passage_filter = PassageFilter(
        archive_ids=tuple(archive.id for archive in context.state.archives),
        tags=_cleaned(tags),
        all_tags=tag_match_mode == "all",
        subject_id=context.subject_id,
        start=parse_date(start_datetime, timezone, name="start_datetime")
        if start_datetime
        else None,
        end=parse_date(end_datetime, timezone, name="end_datetime", end=True)
        if end_datetime
        else None,
    )
    _require_limit(top_k)
    hits = await context.recall.passages(query, passage_filter, top_k)
    if not hits:
        return "No results found."
    for hit in hits:
        context.quoted.add(hit.passage.id, is_untrusted=hit.passage.is_untrusted)
    is_exact = shares_seconds(hit.passage.created_at for hit in hits)
    return [
        {
            "id": hit.passage.id,
            "timestamp": timestamp(hit.passage.created_at, timezone, is_exact=is_exact),
            "content": hit.passage.text,
            "tags": list(hit.passage.tags),
            "relevance": _relevance(hit.relevance),
        }
        for hit in hits
    ]


def _described(alike: Likeness, timezone: tzinfo) -> str:
    """Return the passage as a notice names it: `passage-… of 2026-01-20 [tea]: "Ada…"`."""
    passage = alike.existing
    if isinstance(passage, Passage):
        date = timestamp(passage.created_at, timezone)[: len("2026-01-20")]
    else:
        date = "this step"
    if passage.tags:
        tags = f" [{', '.join(passage.tags)}]"
    else:
        tags = ""
    passage_text = " ".join(passage.text.split())
    if len(passage_text) <= _EXCERPT_LENGTH:
        shortened = passage_text
    else:
        shortened = passage_text[: _EXCERPT_LENGTH - 1] + "…"
    return f'{passage.id} of {date}{tags}: "{shortened}"'


def _cleaned(tags: list[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag.strip() for tag in tags or () if tag.strip()))


def _require_limit(limit: int) -> None:
    if not 1 <= limit <= _RESULT_LIMIT:
        raise Invalid(f"A search gives 1 to {_RESULT_LIMIT} results, not {limit}. Ask for fewer.")


def _relevance(relevance: Relevance) -> dict[str, Any]:
    return {
        "search_mode": relevance.mode,
        "rrf_score": relevance.score,
        "vector_rank": relevance.vector_rank,
        "fts_rank": relevance.fts_rank,
        "matches_well": relevance.matches_well,
    }
