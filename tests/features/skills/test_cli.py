"""The commands of `ricordo skill`, while a server runs."""

import os
from pathlib import Path

import httpx2
import pytest

from ricordo.errors import Invalid
from ricordo.features.skills.cli import import_skill
from tests.cli.conftest import Shell, remember
from tests.features.skills.conftest import skill_md
from tests.seams.http import ok


def test_the_skill_command_imports_exports_and_decides_skills(shell: Shell, tmp_path: Path) -> None:
    remember(shell, "ada")
    folder = tmp_path / "hi"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(skill_md("hi"))
    (folder / "scripts/hi.py").write_text("print('hi')\n")
    with shell.serving() as server, httpx2.Client(base_url=server.address, trust_env=False) as http:
        where = ("--user", "ada", "--server", server.address)
        done = shell.run("skill", "import", str(folder), *where)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hi: stored\n", "")
        assert shell.run("skill", "list", *where).stdout == "hi  Makes lists.\n"
        assert "=== file: scripts/hi.py ===" in shell.run("skill", "show", "hi", *where).stdout
        out = tmp_path / "out.zip"
        shell.run("skill", "export", "hi", str(out), *where)
        assert out.read_bytes() == http.get("/v1/users/ada/skills/hi/archive").content
        edit = {"old_string": "Write", "new_string": "Draw", "reasoning": "Nicer.", "agent_id": "a"}
        path = "/users/ada/blocks/skills/hi/SKILL/propose"
        first, second = (ok(http.post(path, json={**edit, "agent_id": name})) for name in "ab")
        assert "+Draw the list." in shell.run("skill", "proposals", "hi", *where).stdout
        all_waiting = shell.run("skill", "proposals", *where).stdout
        assert [line.split()[1] for line in all_waiting.splitlines() if "  by " in line] == [
            "hi",
            "hi",
        ]
        approved = shell.run("skill", "approve", "hi", first["id"], *where)
        assert approved.stdout == f"{first['id']}: approved\n"
        rejected = shell.run("skill", "reject", "hi", second["id"], *where)
        assert rejected.stdout == f"{second['id']}: rejected\n"
        versions = shell.run("skill", "history", "hi", *where).stdout.splitlines()
        assert len(versions) == 2
        shell.run("skill", "restore", "hi", versions[-1].split()[0], *where)
        short = shell.run("skill", "restore", "hi", "abc", *where)
        assert short.stderr == "ricordo: sha: String should have at least 7 characters\n"
        nowhere = shell.run("skill", "export", "hi", str(tmp_path), *where)
        assert nowhere.stderr == f"ricordo: {tmp_path} is a folder. Name a file.\n"
        assert "Write the list." in shell.run("skill", "show", "hi", *where).stdout
        assert shell.run("skill", "delete", "hi", *where).stdout == "hi: deleted\n"
        done = shell.run("skill", "import", str(out), *where)
        assert done.stdout == "hi: stored\n"
        shell.run("skill", "import", str(out), "--server", server.address)
        assert shell.run("skill", "list", "--server", server.address).stdout.startswith("hi  ")
        both = shell.run("skill", "list", *where, "--agent", "agent-1")
        assert both.returncode == 2


def test_files_that_cannot_be_read_are_refused_in_one_sentence(
    shell: Shell, tmp_path: Path
) -> None:
    folder = tmp_path / "hi"
    folder.mkdir()
    (folder / "SKILL.md").write_text(skill_md("hi"))
    picture = folder / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\xff")
    missing = tmp_path / "missing.txt"
    empty = tmp_path / "empty"
    empty.mkdir()
    commands = [
        (
            ("skill", "import", str(empty)),
            f"{empty} has no file SKILL.md. Name the folder that holds it.",
        ),
        (("skill", "import", str(folder)), f"{picture} is not UTF-8 text. Save it as UTF-8."),
        (
            ("skill", "import", str(missing)),
            f"{missing} cannot be read: No such file or directory.",
        ),
    ]
    for command, sentence in commands:
        done = shell.run(*command)
        assert (done.returncode, done.stderr) == (2, f"ricordo: {sentence}\n")


def test_a_skill_with_a_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the skill would replace the stored one without the files in that folder."""
    (tmp_path / "SKILL.md").write_text(skill_md("hi"))
    unread = tmp_path / "scripts"
    unread.mkdir()
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == unread:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Invalid, match=f"{unread} cannot be read: Permission denied."):
        import_skill(tmp_path, None, None, "http://127.0.0.1:1")
