"""A LaTeX for the tests: Debian's smallest one, 48 MB to load."""

from tests.support.debian import program


def pdflatex() -> str:
    """The path of pdflatex, which is installed where it is missing.

    Raises RuntimeError where that cannot be.
    """
    return program("pdflatex", package="texlive-latex-base", tests="The tests of notes in LaTeX")
