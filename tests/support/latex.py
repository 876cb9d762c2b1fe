"""A LaTeX for the tests: Debian's smallest one, a download of 48 MB."""

from tests.support.debian import program


def pdflatex() -> str:
    """Return the path of pdflatex, which is installed if it is missing.

    Raises RuntimeError if that fails.
    """
    return program("pdflatex", package="texlive-latex-base", tests="The tests of notes in LaTeX")
