"""How a process is confined: by bubblewrap, by Landlock and seccomp, or not at all where the operator said so.

A backend makes the command line of the first program in the sandbox, `launcher.py`, which receives later what differs by call.
"""

import base64
import json
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from ricordo.features.sandbox.launcher import landlock_abi
from ricordo.features.sandbox.options import UNSAFE
from ricordo.features.sandbox.seccomp import is_known_machine, make_filter

_LAUNCHER = Path(__file__).with_name("launcher.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
# Of the machine's settings: how libraries are found, certificates, time zones, fonts and types of files. No users, no hosts.
_SETTINGS = (
    *(
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/ssl",
        "/etc/ca-certificates",
        "/etc/pki",
        "/etc/localtime",
    ),
    *("/etc/mime.types", "/etc/fonts", "/etc/nsswitch.conf"),
)
_DEVICES = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_WORKSPACE = "/sandbox"
# Users that exist nowhere: each process of a root's server runs as another one, so that it owns nothing and its processes count.
_USERS = range(1 << 30, 1 << 31)


BackendName = Literal["bubblewrap", "landlock", "none"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process is started with, and cannot change later.

    `python` is the interpreter it starts with, `sees_packages` whether that finds the packages of its environment; `workspace_mb`
    the size of a workspace in memory.
    """

    python: Path
    sees_packages: bool = False
    readable: tuple[Path, ...] = ()
    has_sockets: bool = False
    workspace_mb: int = 100

    def command(self, options: dict[str, Any]) -> list[str]:
        flags = ["-I"] if self.sees_packages else ["-I", "-S"]
        return [str(self.python), *flags, "-X", "utf8", "-c", _launcher(), json.dumps(options)]

    def visible(self) -> list[Path]:
        """Everything besides the system that can be read: environments, their interpreters, and what the call names."""
        return [*self.readable, *places_of(self.python)]


class Backend(Protocol):
    """A way to confine a process. `is_shared`: it sees the machine's processes, and its workspace is a folder."""

    name: BackendName
    is_shared: bool
    has_network: bool

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        """Return the command line. `channels` are open files for the launcher, and `user` among them is whom it becomes."""

    def filter_of(self, confinement: Confinement) -> bytes:
        """Return what the command reads from its open file `filter`."""


class Bubblewrap:
    """Namespaces by the program bwrap: nothing of the machine is seen but what is bound, read-only."""

    name: BackendName = "bubblewrap"
    is_shared = False
    has_network = True

    def __init__(self, program: str, data_dir: Path) -> None:
        self._program = program
        self._data_dir = data_dir

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        is_root = os.geteuid() == 0
        made = [
            self._program,
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        # A root's process changes its user inside, so that limits on processes hold and folders above an environment do not matter.
        made += (
            ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            if is_root
            else ["--unshare-user"]
        )
        made += [
            "--die-with-parent",
            "--new-session",
            "--hostname",
            "sandbox",
            "--seccomp",
            str(filter),
        ]
        for path in _SYSTEM:
            if Path(path).is_symlink():
                made += ["--symlink", os.readlink(path), path]
            else:
                made += ["--ro-bind-try", path, path]
        made += ["--perms", "0755", "--dir", "/etc"]
        for path in _SETTINGS:
            made += ["--ro-bind-try", path, path]
        size = str(confinement.workspace_mb * 2**20)
        made += ["--proc", "/proc", "--dev", "/dev"]
        for path in ("/dev/shm", "/tmp", _WORKSPACE):  # noqa: S108
            made += ["--perms", "1777", "--size", size, "--tmpfs", path]
        visible = _outermost_first(confinement.visible())
        kept = [
            path for path in visible if path != self._data_dir and _is_inside(path, self._data_dir)
        ]
        made += _bound(path for path in visible if path not in kept)
        is_hidden = any(
            _is_inside(self._data_dir, path) for path in (*map(Path, _SYSTEM), *visible)
        )
        if is_hidden:
            made += ["--perms", "0755", "--size", "65536", "--tmpfs", str(self._data_dir)]
        made += _bound(kept)
        made += ["--remount-ro", str(self._data_dir)] if is_hidden else []
        made += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _WORKSPACE, "--"]
        return [*made, *confinement.command(channels)]

    def filter_of(self, confinement: Confinement) -> bytes:
        return make_filter(is_shared=False, has_sockets=confinement.has_sockets)


class Landlock:
    """Landlock for files and seccomp for system calls, which need no helper and no right; there is no network at all."""

    name: BackendName = "landlock"
    is_shared = True
    has_network = False

    def __init__(self, abi: int) -> None:
        self._abi = abi

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        read = [*_SYSTEM, *_SETTINGS, *_DEVICES, *map(str, confinement.visible())]
        options: dict[str, Any] = {**channels, "abi": self._abi, "read": read}
        options |= {"write": [str(workspace), "/dev/null"]}
        # Before its version 6 Landlock lets signals out; only another user's do not reach the server.
        may_signal = self._abi >= 6 or bool(options["user"])
        program = make_filter(is_shared=True, may_signal=may_signal)
        return confinement.command({**options, "filter": base64.b64encode(program).decode()})

    def filter_of(self, confinement: Confinement) -> bytes:
        return b""


class NoSandbox:
    """A plain process, watched over and with limits; the operator chose it by its name."""

    name: BackendName = "none"
    is_shared = True
    has_network = True

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        return confinement.command({**channels, "user": 0, "abi": 0, "filter": ""})

    def filter_of(self, confinement: Confinement) -> bytes:
        return b""


def candidates(wanted: str, data_dir: Path) -> list[Backend]:
    """The backends that this setting allows and this machine seems to have, the best first."""
    if wanted == UNSAFE:
        return [NoSandbox()]
    found: list[Backend] = []
    if sys.platform != "linux" or not is_known_machine():
        return found
    program = shutil.which("bwrap")
    if program and wanted in ("auto", "bubblewrap"):
        found.append(Bubblewrap(program, data_dir))
    # Before its version 3 Landlock lets files be cut to nothing.
    if (abi := landlock_version()) >= 3 and wanted in ("auto", "landlock"):
        found.append(Landlock(abi))
    return found


def why_none(wanted: str, tried: Mapping[str, str] = MappingProxyType({})) -> str:
    """The sentence for who runs a server on which no backend works; `tried` is how those failed that seemed to be there."""
    if sys.platform != "linux" or not is_known_machine():
        return (
            f"Code cannot be run here: the sandbox needs Linux on x86_64 or aarch64, and this is {sys.platform} on "
            f"{platform.machine()}. Run the server in a container, for example."
        )
    missing = {
        "bubblewrap": "is not installed",
        "landlock": "needs Linux 6.2 or newer with lsm=landlock",
    }
    reasons = " and ".join(
        f"{name} {tried.get(name, reason)}"
        for name, reason in missing.items()
        if wanted in ("auto", name)
    )
    return (
        f"Code cannot be run here: {reasons}. Install bubblewrap (apt-get install bubblewrap) with RICORDO_SANDBOX=auto, and allow "
        "user namespaces (in a container, with --security-opt seccomp=unconfined). See docs/agents/sandbox.md."
    )


def exposed(confinement: Confinement, data_dir: Path) -> Path | None:
    """The folder that can be read and holds the data folder, which Landlock cannot leave out."""
    visible = (*map(Path, _SYSTEM), *confinement.visible())
    return next((path for path in visible if _is_inside(data_dir, path)), None)


@cache
def landlock_version() -> int:
    """The version of Landlock that the kernel offers, 0 for none."""
    try:
        return landlock_abi()
    except OSError:
        return 0


def places_of(python: Path) -> list[Path]:
    """The folders that an interpreter needs: its environment's, and its own installation's."""
    made = python.absolute().parent.parent
    found = [made]
    with_home = made / "pyvenv.cfg"
    if with_home.is_file():
        settings = dict(
            line.partition(" = ")[::2] for line in with_home.read_text("utf-8").splitlines()
        )
        found.append(Path(settings.get("home", "/usr/bin")).resolve().parent)
    found.append(python.resolve().parent.parent)
    return [
        path
        for path in dict.fromkeys(found)
        if not any(_is_inside(path, Path(system)) for system in _SYSTEM)
    ]


@cache
def _launcher() -> str:
    return _LAUNCHER.read_text("utf-8")


def some_user() -> int:
    """A user for a process of a root's server; 0 where the server is an ordinary user's."""
    return secrets.choice(_USERS) if os.geteuid() == 0 else 0


def _outermost_first(paths: Iterable[Path]) -> Sequence[Path]:
    return sorted(dict.fromkeys(paths), key=lambda path: len(path.parts))


def _bound(paths: Iterable[Path]) -> list[str]:
    """The options that show these paths read-only; the folders above them would be root's alone."""
    made: list[str] = []
    for path in paths:
        for above in reversed(path.parents[:-1]):
            made += ["--perms", "0755", "--dir", str(above)]
        made += ["--ro-bind", str(path), str(path)]
    return made


def _is_inside(path: Path, folder: Path) -> bool:
    return folder in (path, *path.parents)
