"""`ricordo course`: courses as files of the data folder. The server applies them as it starts, and when they change."""

from pathlib import Path

import typer

app = typer.Typer(
    help="Courses: agents and memory for students, in one file.", no_args_is_help=True
)
_EXAMPLES = Path(__file__).with_name("examples")
_Server = typer.Option(
    None, help="Address of the server.  [the one of the settings, started if need be]"
)
_Name = typer.Argument(help="The course, as essay-coach.")


def _folder() -> Path:
    from ricordo.features.tutor.courses.options import CourseSettings
    from ricordo.settings import load_settings

    settings, _ = load_settings()
    return CourseSettings().courses_dir or settings.data_dir / "courses"


@app.command("new")
def new(
    name: str = _Name,
    like: str = typer.Option(
        "essay-coach", help="The worked course to begin with: essay-coach or python-tutor."
    ),
) -> None:
    """Make a course that works, to be changed."""
    from ricordo.errors import Conflict, NotFound
    from ricordo.features.tutor.courses.course_file import FILE, parse_course

    example = _EXAMPLES / f"{like}.toml"
    if not example.is_file():
        known = ", ".join(sorted(path.stem for path in _EXAMPLES.glob("*.toml")))
        raise NotFound(f'There is no worked course "{like}". Use one of: {known}.')
    text = example.read_text("utf-8")
    parse_course(text, name)
    path = _folder() / name / FILE
    if path.exists():
        raise Conflict(f"{path} is there already. Choose another name, or edit it.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    typer.echo(f"Made {path}. Edit it, then: ricordo course check {name}")


@app.command("check")
def check(names: list[str] = typer.Argument(None, help="Courses.  [all]")) -> None:
    """Check the files of courses. Ends with 1 where something is wrong."""
    from ricordo.features.tutor.courses.course_file import read_courses

    found, faults = read_courses(_folder())
    wanted = names or [*found, *faults]
    unknown = [
        f"{name}: there is no such course in {_folder()}."
        for name in wanted
        if name not in found | faults
    ]
    wrong = [*unknown, *(faults[name] for name in wanted if name in faults)]
    for name in wanted:
        if course := found.get(name):
            counts = (
                (len(course.agents), "agent"),
                (len(course.blocks), "block"),
                (len(course.tasks), "task"),
            )
            typer.echo(
                f"{name}: "
                + ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
            )
    if wrong:
        typer.echo("\n".join(wrong), err=True)
        raise typer.Exit(1)
    if not wanted:
        typer.echo(f"There are no courses in {_folder()}. Make one with: ricordo course new NAME")


@app.command("apply")
def apply(server: str | None = _Server) -> None:
    """Bring the files into use now, and show the courses."""
    from ricordo.cli.client import any_server

    with any_server(server, lambda _: None) as client:
        _show(client.ask("POST", "/v1/courses/apply"))


@app.command("list")
def list_courses(server: str | None = _Server) -> None:
    """Show the courses, their agents, and what is wrong with their files."""
    from ricordo.cli.client import any_server

    with any_server(server, lambda _: None) as client:
        _show(client.ask("GET", "/v1/courses/", query={"limit": 1000, "order": "asc"}))


def _show(courses: list[dict[str, object]]) -> None:
    for one in courses:
        agents = one["agents"]
        ids = [f"  {name}  {id}" for name, id in agents.items()] if isinstance(agents, dict) else []
        fault = [f"  not in use: {one['fault']}"] if one["fault"] else []
        typer.echo("\n".join([f"{one['name']}  {one['title'] or ''}".rstrip(), *ids, *fault]))
    if not courses:
        typer.echo("There are no courses. Make one with: ricordo course new NAME")
