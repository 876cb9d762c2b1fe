"""The tool `render_notes`."""

import re
from typing import Any

from ricordo.domain.text import normal_name
from ricordo.errors import Invalid
from ricordo.features.files.latex.engine import render
from ricordo.features.files.workspaces import service
from ricordo.features.files.workspaces.queries import Space
from ricordo.tools.toolbox import ServerTool, ToolContext

_LONGEST_NAME = 100  # bytes of a file's name, below the limit of workspaces


async def render_notes(context: ToolContext, title: str, content: str) -> dict[str, Any]:
    r"""Write notes in LaTeX: they become a PDF that the person sees beside your answer, and finds in
    the folder "notes".

    Notes with the same title replace each other. If LaTeX finds errors, you get them with their
    lines in the content.

    Args:
        title: The title of the notes, as plain text.
        content: The LaTeX: the text between \begin{document} and \end{document}, or a whole
            document with its \documentclass. amsmath, amssymb, amsthm, mathtools, graphicx, xcolor,
            booktabs and hyperref are loaded.
    """  # noqa: D205 - the model reads this sentence
    user_id = context.scope.subject or context.state.conversation.user_id
    if user_id is None:
        raise Invalid(
            "This conversation is about no user, but notes are stored in a user's workspace."
        )
    if not title.strip() or not content.strip():
        raise Invalid("Notes need a title and a content.")
    pdf, details = await render(context.sandbox, title, content)
    path = service.path_of(f"notes/{file_name(title)}.pdf")
    space = Space(context.state.agent.organization_id, user_id)
    await context.store.write(lambda tx: service.write(tx, space, path, pdf))
    # Return only addresses, since a PDF does not belong in a context window. The chat's stream
    # names the artifact, and the pipe of Open WebUI shows it.
    return {
        "file": path,
        **details,
        "page": f"/ui/latex/{user_id}/{path}",
        "artifact": f"/users/{user_id}/latex/{path}",
    }


def file_name(title: str) -> str:
    """Return the title as a file's name, short enough in bytes in any script.

    Args:
        title: The title of the notes, in any script. Without letters and digits, the name is
            "notes".
    """
    name = re.sub(r"[\W_]+", "-", normal_name(title.lower())).strip("-")[:60]
    name = name.encode("utf-8", "ignore")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return name.strip("-") or "notes"


TOOLS = (ServerTool(render_notes, "letta_builtin", acts_outside=True),)
