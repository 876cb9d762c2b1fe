"""A tesseract for the tests: Debian's, with its English data."""

from tests.support.debian import program


def tesseract() -> str:
    """Return the path of tesseract, which is installed if it is missing.

    Raises RuntimeError if it cannot be installed.
    """
    return program("tesseract", package="tesseract-ocr", tests="The tests of texts of pictures")
