"""A tesseract for the tests: Debian's, with its English data."""

from tests.support.debian import program


def tesseract() -> str:
    """The path of tesseract, which is installed where it is missing.

    Raises RuntimeError where that cannot be.
    """
    return program("tesseract", package="tesseract-ocr", tests="The tests of texts of pictures")
