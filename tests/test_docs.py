"""The docs tell the truth: their code runs, their commands and settings exist, their links lead somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ricordo.plugins import HOOKS
from ricordo.settings import PREFIX, ProviderSettings, Settings, VectorSettings
from tests.support.process import server_process

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8283"


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_conversation_is_remembered_after_a_sigkill(tmp_path: Path) -> None:
    """What a newcomer does first, word for word: tell a fact, kill the server, start it again, ask."""
    tell, ask = (block for block in blocks(README, "python") if "Letta(" in block)
    with server_process(tmp_path) as server:
        told = run_python(tell.replace(ADDRESS, server.url))
        assert "assistant_message" in told
        server.kill()
        server.start()
        answer, human = run_python(ask.replace(ADDRESS, server.url)).split("\nHer name is Ada.")
        assert "My favourite tea is jasmine." in answer
        assert "My favourite tea is jasmine." in human


def test_every_python_block_is_valid() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(), "python"):
            ast.parse(block)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`?make ([a-z]+)`?", page.read_text()) if name != "sure"}
    assert {"run", "test"} <= named <= targets


def test_every_command_that_is_named_exists() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`(?:\.venv/bin/)?ricordo ([a-z]+)", text)) | set(re.findall(r"bin/ricordo ([a-z]+)", text))
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("ricordo")), "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert named
    assert {name for name in named if not re.search(rf"\b{name}\b", shown)} == set()


def test_every_setting_that_is_named_exists() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    known |= {name.upper() for name in (*ProviderSettings.model_fields, *VectorSettings.model_fields)}
    known.add("RICORDO_VECTOR_PREFIX")
    text = "\n".join(page.read_text() for page in PAGES if page.parent.name != "decisions")
    named = set(re.findall(r"\b(?:RICORDO_[A-Z_]+[A-Z]|[A-Z]+_(?:API_KEY|BASE_URL|API_BASE))\b", text))
    assert "RICORDO_API_KEY" in named
    assert named - known == set()


def test_every_provider_setting_is_in_the_readme() -> None:
    missing = {name.upper() for name in ProviderSettings.model_fields if name.upper() not in README}
    assert missing == set()


def test_every_hook_is_documented() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    assert {hook for hook in HOOKS if f"`{hook}`" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_house_in_the_readme_is_the_house() -> None:
    (tree,) = blocks(README, "text")
    named = set(re.findall(r"^  ([a-z_]+(?:\.py|/))", tree, re.MULTILINE))
    here = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "ricordo").iterdir()
        if not path.name.startswith(("_", ".")) and path.suffix in ("", ".py")
    }
    assert named == here


def test_the_functions_on_the_message_path_exist() -> None:
    text = (ROOT / "docs" / "message-path.md").read_text()
    places = re.findall(r"`([a-z]+/[a-z_]+\.py): ([a-z_]+)`", text)
    assert len(places) >= 7
    for file, function in places:
        assert re.search(rf"def {function}\b", (ROOT / "ricordo" / file).read_text()), f"{file} has no {function}"


def test_the_plugin_in_the_docs_works(tmp_path: Path) -> None:
    """The example is installed as a package would be, and its tool is offered by the server."""
    (code,) = blocks((ROOT / "docs" / "plugins.md").read_text(), "python")
    (tmp_path / "weather.py").write_text(code)
    check = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[1])\n"
        "from ricordo.plugins import Plugins; from ricordo.tools.toolbox import Toolbox\n"
        "from weather import plugin\n"
        "plugins = Plugins([('weather', plugin)])\n"
        "print([tool.name for tool in Toolbox(plugins.tools())], len(plugins.routes()), len(plugins.after_turn()))"
    )
    done = subprocess.run([sys.executable, "-c", check, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['forecast'] 1 1", done.stderr
