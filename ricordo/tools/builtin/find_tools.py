"""The tool `find_tools`, for agents with so many tools that most schemas are hidden."""

from ricordo.errors import Invalid, RicordoError
from ricordo.offload import offload
from ricordo.tools.tool_search import (
    FIND_TOOLS,
    fuse_rankings,
    rank_by_meaning,
    rank_by_words,
    text_of,
)
from ricordo.tools.toolbox import ToolContext

_MOST_FOUND = 5
_LONGEST_LINE = 300  # characters of a description in a result


async def find_tools(context: ToolContext, query: str) -> str:
    """Find tools by what they do. You have more tools than you see: look here before you say that you cannot do something.

    Args:
        query: What the tool should do, in a few words, such as "add an event to the calendar".
    """
    if not query.strip():
        raise Invalid("query is empty. Say in a few words what the tool should do.")
    candidates = [tool for tool in context.state.tools if tool.name != FIND_TOOLS]
    texts = [text_of(tool) for tool in candidates]
    length = sum(map(len, texts))
    word_ranking = await offload(lambda: rank_by_words(query, texts), length)
    try:
        vector_ranking = await rank_by_meaning(
            context.runtime.models.embedders,
            query,
            texts,
            context.clearance,
            context.recall.payer,
        )
    except RicordoError:
        vector_ranking = None  # without the embedding model, the search is by words
    found = fuse_rankings(candidates, word_ranking, vector_ranking)[:_MOST_FOUND]
    if not found:
        return "No tool matches. Try other words."
    lines = (f"- {match.tool.name}: {_first_line(match.tool.description)}" for match in found)
    return "\n".join(["You can call these tools now:", *lines])


def _first_line(description: str | None) -> str:
    line = (description or "").strip().partition("\n")[0]
    if len(line) > _LONGEST_LINE:
        return f"{line[:_LONGEST_LINE]}…"
    return line
