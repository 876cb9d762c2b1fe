"""The wheel and the sdist.

A server runs from the wheel with only the packages that the wheel requires.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import httpx2
import pytest
from letta_client import Letta
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ricordo import __version__
from tests.support.server_process import free_port, wait_until_up

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# The module that each extra installs.
MODULES = {
    "embedded": "letta_client",
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google.genai",
    "bedrock": "boto3",
    "postgres": "psycopg",
    "embeddings": "wordllama",
    "mcp": "mcp",
    "files": "pypdf",
    "dolt": "pymysql",
    "doltlite": "doltlite",
    "turbopuffer": "turbopuffer",
    "pinecone": "pinecone",
    "qdrant": "qdrant_client",
    "otel": "opentelemetry.sdk",
    "honcho": "honcho",
}

# A pinned package of a lock file: its name, its extras and its version.
PINNED = re.compile(r"^([\w.-]+)(?:\[(.*)\])?==([^\s;]+)", re.MULTILINE)


def run(
    *command: str | Path, folder: Path, said: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this folder with only these variables, so the checkout is not used."""
    given = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "RICORDO_FIND_LOCAL_MODELS": "false",
        **environment,
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=given,
        input=said,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def needed(
    requirements: Iterable[str], found: dict[str, Distribution] | None = None
) -> dict[str, Distribution]:
    """Return the installed distributions that these requirements need, directly or not."""
    found = {} if found is None else found
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen = f"{requirement.name.lower()}[{','.join(sorted(requirement.extras))}]"
        if seen in found:
            continue
        found[seen] = made = distribution(requirement.name)
        wanted = made.requires or []
        needed(wanted, found)
        for extra in requirement.extras:
            chosen = [
                each
                for each in map(Requirement, wanted)
                if each.marker and "extra" in str(each.marker)
            ]
            named = [
                str(each).partition(";")[0]
                for each in chosen
                if each.marker and each.marker.evaluate({"extra": extra})
            ]
            needed(named, found)
    return found


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and only the base packages."""

    wheel: Path
    sdist: Path
    bin: Path
    package: Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and the sdist, and install the wheel without the network.

    Its requirements are links to the packages of the tests' environment.
    """
    dist, fresh = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("fresh") / "venv"
    made = subprocess.run(
        ["make", "dist", f"DIST={dist}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
    (site,) = fresh.glob("lib/python*/site-packages")
    for each in needed(PROJECT["dependencies"]).values():
        for top in {
            path.parts[0] for path in each.files or () if path.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(each.locate_file(top))))
    uv = Path(sys.executable).with_name("uv")
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        fresh / "bin" / "python",
        wheel,
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    share_bytecode(site / "ricordo")
    return Installed(wheel, sdist, fresh / "bin", site / "ricordo")


def share_bytecode(package: Path) -> None:
    """Copy compiled files to the installed package, since compiling takes seconds."""
    for path in package.rglob("*.py"):
        same = ROOT / "ricordo" / path.relative_to(package)
        compiled = Path(cache_from_source(str(same)))
        if compiled.exists() and path.read_bytes() == same.read_bytes():
            # The bytecode contains these times.
            os.utime(path, ns=(same.stat().st_atime_ns, same.stat().st_mtime_ns))
            target = Path(cache_from_source(str(path)))
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, target)


@pytest.fixture(scope="module")
def address(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `ricordo serve` that runs from the wheel."""
    folder, port = tmp_path_factory.mktemp("home"), free_port()
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "RICORDO_FIND_LOCAL_MODELS": "false",
    }
    command = [installed.bin / "ricordo", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            wait_until_up(f"http://127.0.0.1:{port}", lambda: f"code {server.poll()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
        assert server.stderr
        said = server.stderr.read()
    assert (folder / ".ricordo" / "ricordo.db").exists()
    assert "Traceback" not in said, said


def test_the_wheel_contains_exactly_the_files_of_the_package(installed: Installed) -> None:
    """Compare the wheel with the checkout, where a left-out template is still present.

    The pages of `docs/` are inside the package, where `/help` finds them.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        [*command, "ricordo", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = {
        re.sub("^docs/", "ricordo/features/web/help/docs/", name): ROOT / name
        for name in listed
        if name and (ROOT / name).is_file()
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert inside == set(files)
        assert [name for name, path in files.items() if wheel.read(name) != path.read_bytes()] == []
    assert any(name.endswith(".html") for name in files)
    assert installed.sdist.name == f"ricordo-{__version__}.tar.gz"


def test_a_release_lists_its_packages_with_hashes_and_licences(installed: Installed) -> None:
    dist = installed.wheel.parent
    listed = json.loads((dist / f"ricordo-{__version__}.cdx.json").read_text("utf-8"))
    parts = {part["name"]: part for part in listed["components"]}
    lock = (ROOT / "requirements/base.txt").read_text("utf-8")
    pins = {name: version for name, _, version in PINNED.findall(lock)}
    assert len(pins) > 50
    for name, version in pins.items():
        assert parts[name]["version"] == version
        assert all(digest["content"] in lock for digest in parts[name]["hashes"])
        assert parts[name]["hashes"]
    assert (dist / f"ricordo-{__version__}-requirements.txt").read_text("utf-8") == lock

    table = (dist / f"ricordo-{__version__}-licences.md").read_text("utf-8")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert {name for name, _, _ in rows} == set(parts)
    unknown = [name for name, _, licence in rows if licence == "not installed here"]
    assert len(unknown) < len(rows) / 10  # the others are packages for other platforms
    gpl = re.compile(r"(?<!L)(?<!Lesser )(?:GPL|General Public License)")
    assert [
        name for name, _, licence in rows if gpl.search(licence) and " OR " not in licence
    ] == []


@pytest.mark.parametrize("lock", ["base", "embeddings", "files", "dev", "container"])
def test_a_lock_file_pins_every_requirement_of_its_packages(lock: str) -> None:
    """Lock files are installed with `--no-deps`, so an unlisted package would be missing."""
    text = (ROOT / f"requirements/{lock}.txt").read_text("utf-8")
    pins = {
        canonicalize_name(name): (version, extras.split(", ") if extras else [])
        for name, extras, version in PINNED.findall(text)
    }
    missing = []
    looked_at = 0
    for name, (version, extras) in pins.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # a package for another platform or a newer Python
        looked_at += 1
        for requirement in map(Requirement, package.requires or []):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ["", *extras]):
                continue
            pinned = pins.get(canonicalize_name(requirement.name), ("", []))[0]
            if not pinned or not requirement.specifier.contains(pinned, prereleases=True):
                missing.append(f"{name} {version} needs {requirement}, pinned: {pinned or 'none'}")
    assert missing == []
    assert looked_at > 0.8 * len(pins)


def test_locked_packages_are_installed_without_dependencies() -> None:
    """Without `--no-deps` pip resolves again, and may choose a release without a hash."""
    commands = [
        line
        for file in ("Makefile", "Containerfile", "docs/start/installation.md")
        for line in (ROOT / file).read_text("utf-8").splitlines()
        if "--require-hashes" in line
    ]
    assert len(commands) == 7
    assert [line for line in commands if "--no-deps" not in line] == []


def test_the_command_runs_from_the_wheel_with_only_base_packages(
    installed: Installed, tmp_path: Path
) -> None:
    shown = run(installed.bin / "ricordo", "--version", folder=tmp_path)
    assert (shown.stdout.strip(), shown.stderr) == (f"ricordo {__version__}", "")
    program = (
        "import ricordo, sys; from importlib.util import find_spec as f; print(ricordo.__file__, "
        "*map(f, sys.argv[1:]))"
    )
    # Base packages install into the same top folders as these extras.
    shared = ("google.genai", "opentelemetry.sdk")
    tops = [module.partition(".")[0] for module in MODULES.values() if module not in shared]
    path, *extras = run(
        installed.bin / "python", "-c", program, *tops, folder=tmp_path
    ).stdout.split()
    assert Path(path) == installed.package / "__init__.py"
    assert [found for found in extras if found != "None"] == []


def test_a_server_from_the_wheel_answers_shows_its_pages_and_remembers(address: str) -> None:
    """The test uses each kind of packaged file.

    These are pages and styles, the texts of prompts, stop words, and migrations.
    """
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as http:
        assert http.get("/v1/health").json() == {"version": __version__, "status": "ok"}
        page = http.get("/").text
        assert page.startswith("<!doctype html>")
        named = set(re.findall(r'"(/ui/static/[^"]+)"', page))
        assert named
        for path in {
            *named,
            *(f"/ui/static/{file.name}" for file in (ROOT / "ricordo/pages/static").iterdir()),
        }:
            assert http.get(path).status_code == 200, path
        for path in (
            "/ui/agents",
            "/ui/search?q=tea",
            "/ui/models",
            "/ui/settings",
        ):
            assert http.get(path).status_code == 200, path
    with Letta(base_url=address, api_key=None) as client:
        agent = client.agents.create(
            memory_blocks=[{"label": "human", "value": "Her name is Ada."}]
        )
        client.agents.messages.create(agent.id, input="My favourite tea is jasmine.")
        answer = client.agents.messages.create(agent.id, input="What is my favourite tea?")
        assert "My favourite tea is jasmine." in str(answer.messages[-1])


@pytest.mark.soak  # tests/features/web/pages/test_shell.py compiles those of the checkout, which are the same files
def test_every_template_of_the_wheel_compiles(installed: Installed, tmp_path: Path) -> None:
    program = "from ricordo.pages.shell import environment; e = environment()\n"
    program += "print(*[e.get_template(name).name for name in e.list_templates()])"
    done = run(installed.bin / "python", "-c", program, folder=tmp_path)
    assert done.stderr == ""
    assert set(done.stdout.split()) == {
        path.name for path in ROOT.glob("ricordo/**/templates/*.html")
    }


def test_every_extra_that_is_named_exists_and_is_documented() -> None:
    """A file for doltlite once named an extra that did not install doltlite."""
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "ricordo").rglob("*.py"))
    docs = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    )
    named = set(re.findall(r"ricordo\[([a-z]+)\]|extras? `([a-z]+)`", text + docs))
    assert {name or other for name, other in named} - {"extra"} <= set(EXTRAS)
    assert set(MODULES) == set(EXTRAS)
    assert [
        extra for extra in EXTRAS if f"ricordo[{extra}]" not in docs and f"`{extra}`" not in docs
    ] == []


def test_each_extra_installs_its_module() -> None:
    for extra, module in MODULES.items():
        brought = needed(EXTRAS[extra]).values()
        tops = {path.parts[0].removesuffix(".py") for each in brought for path in each.files or ()}
        assert module.partition(".")[0] in tops, extra


# Programs that need an extra; each prints the error that it gets.
WITHOUT = {
    "embedded": "import ricordo; ricordo.open('folder')",
    "openai": "from ricordo.llm.provider_sdks import need; need('openai', 'openai')",
    "bedrock": "from ricordo.llm.provider_sdks import need; need('boto3', 'bedrock')",
    "dolt": "from ricordo.features.sync.dolt import engines as e\n"
    "e.DoltServer(e.read_address('mysql://ada@127.0.0.1/m', allow_private=True))",
    "doltlite": "from pathlib import Path; from ricordo.features.sync.dolt import engines as e\n"
    "e.Doltlite(e.read_address(f'doltlite://{Path.cwd()}/memory.db', folders=(Path.cwd(),)))",
    "embeddings": "import asyncio; from ricordo.llm.embedding.embedded import EmbeddedModel\n"
    "asyncio.run(EmbeddedModel().embed(['tea']))",
    "turbopuffer": (
        "from ricordo.features.vector_services.service import library; library('turbopuffer', "
        "'Turbopuffer')"
    ),
    "pinecone": (
        "from ricordo.features.vector_services.service import library; library('pinecone', "
        "'Pinecone')"
    ),
    "qdrant": (
        "from ricordo.features.vector_services.service import library; "
        "library('qdrant_client.models', 'Qdrant')"
    ),
    "otel": "import os; os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:9'\n"
    "from ricordo.features.operations.otel import trace_requests; trace_requests(None)",
    "honcho": (
        "import asyncio; from ricordo.features.knowledge.honcho.service import answer; "
        "asyncio.run(answer('user-1', 'Who?'))"
    ),
}


# The program executes each program of its input, and prints the program's error. Then it runs
# commands in this process, and prints the exit code and the output of each.
EACH = """
import json, sys
from typer.testing import CliRunner

programs, commands = json.load(sys.stdin)
for program in programs:
    try:
        exec(program, {})
        print("It ended well.")
    except Exception as error:
        print(f"{type(error).__module__}: {error}".replace(chr(10), " "))
from ricordo.cli import app

for arguments, variables in commands:
    ended = CliRunner().invoke(app, arguments, env=variables, prog_name="ricordo")
    print(json.dumps([ended.exit_code, ended.stdout, ended.stderr]))
"""


def test_without_an_extra_the_error_has_its_install_command(
    installed: Installed, tmp_path: Path
) -> None:
    """Programs, providers and PostgreSQL say which extra they need, all in one process."""
    without = {"OTEL_EXPORTER_OTLP_ENDPOINT": None}
    keys = {**without, "ANTHROPIC_API_KEY": "sk-x", "GEMINI_API_KEY": "x"}
    url = {**without, "RICORDO_DATABASE_URL": "postgresql://ricordo@127.0.0.1:9/ricordo"}
    said = json.dumps([list(WITHOUT.values()), [(["doctor"], keys), (["serve"], url)]])

    done = run(installed.bin / "python", "-c", EACH, folder=tmp_path, said=said)

    errors = done.stdout.splitlines()
    assert len(errors) == len(WITHOUT) + 2, done.stderr
    for extra, error in zip(WITHOUT, errors, strict=False):
        assert error.startswith("ricordo.errors: "), error
        assert f'pip install "ricordo[{extra}]"' in error
    (_, shown, _), (code, _, refusal) = map(json.loads, errors[-2:])
    for extra in ("anthropic", "google", "embeddings"):
        assert f"pip install 'ricordo[{extra}]'" in " ".join(shown.split()), shown
    sentence = (
        "RICORDO_DATABASE_URL names PostgreSQL, which needs an extra. Install it: pip install "
        "'ricordo[postgres]'"
    )
    assert (code, refusal) == (2, f"ricordo: {sentence}\n")
