"""`ricordo course`, and the page about courses, which documents every key."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ricordo.cli import app
from ricordo.features.tutor.courses import course_file
from ricordo.features.tutor.courses.course_file import parse_course

PAGE = (Path(__file__).parents[4] / "docs" / "tutor" / "courses.md").read_text("utf-8")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RICORDO_DATA_DIR", str(tmp_path))
    return tmp_path


def test_the_course_command_creates_and_checks_courses(data: Path) -> None:
    run = CliRunner()
    made = run.invoke(app, ["course", "new", "essay"])
    path = data / "courses" / "essay" / "agents.toml"
    assert str(path) in made.output
    assert run.invoke(app, ["course", "check"]).output == "essay: 1 agent, 3 blocks, 1 task\n"
    assert "already exists" in run.invoke(app, ["course", "new", "essay"]).output
    assert "no example course" in run.invoke(app, ["course", "new", "b", "--like", "c"]).output
    assert "name of a course" in run.invoke(app, ["course", "new", "../b"]).output
    path.write_text(path.read_text("utf-8").replace("[[task]]", "[[tasks]]"), "utf-8")
    failed = run.invoke(app, ["course", "check"])
    assert failed.exit_code == 1
    assert 'essay/agents.toml: Line 64: "tasks" is not known here.' in failed.output
    assert run.invoke(app, ["course", "check", "other"]).exit_code == 1
    assert run.invoke(app, ["course", "new", "python", "--like", "python-tutor"]).exit_code == 0


def test_the_courses_page_documents_every_key() -> None:
    table = PAGE.split("## The file")[1].split("## Over HTTP")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    told = {
        (key.strip(" `"), of)
        for _, keys, ofs, *_ in rows
        for key in keys.split(",")
        for of in ofs.split(",")
    }
    told = {(key, of.strip(" `[]")) for key, of in told}
    for of, keys in (
        ("agent", course_file._AGENT),
        ("block", course_file._BLOCK),
        ("task", course_file._TASK),
        ("skill", course_file._SKILL),
    ):
        assert {key for key, whose in told if whose == of} == set(keys), of


def test_the_example_course_of_the_page_is_valid() -> None:
    course = parse_course(PAGE.split("```toml\n")[1].split("```")[0], "essay-coach")
    assert (course.tasks[0].agent, course.blocks[0].schema is not None) == ("coach", True)
