"""A seccomp filter that forbids system calls in the sandbox. The functions are pure.

It refuses access to other processes, mounts, namespaces, services of the kernel, and sockets that
lead outside. A call that is newer than this list is refused as unknown.
"""

import errno
import platform
import struct

# The number of each call on x86_64 and on aarch64; -1 if there is no such call.
_REFUSED = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    # mounts, namespaces, handles of files
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # services of the kernel
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "syslog": (103, 116),
    "personality": (135, 92),
    "modify_ldt": (154, -1),
    "vmsplice": (278, 75),
    "remap_file_pages": (216, 234),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "memfd_create": (319, 279),  # memory that no limit for processes counts
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "vhangup": (153, 58),
}
# Calls that reach other processes and files of the same user if there is no process namespace.
_SHARED = {
    "sched_setaffinity": (203, 122),
    "truncate": (76, 45),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
}
# System calls that succeed without effect. Landlock does not protect the modes, owners and times of
# files. A process that left its group would outlive the call.
_WITHOUT_EFFECT = {
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "utimensat": (280, 88),
    "futimesat": (261, -1),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_SIGNALS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_IOCTL = (16, 29)
_PRLIMIT = (302, 261)
_NEWEST = 462  # the newest call that was examined (mseal, Linux 6.10)
_NAMESPACES = 0x7E020080  # CLONE_NEW* flags, including the one for time
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_STREAM = 1
_TYPE_BITS = 0xF

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# Instructions of the classic Berkeley packet filter.
_LOAD = 0x20
_AND = 0x54
_EQUAL = 0x15
_ANY_BIT = 0x45
_ABOVE = 0x25
_RETURN = 0x06
# Results of the filter.
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_KILL = 0x80000000
# Offsets in struct seccomp_data. The offset of an argument is that of its lower half.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT = (16, 24, 32)


def is_known_machine() -> bool:
    """Return True if this machine's system call numbers are known."""
    return platform.machine() in _ARCHITECTURES


def make_filter(*, is_shared: bool, may_signal: bool = True, has_sockets: bool = False) -> bytes:
    """Return the program of the filter.

    Args:
        is_shared: The program sees the machine's processes and network, as under Landlock.
        may_signal: The program may send signals, since the kernel keeps them inside. This matters
            only with `is_shared`.
        has_sockets: The program may open internet sockets, in its separate network namespace.
    """
    column, architecture = _ARCHITECTURES[platform.machine()]
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]

    def refuse(calls: dict[str, tuple[int, int]], error: int) -> None:
        for numbers in calls.values():
            if numbers[column] >= 0:
                steps.extend((_step(_EQUAL, numbers[column], 0, 1), _step(_RETURN, _ERROR | error)))

    def check(call: tuple[int, int], argument: int, *tests: bytes) -> None:
        """Decide on this call by these tests; if none decides, it is permitted."""
        body = [_step(_LOAD, _ARGUMENT[argument]), *tests, _step(_RETURN, _ALLOW)]
        steps.extend((_step(_EQUAL, call[column], 0, len(body)), *body))

    refused = _step(_RETURN, _ERROR | errno.EPERM)
    refuse(_REFUSED, errno.EPERM)
    # The flags of this call are in memory, where a filter cannot read them. The C library works
    # without the call.
    refuse({"clone3": _CLONE3}, errno.ENOSYS)
    if is_shared:
        refuse(_SHARED, errno.EPERM)
        refuse(_WITHOUT_EFFECT, 0)
        if not may_signal:
            refuse(_SIGNALS, errno.EPERM)
        check(_PRLIMIT, 0, _step(_EQUAL, 0, 1, 0), refused)
        # A pair of datagram sockets could send to any socket of the machine that has a path.
        check(_SOCKETPAIR, 1, _step(_AND, _TYPE_BITS), _step(_EQUAL, _STREAM, 1, 0), refused)
    check(_CLONE, 0, _step(_ANY_BIT, _NAMESPACES, 0, 1), refused)
    check(_IOCTL, 1, _step(_EQUAL, _TIOCSTI, 1, 0), _step(_EQUAL, _TIOCLINUX, 0, 1), refused)
    families = [] if is_shared else [_AF_UNIX]
    if has_sockets:
        families += [_AF_INET, _AF_INET6]
    allowed = [
        _step(_EQUAL, family, len(families) - number, 0) for number, family in enumerate(families)
    ]
    check(_SOCKET, 0, *allowed, _step(_RETURN, _ERROR | errno.EACCES))
    steps += [
        _step(_ABOVE, _NEWEST, 0, 1),
        _step(_RETURN, _ERROR | errno.ENOSYS),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, operand: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, operand)
