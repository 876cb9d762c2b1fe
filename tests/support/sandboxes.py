"""The helper program of the sandbox."""

from tests.support.debian import program


def bubblewrap() -> str:
    """Return the path of bwrap, which is installed if it is missing.

    Raises RuntimeError if that fails.
    """
    return program("bwrap", package="bubblewrap", tests="The tests of the sandbox")
