"""The three tools of agents with small models: `remember`, `correct`, `search`.

They name no block, no line and no mode, so that little can go wrong. They edit and search the same
memory as all other tools, under the same policies.
"""

from collections.abc import Set

from ricordo.domain.clock import zone
from ricordo.errors import Invalid
from ricordo.memory.fact_lines import person_block, with_correction, with_fact
from ricordo.memory.recall import FoundMessage
from ricordo.prompt.truncation import shorten
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.search.words import query_terms
from ricordo.tools.builtin.search_results import matching_lines, timestamp
from ricordo.tools.toolbox import ToolContext

ALREADY_NOTED = "That is in your notes already."
NO_SUCH_NOTE = "There is no such note."
COPIED_EXAMPLE = (
    "This is the example of the tool, and the person did not say it. Note only what the person "
    "said."
)
NEW_LABEL = "human"
NEW_DESCRIPTION = "What is known about the person: one fact a line."
_EXAMPLE_NAME = "emma"  # the name in the description of `remember`
_DAY = len("2026-01-20")
_HIT_LIMIT = 5
_HIT_LENGTH = 300  # characters


def remember(context: ToolContext, fact: str) -> str:
    """Note a lasting fact about the person. For example {"fact": "Her sister is called Emma."}

    Args:
        fact: One short sentence.
    """
    facts = [line for line in fact.split("\n") if line.strip()]
    if not facts:
        raise Invalid("There is nothing to note: fact is empty. Write one short sentence.")
    if _copies_example(context, fact):
        raise Invalid(COPIED_EXAMPLE)
    with context.memory.as_one():
        outcomes = [_write(context, line, None) for line in facts]
    return "\n".join(outcomes)


def correct(context: ToolContext, old: str, new: str) -> str:
    """Change or strike out a noted fact. For example {"old": "works as a nurse", "new": "works as a teacher"}

    Args:
        old: The noted fact that is wrong now.
        new: What is right; empty to forget it.
    """
    if not old.strip():
        raise Invalid("old is empty. Write the noted fact that is no longer true.")
    return _write(context, new, old)


async def search(context: ToolContext, query: str) -> str:
    """Find what was said long ago. For example {"query": "holiday in Spain"}

    Args:
        query: A few words.
    """
    timezone = zone(context.state.agent.timezone)
    message_filter = MessageFilter(
        agent_ids=(context.state.agent.id,),
        roles=("user", "assistant"),
        subject_id=context.subject_id,
        own_conversation=context.state.conversation.id,
        turn_began=context.view_began() or context.turn_began(),
    )
    archives = tuple(archive.id for archive in context.state.archives)
    messages = await context.recall.messages(query, message_filter, _HIT_LIMIT)
    passage_filter = PassageFilter(archive_ids=archives, subject_id=context.subject_id)
    if archives:
        passages = await context.recall.passages(query, passage_filter, _HIT_LIMIT)
    else:
        passages = []
    words = {*query_terms(query)}
    lines: list[str] = []
    for hit in messages:
        message = hit.message
        is_users = message.is_said and message.user_id == context.state.conversation.user_id
        # The part of a long message may be from a picture, and the user did not write that.
        may_be_picture = bool(message.picture_text) and len(message.spoken) > _HIT_LENGTH
        is_untrusted = message.is_untrusted or may_be_picture
        context.quoted.add(message.id, is_untrusted=is_untrusted, is_said=is_users)
        lines.append(
            f"{timestamp(message.created_at, timezone)[:_DAY]}, {_speaker(hit)}: "
            f"{_short(message.spoken, hit.excerpt, words)}"
        )
    for passage_hit in passages:
        context.quoted.add(passage_hit.passage.id, is_untrusted=passage_hit.passage.is_untrusted)
        lines.append(
            f"{timestamp(passage_hit.passage.created_at, timezone)[:_DAY]}, your archive: "
            f"{_short(passage_hit.passage.text, passage_hit.excerpt, words)}"
        )
    return "\n".join(lines) or "Nothing was found. Answer with what you know."


def _write(context: ToolContext, new: str, old: str | None) -> str:
    """Change the block about the person, or create it; return a sentence on the change."""
    memory = context.memory
    block = person_block(memory.current())
    text = block.value if block else ""
    if old is None:
        edit = with_fact(text, new)
    else:
        edit = with_correction(text, old, new)
    if edit is None:
        if new.strip():
            return ALREADY_NOTED
        return NO_SUCH_NOTE
    if block:
        memory.write(block.shown_label, edit.value, context.call_id, result_kind="nothing")
    else:
        memory.create(NEW_LABEL, edit.value, NEW_DESCRIPTION, context.call_id)
    return edit.sentence


def _copies_example(context: ToolContext, fact: str) -> bool:
    """Return whether the fact is the tool's example, which very small models copy.

    It is, in any language, if it has the example's name, and neither the person nor a block named
    it.
    """
    if _EXAMPLE_NAME not in fact.casefold():
        return False
    known_texts = [
        *context.memory.user_texts(),
        *(block.value for block in context.memory.current()),
    ]
    return not any(_EXAMPLE_NAME in text.casefold() for text in known_texts)


def _speaker(hit: FoundMessage) -> str:
    if hit.message.role == "assistant":
        return "you"
    return hit.message.name or "the person"


def _short(text: str, excerpt: str | None, query_words: Set[str]) -> str:
    """Return the text; of a long text, the lines that match or the matching part."""
    if len(text) > _HIT_LENGTH:
        part = excerpt or text
        text = " … ".join(matching_lines(part, query_words)) or part
    return shorten(" ".join(text.split()), _HIT_LENGTH)
