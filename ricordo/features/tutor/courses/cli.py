"""`ricordo course`: courses as files of the data folder.

The server applies them when it starts and when they change.
"""

import asyncio
from pathlib import Path
from typing import Any

import typer

from ricordo.cli.client import any_server, running_server, set_up_quiet_logs
from ricordo.errors import Conflict, NotFound
from ricordo.features.tutor.courses.course_file import FILE, parse_course
from ricordo.features.tutor.courses.options import CourseSettings
from ricordo.settings import load_settings

app = typer.Typer(
    help="Courses: agents and student memory, configured in one file.", no_args_is_help=True
)
_EXAMPLES = Path(__file__).with_name("examples")
_Server = typer.Option(None, help="Address of the server.  [the configured one, started if needed]")
_Name = typer.Argument(help="Name of the course, such as essay-coach.")


def _folder() -> Path:
    settings, _ = load_settings()
    return CourseSettings().courses_dir or settings.data_dir / "courses"


@app.command("new")
def new(
    name: str = _Name,
    like: str = typer.Option(
        "essay-coach", help="The example course to copy: essay-coach or python-tutor."
    ),
) -> None:
    """Make a working course that can then be changed."""
    example = _EXAMPLES / f"{like}.toml"
    if not example.is_file():
        examples = ", ".join(sorted(path.stem for path in _EXAMPLES.glob("*.toml")))
        raise NotFound(f'There is no example course "{like}". Use one of: {examples}.')
    text = example.read_text("utf-8")
    parse_course(text, name)
    path = _folder() / name / FILE
    if path.exists():
        raise Conflict(f"{path} already exists. Choose another name, or edit that file.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    typer.echo(f"Made {path}. Edit it, then: ricordo course check {name}")


@app.command("check")
def check(
    names: list[str] = typer.Argument(None, help="Courses.  [all]"),
    server: str | None = _Server,
) -> None:
    """Check the files of courses, and change nothing.

    The exit code is 1 if something is wrong, or if there are no courses.
    """
    folder = _folder()
    courses = {course["name"]: course for course in _reviewed(server)}
    names = names or [*courses]
    sentences = [
        f"{name}: there is no such course in {folder}." for name in names if name not in courses
    ]
    for name in names:
        course = courses.get(name)
        if course and course["fault"]:
            sentences.append(str(course["fault"]))
        elif course:
            counts = [_count(course[f"{noun}s"], noun) for noun in ("agent", "block", "task")]
            if course["skills"]:
                counts.append(_count(course["skills"], "skill"))
            typer.echo(f"{name}: {', '.join(counts)}")
            if course.get("warning"):
                typer.echo(f"warning: {course['warning']}", err=True)
    if not names:
        sentences = [f"There are no courses in {folder}. Make one with: ricordo course new NAME"]
    if sentences:
        typer.echo("\n".join(sentences), err=True)
        raise typer.Exit(1)


def _reviewed(server: str | None) -> list[dict[str, Any]]:
    """Return each course with its fault, according to a running server or else to this process."""
    settings, providers = load_settings()
    with running_server(settings, server) as client:
        if client:
            reviewed: list[dict[str, Any]] = client.ask("POST", "/v1/courses/check")
            return reviewed
    set_up_quiet_logs(settings)
    # Slow to load, and needed only if no server runs.
    from ricordo.app import open_runtime
    from ricordo.features.tutor.courses.service import review_courses, review_lines

    async def review() -> list[dict[str, Any]]:
        async with open_runtime(settings, providers, has_background_work=False) as runtime:
            return review_lines(await review_courses(runtime))

    return asyncio.run(review())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@app.command("apply")
def apply(server: str | None = _Server) -> None:
    """Apply the files now, and show the courses."""
    with any_server(server, lambda _: None) as client:
        _show(client.ask("POST", "/v1/courses/apply"))


@app.command("list")
def list_courses(server: str | None = _Server) -> None:
    """Show the courses, their agents, and the faults of their files."""
    with any_server(server, lambda _: None) as client:
        _show(client.ask("GET", "/v1/courses/", query={"limit": 1000, "order": "asc"}))


def _show(courses: list[dict[str, object]]) -> None:
    for course in courses:
        lines = [f"{course['name']}  {course['title'] or ''}".rstrip()]
        agents = course["agents"]
        if isinstance(agents, dict):
            lines += [f"  {name}  {agent_id}" for name, agent_id in agents.items()]
        if course["fault"]:
            lines.append(f"  not in use: {course['fault']}")
        typer.echo("\n".join(lines))
    if not courses:
        typer.echo("There are no courses. Make one with: ricordo course new NAME")
