"""Notes in LaTeX that an agent writes and the user reads as a PDF.

The PDF is in the user's workspace, and is shown beside the answer.
"""

STATIC = "/ui/pdf-viewer"
PDFJS = "5.6.205"
# The files of the viewer, which anybody may load.
PARTS = {
    "viewer": "viewer.mjs",
    "pdfjs": f"pdf-{PDFJS}.min.mjs",
    "worker": f"pdf-{PDFJS}.worker.min.mjs",
}
