"""The summary that the long tests print at their end."""

from types import SimpleNamespace

from tests.support.summary import summary_lines


def _report(test: str, seconds: float, when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(nodeid=f"tests/{test}", duration=seconds, when=when)


def test_failed_modules_come_first_with_outcomes_and_minutes() -> None:
    stats = {
        "": [_report("test_a.py::one", 30, "setup"), _report("test_b.py::two", 6, "teardown")],
        "passed": [_report("test_a.py::one", 90), _report("test_a.py::other", 60)],
        "failed": [_report("test_b.py::two", 6)],
        "error": [_report("test_c.py::three", 0, "setup")],
        "skipped": [_report("test_d.py::four", 0, "setup")],
        "warnings": [SimpleNamespace(message="No report of a test.", nodeid="tests/test_a.py")],
    }
    told = [line.split() for line in summary_lines(stats)]
    assert told[0] == ["outcome", "passed", "failed", "skipped", "minutes", "module"]
    assert told[1:] == [
        ["failed", "0", "1", "0", "0.2", "tests/test_b.py"],
        ["failed", "0", "1", "0", "0.0", "tests/test_c.py"],
        ["passed", "2", "0", "0", "3.0", "tests/test_a.py"],
        ["skipped", "0", "0", "1", "0.0", "tests/test_d.py"],
        ["failed", "2", "2", "1", "3.2", "all"],
    ]
