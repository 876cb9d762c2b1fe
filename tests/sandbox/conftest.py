"""Fixtures of tests of the sandbox."""

from tests.cli.conftest import quick_command

__all__ = ["quick_command"]
