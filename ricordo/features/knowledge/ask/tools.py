"""The tool `query_student`."""

from dataclasses import replace

from ricordo.errors import Invalid
from ricordo.features.knowledge.ask.service import NOT_KNOWN, answer_of_honcho, sources_for
from ricordo.memory.egress import block_view
from ricordo.tools.toolbox import ServerTool, ToolContext


async def query_student(context: ToolContext, question: str) -> str:
    """Look up what is known about the person you talk with: what they said to you and to other agents, and what is noted of them.

    Answer from the numbered results alone, and name their numbers. Where they do not answer it, it is not known.

    Args:
        question: What you want to know, as a whole question.
    """
    user_id = context.scope.subject or context.state.conversation.user_id
    if user_id is None:
        raise Invalid("This conversation is about no user, so there is no memory to search.")
    if not question.strip():
        raise Invalid("Ask a question.")
    scope = replace(context.scope, subject_id=user_id)
    if answer := await answer_of_honcho(scope, question):
        return answer.text
    began = context.turn_began()
    view = block_view(context.settings.data_dir, context.reader, context.clearance)
    sources = await sources_for(
        context.store, context.recall, scope, question, view, context.may_read
    )
    # Messages of this turn are left out: the question itself would match best.
    sources = [
        source
        for source in sources
        if source.created_at is None or began is None or source.created_at < began
    ]
    return (
        "\n".join(f"[{number}] {source.shown}" for number, source in enumerate(sources, 1))
        or NOT_KNOWN
    )


TOOLS = (ServerTool(query_student, "letta_builtin", brings_untrusted=True, is_read_only=True),)
