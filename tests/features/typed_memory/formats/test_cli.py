"""`ricordo schema`: checking schemas and the blocks that name them; an error exits with 1."""

import httpx2

from ricordo.memory.schemas import FOLDER
from tests.cli.conftest import Shell

PUPIL = 'title = "Pupil"\n[fields.name]\nrequired = true\n[fields.age]\nkind = "integer"\n'


def test_the_schema_command_checks_schemas_and_their_blocks(shell: Shell) -> None:
    folder = shell.data / FOLDER
    folder.mkdir(parents=True)
    (folder / "pupil.toml").write_text(PUPIL)
    assert shell.run("schema", "list").stdout == "pupil  Pupil (2 fields)\n"
    bare = shell.run("schema", "check")
    assert (bare.returncode, bare.stdout) == (0, "1 schema, 0 blocks with a schema: all well.\n")

    with shell.serving() as server:
        for label, body in (
            ("good", "## Name\nAda"),
            ("new", None),
            ("bad", "## Name\nAda\n## Age\nten"),
        ):
            sent = {"schema_ref": "pupil", **({"body": body} if body else {})}
            made = httpx2.put(
                f"{server.address}/users/ada/blocks/{label}", json=sent, trust_env=False
            )
            assert made.status_code == 200, made.text
        beside = shell.run("schema", "check")
    assert beside.returncode == 1
    assert 'Block "new" of user ada is incomplete: ' in beside.stdout
    assert (
        'Block "bad" of user ada does not follow the schema "pupil":\n  Line 4: ' in beside.stdout
    )
    assert beside.stdout.endswith("1 schema, 3 blocks with a schema: 1 problem.\n")

    (folder / "pupil.toml").write_text('title = ""\n')
    broken = shell.run("schema", "check")
    assert broken.returncode == 1
    assert f"{FOLDER}/pupil.toml" in broken.stdout
    assert (
        'Block "good" of user ada names the schema "pupil", which cannot be used.' in broken.stdout
    )
    (folder / "pupil.toml").unlink()
    assert (
        'names the schema "pupil", which is not in the data folder.'
        in shell.run("schema", "check").stdout
    )


def test_schema_files_outside_the_data_folder_can_be_checked(shell: Shell) -> None:
    good, torn = shell.folder / "good.toml", shell.folder / "torn.toml"
    good.write_text(PUPIL)
    torn.write_text("[fields.name]\nkind = 5\n")
    assert (shell.run("schema", "check", str(good)).returncode, shell.data.exists()) == (0, False)
    answer = shell.run("schema", "check", str(good), str(torn), str(shell.folder / "gone.toml"))
    assert answer.returncode == 1
    assert f"{torn}: line 2" in answer.stdout.replace("Line", "line")
    assert "gone.toml cannot be read" in answer.stdout
