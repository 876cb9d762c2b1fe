"""Notes in LaTeX that an agent writes and the user reads as a PDF.

The PDF is in the user's workspace, and is shown beside the answer.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ricordo.settings import Settings

STATIC = "/ui/pdf-viewer"
PDFJS = "5.6.205"
# The files of the viewer, which anybody may load.
PARTS = {
    "viewer": "viewer.mjs",
    "pdfjs": f"pdf-{PDFJS}.min.mjs",
    "worker": f"pdf-{PDFJS}.worker.min.mjs",
}


class LatexPlugin:
    """Adds the tool, the viewer's page, and the viewer for other programs."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.files.latex.routes",
            "ricordo.features.files.latex.pages",
        ]

    def tools(self) -> list[Any]:
        from ricordo.features.files.latex.tools import render_notes
        from ricordo.tools.toolbox import ServerTool

        return [ServerTool(render_notes, "letta_builtin", acts_outside=True)]

    def findings(self, _settings: "Settings") -> list[str]:
        from ricordo.features.files.latex.engine import MISSING, find_engine

        return [next(iter(find_engine()), MISSING)]


plugin = LatexPlugin()
