"""The three tools of agents with small models: they name no block, no line and no mode, so that little can go wrong.

They edit and search the same memory as all other tools, by the same policies.
"""

from ricordo.domain.clock import zone
from ricordo.errors import Invalid
from ricordo.memory.fact_lines import person_block, with_correction, with_fact
from ricordo.memory.recall import FoundMessage
from ricordo.prompt.truncation import shorten
from ricordo.search.index import MessageFilter, PassageFilter
from ricordo.tools.builtin.search_results import timestamp
from ricordo.tools.toolbox import ToolContext

KNOWN = "That is in your notes already."
UNKNOWN = "There is no such note."
NEW_LABEL = "human"
NEW_DESCRIPTION = "What is known about the person: one fact a line."
_DAY = len("2026-01-20")
_MOST_HITS = 5
_LONGEST_HIT = 300  # characters


def remember(context: ToolContext, fact: str) -> str:
    """Note a lasting fact about the person. For example {"fact": "Her sister is called Emma."}

    Args:
        fact: One short sentence.
    """
    facts = [line for line in fact.split("\n") if line.strip()]
    if not facts:
        raise Invalid("There is nothing to note: fact is empty. Write one short sentence.")
    outcomes = [_write(context, line, None) for line in facts]
    return "\n".join(outcomes)


def correct(context: ToolContext, old: str, new: str) -> str:
    """Change or strike out a noted fact. For example {"old": "works as a nurse", "new": "works as a teacher"}

    Args:
        old: The noted fact that is wrong now.
        new: What is right; empty to forget it.
    """
    if not old.strip():
        raise Invalid("old is empty. Write the noted fact that is wrong now.")
    return _write(context, new, old)


async def search(context: ToolContext, query: str) -> str:
    """Find what was said long ago. For example {"query": "holiday in Spain"}

    Args:
        query: A few words.
    """
    where = zone(context.state.agent.timezone)
    said = MessageFilter(
        agent_ids=(context.state.agent.id,),
        roles=("user", "assistant"),
        subject_id=context.subject_id,
        own_conversation=context.state.conversation.id,
        turn_began=context.view_began() or context.turn_began(),
    )
    archives = tuple(archive.id for archive in context.state.archives)
    messages = await context.recall.messages(query, said, _MOST_HITS)
    kept = PassageFilter(archive_ids=archives, subject_id=context.subject_id)
    passages = await context.recall.passages(query, kept, _MOST_HITS) if archives else []
    lines: list[str] = []
    for hit in messages:
        one = hit.message
        is_hers = one.is_said and one.user_id == context.state.conversation.user_id
        context.quoted.add(one.id, is_untrusted=one.is_untrusted, is_said=is_hers)
        lines.append(
            f"{timestamp(one.created_at, where)[:_DAY]}, {_speaker(hit)}: {_short(one.spoken)}"
        )
    for found in passages:
        context.quoted.add(found.passage.id, is_untrusted=found.passage.is_untrusted)
        lines.append(
            f"{timestamp(found.passage.created_at, where)[:_DAY]}, your archive: "
            f"{_short(found.passage.text)}"
        )
    return "\n".join(lines) or "Nothing was found. Answer with what you know."


def _write(context: ToolContext, new: str, old: str | None) -> str:
    """Change the block about the person, made where there is none; returns what became of it in words."""
    memory = context.memory
    block = person_block(memory.current())
    value = block.value if block else ""
    edit = with_fact(value, new) if old is None else with_correction(value, old, new)
    if edit is None:
        if new.strip():
            return KNOWN
        return UNKNOWN
    if block:
        memory.write(block.shown_label, edit.value, context.call_id, result_kind="nothing")
    else:
        memory.create(NEW_LABEL, edit.value, NEW_DESCRIPTION, context.call_id)
    return edit.sentence


def _speaker(hit: FoundMessage) -> str:
    if hit.message.role == "assistant":
        return "you"
    return hit.message.name or "the person"


def _short(text: str) -> str:
    return shorten(" ".join(text.split()), _LONGEST_HIT)
