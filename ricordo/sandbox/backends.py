"""Ways to confine a process: bubblewrap, Landlock with seccomp, or none.

A process runs unconfined only if the operator chose this. A backend makes the command line of the
first program in the sandbox, `launcher.py`. That program later receives the details of a call.
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

from ricordo.sandbox.launcher import landlock_abi
from ricordo.sandbox.options import UNSAFE
from ricordo.sandbox.seccomp import is_known_machine, make_filter

_LAUNCHER = Path(__file__).with_name("launcher.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
# Parts of the machine's settings that are visible: library paths, certificates, time zone, fonts
# and file types. Users and hosts are not visible.
_SETTINGS = (
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/etc/pki",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/fonts",
    "/etc/nsswitch.conf",
)
_DEVICES = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_WORKSPACE = "/sandbox"
# User numbers that no machine uses. If root runs the server, each process gets a separate user that
# owns nothing. So the limit on processes counts only the processes of one call.
_USERS = range(1 << 30, 1 << 31)
BackendName = Literal["bubblewrap", "landlock", "none"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """The fixed conditions of a process, which are set at its start.

    Attributes:
        python: Its interpreter.
        sees_packages: The interpreter finds the packages of its environment.
        readable: Folders that it can read, at their paths.
        has_sockets: It may open network sockets, which lead to the proxy only.
        workspace_mb: The size of a workspace in memory, in MiB.
    """

    python: Path
    sees_packages: bool = False
    readable: tuple[Path, ...] = ()
    has_sockets: bool = False
    workspace_mb: int = 100

    def command(self, options: dict[str, Any]) -> list[str]:
        """Return the command line of the launcher in this interpreter.

        Args:
            options: The launcher's options, as JSON: the descriptors, and the options of the
                backend.
        """
        flags = ["-I"] if self.sees_packages else ["-I", "-S"]
        return [str(self.python), *flags, "-X", "utf8", "-c", _launcher(), json.dumps(options)]

    def visible(self) -> list[Path]:
        """Return the readable folders other than the system's.

        They are the call's folders, and the folders of the interpreter and its environment.
        """
        return [*self.readable, *places_of(self.python)]


class Backend(Protocol):
    """A way to confine a process.

    Attributes:
        is_shared: The process sees the machine's processes, and its workspace is on disk.
        has_network: The process can have a network, if the call asks for it.
    """

    name: BackendName
    is_shared: bool
    has_network: bool

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        """Return the command line of the launcher.

        Args:
            confinement: The fixed conditions of the process.
            channels: The launcher's open descriptors by name: `control`, `answer` and, with a
                workspace on disk, `life` and `status`. The key `user` is no descriptor: it is the
                number of the user that the process becomes, or 0 for no change.
            filter: The descriptor from which the content of `filter_of` can be read.
            workspace: The process's workspace, if `is_shared`; otherwise it has no meaning.
        """

    def filter_of(self, confinement: Confinement) -> bytes:
        """Return the content of the file that `command` gets open as `filter`.

        Args:
            confinement: The fixed conditions of the process.
        """


class Bubblewrap:
    """Namespaces, made by the program bwrap.

    Of the machine's files only bound paths are visible, and they are read-only.
    """

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
        arguments = [
            self._program,
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        # If root runs the server, the process changes its user inside. Then limits on processes
        # hold, and folders above an environment can be passed whatever their permissions are.
        if is_root:
            arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            arguments += ["--unshare-user"]
        arguments += [
            "--die-with-parent",
            "--new-session",
            "--hostname",
            "sandbox",
            "--seccomp",
            str(filter),
        ]
        for path in _SYSTEM:
            if Path(path).is_symlink():
                arguments += ["--symlink", os.readlink(path), path]
            else:
                arguments += ["--ro-bind-try", path, path]
        arguments += ["--perms", "0755", "--dir", "/etc"]
        for path in _SETTINGS:
            arguments += ["--ro-bind-try", path, path]
        size = str(confinement.workspace_mb * 2**20)
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for path in ("/dev/shm", "/tmp", _WORKSPACE):  # noqa: S108
            arguments += ["--perms", "1777", "--size", size, "--tmpfs", path]
        visible = _outermost_first(confinement.visible())
        inside_data_dir = [
            path for path in visible if path != self._data_dir and _is_inside(path, self._data_dir)
        ]
        arguments += _bound(path for path in visible if path not in inside_data_dir)
        is_hidden = any(
            _is_inside(self._data_dir, path) for path in (*map(Path, _SYSTEM), *visible)
        )
        if is_hidden:
            arguments += ["--perms", "0755", "--size", "65536", "--tmpfs", str(self._data_dir)]
        arguments += _bound(inside_data_dir)
        if is_hidden:
            arguments += ["--remount-ro", str(self._data_dir)]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _WORKSPACE, "--"]
        return [*arguments, *confinement.command(channels)]

    def filter_of(self, confinement: Confinement) -> bytes:
        return make_filter(is_shared=False, has_sockets=confinement.has_sockets)


class Landlock:
    """Landlock for files and seccomp for system calls, without any network.

    They need no helper program and no special right.
    """

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
        # Landlock confines signals from version 6 on. Before that, the server is safe from signals
        # only if the process runs as another user.
        may_signal = self._abi >= 6 or bool(options["user"])
        program = make_filter(is_shared=True, may_signal=may_signal)
        return confinement.command({**options, "filter": base64.b64encode(program).decode()})

    def filter_of(self, confinement: Confinement) -> bytes:
        return b""


class NoSandbox:
    """A plain process with limits and a watcher. It is used only if the operator chooses it."""

    name: BackendName = "none"
    is_shared = True
    has_network = True

    def command(
        self, confinement: Confinement, channels: dict[str, int], filter: int, workspace: Path
    ) -> list[str]:
        return confinement.command({**channels, "user": 0, "abi": 0, "filter": ""})

    def filter_of(self, confinement: Confinement) -> bytes:
        return b""


def candidates(setting: str, data_dir: Path) -> list[Backend]:
    """Return the allowed backends that this machine seems to support, the best first.

    Args:
        setting: The value of RICORDO_SANDBOX.
        data_dir: The data folder, which no program may see.
    """
    if setting == UNSAFE:
        return [NoSandbox()]
    backends: list[Backend] = []
    if sys.platform != "linux" or not is_known_machine():
        return backends
    program = shutil.which("bwrap")
    if program and setting in ("auto", "bubblewrap"):
        backends.append(Bubblewrap(program, data_dir))
    # Landlock prevents the truncation of files from version 3 on.
    if (abi := landlock_version()) >= 3 and setting in ("auto", "landlock"):
        backends.append(Landlock(abi))
    return backends


def why_none(setting: str, tried: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the error message for the operator of a machine without a working backend.

    Args:
        setting: The value of RICORDO_SANDBOX.
        tried: The failures of the backends that seemed to be supported, by the backend's name, each
            as the end of a sentence.
    """
    if sys.platform != "linux" or not is_known_machine():
        return (
            "Code cannot be run here: the sandbox needs Linux on x86_64 or aarch64, and this is "
            f"{sys.platform} on {platform.machine()}. Run the server in a container, for example."
        )
    missing = {
        "bubblewrap": "is not installed",
        "landlock": "needs Linux 6.2 or newer with lsm=landlock",
    }
    reasons = " and ".join(
        f"{name} {tried.get(name, reason)}"
        for name, reason in missing.items()
        if setting in ("auto", name)
    )
    return (
        f"Code cannot be run here: {reasons}. Install bubblewrap (apt-get install bubblewrap) with "
        "RICORDO_SANDBOX=auto, and allow user namespaces (in a container, with --security-opt "
        "seccomp=unconfined). See docs/agents/sandbox.md."
    )


def exposed(confinement: Confinement, data_dir: Path) -> Path | None:
    """Return a readable folder that contains the data folder; None if there is none.

    Such a folder is refused, since Landlock could not exclude the data folder from it.

    Args:
        confinement: The fixed conditions of a process.
        data_dir: The data folder of the server.
    """
    visible = (*map(Path, _SYSTEM), *confinement.visible())
    return next((path for path in visible if _is_inside(data_dir, path)), None)


@cache
def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers, 0 for none."""
    try:
        return landlock_abi()
    except OSError:
        return 0


def places_of(python: Path) -> list[Path]:
    """Return the folders of an interpreter's environment and its installation.

    Args:
        python: The path of the interpreter, perhaps a link in a virtual environment. Folders of the
            system are left out.
    """
    environment = python.absolute().parent.parent
    folders = [environment]
    config_file = environment / "pyvenv.cfg"
    if config_file.is_file():
        settings = dict(
            line.partition(" = ")[::2] for line in config_file.read_text("utf-8").splitlines()
        )
        folders.append(Path(settings.get("home", "/usr/bin")).resolve().parent)
    folders.append(python.resolve().parent.parent)
    return [
        path
        for path in dict.fromkeys(folders)
        if not any(_is_inside(path, Path(system)) for system in _SYSTEM)
    ]


@cache
def _launcher() -> str:
    return _LAUNCHER.read_text("utf-8")


def some_user() -> int:
    """Return an unused user number if root runs the server, else 0."""
    if os.geteuid() == 0:
        return secrets.choice(_USERS)
    return 0


def _outermost_first(paths: Iterable[Path]) -> Sequence[Path]:
    return sorted(dict.fromkeys(paths), key=lambda path: len(path.parts))


def _bound(paths: Iterable[Path]) -> list[str]:
    """Return bubblewrap's options that make these paths visible, read-only.

    The folders above them are created readable, because otherwise only root could pass them.
    """
    arguments: list[str] = []
    for path in paths:
        for parent in reversed(path.parents[:-1]):
            arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _is_inside(path: Path, folder: Path) -> bool:
    return folder in (path, *path.parents)
