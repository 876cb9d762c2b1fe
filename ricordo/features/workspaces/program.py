"""Runs in the sandbox: lays the files of a workspace down, runs the command there, and sends back what it changed.

Standard input and the answer on descriptor 3 have the form of `exchange.py`; this module imports nothing of the server.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ANSWER = 3


def main() -> None:
    """Run the command, and answer with its exit code, the files it changed, and the paths it deleted."""
    source = sys.stdin.buffer
    command = json.loads(source.readline())["command"]
    home = Path("home").absolute()
    home.mkdir()
    before: dict[str, str] = {}
    while line := source.readline():
        told = json.loads(line)
        data = source.read(told["size"])
        path = home / told["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        before[told["path"]] = hashlib.sha256(data).hexdigest()
    environment = {**os.environ, "HOME": str(home), "PWD": str(home)}
    argv = ["sh", "-c", command]
    done = subprocess.run(argv, cwd=home, env=environment, stdin=subprocess.DEVNULL, check=False)  # noqa: S603 - that is asked
    changed = []
    left_out = []
    seen = set()
    for path in sorted(home.rglob("*")):  # which follows no links
        short = path.relative_to(home).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            left_out.append(short)
        elif path.is_file():
            seen.add(short)
            data = path.read_bytes()
            if before.get(short) != hashlib.sha256(data).hexdigest():
                changed.append((short, data))
    deleted = [path for path in before if path not in seen]
    with os.fdopen(ANSWER, "wb") as answer:
        header = {"exit_code": done.returncode, "deleted": deleted, "left_out": left_out}
        answer.write(json.dumps(header).encode() + b"\n")
        for short, data in changed:
            answer.write(json.dumps({"path": short, "size": len(data)}).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
