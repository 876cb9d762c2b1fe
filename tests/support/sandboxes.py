"""The helper program of the sandbox."""

from tests.support.debian import program


def bubblewrap() -> str:
    """The path of bwrap, which is installed where it is missing.

    Raises RuntimeError where that cannot be.
    """
    return program("bwrap", package="bubblewrap", tests="The tests of the sandbox")
