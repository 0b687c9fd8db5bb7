"""Drop privileges by Linux system calls, through ctypes: Landlock, seccomp, namespaces, capabilities, limits.

Each call applies to the calling thread and to everything that it starts later, and cannot be undone. All raise OSError
if the kernel does not support them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 38, 24
_CAP_DAC_OVERRIDE = 1  # root in a container reads folders of other users by it; Landlock still rules
_LAST_CAP = 40

# Landlock (linux/landlock.h)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # version -> how many rights it knows
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

# Namespaces and mounts (linux/sched.h, linux/mount.h)
_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MOUNT_SETATTR, _AT_RECURSIVE, _RDONLY = 442, 0x8000, 1

# System calls that reach other machines, other processes or the kernel itself: number on x86_64, on aarch64.
_DENIED = {
    "socket": (41, 198),
    "connect": (42, 203),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "pidfd_getfd": (438, 438),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
}
_MACHINES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # column, AUDIT_ARCH, number of clone
_CLONE3, _SECCOMP = 435, {"x86_64": 317, "aarch64": 277}
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000


def _call(number: int, *arguments: object) -> int:
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, value: int, *, of: str) -> None:
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), f"{of}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, of="parent death signal")
    if os.getppid() != parent:
        os._exit(1)


def no_new_privileges() -> None:
    """Disallow privilege gains by exec, as Landlock and seccomp require."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, of="no new privileges")


def landlock_version() -> int:
    """Return the kernel's Landlock version, 0 without Landlock."""
    try:
        return _call(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def landlock(reads: Iterable[str], writes: Iterable[str]) -> None:
    """Leave only `reads` readable and `writes` writable; no TCP and no signals to others, if the version
    supports it.
    """
    version = landlock_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "no Landlock")
    rights = (1 << _FS_BITS.get(version, 16)) - 1
    words = [rights] + ([3] if version >= 4 else []) + ([3] if version >= 6 else [])
    attributes = struct.pack(f"<{len(words)}Q", *words)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for paths, allowed in ((reads, _READ), (writes, _WRITE)):
            for path in paths:
                _allow_beneath(ruleset, path, allowed & rights)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_beneath(ruleset: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        allowed &= ~0 if Path(path).is_dir() else _OF_FILES
        _call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", allowed, place), 0)
    finally:
        os.close(place)


def namespaces(writes: Iterable[str]) -> None:
    """Make the file system read-only except `writes`, and leave the network; used without Landlock."""
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEWUSER | _NEWNS | _NEWNET | _NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "no namespaces for this user")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    places = [path for path in writes if Path(path).exists()]
    for path in places:
        _mount(path, path, _MS_BIND)
    _set_mount("/", _AT_RECURSIVE, _RDONLY, 0)
    for path in places:
        _set_mount(path, 0, 0, _RDONLY)
    os.chdir(Path.cwd())  # into the writable mount over it


def _mount(source: str | None, target: str, flags: int) -> None:
    name = None if source is None else os.fsencode(source)
    if _LIBC.mount(name, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _set_mount(path: str, flags: int, on: int, off: int) -> None:
    attributes = struct.pack("<4Q", on, off, 0, 0)
    _call(_MOUNT_SETATTR, -100, os.fsencode(path), flags, attributes, len(attributes))


def drop_capabilities() -> None:
    """Drop root's capabilities beyond reading and writing files."""
    if os.geteuid() != 0:
        return
    for capability in range(_LAST_CAP + 1):
        if capability != _CAP_DAC_OVERRIDE:
            _LIBC.prctl(ctypes.c_int(_PR_CAPBSET_DROP), ctypes.c_ulong(capability), 0, 0, 0)
    kept = 1 << _CAP_DAC_OVERRIDE
    header, data = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", kept, kept, 0, 0, 0, 0)
    if _LIBC.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def seccomp() -> None:
    """Reject the system calls of `_DENIED` from now on."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    program = b"".join(struct.pack("<HBBI", *step) for step in _filter(*_MACHINES[machine]))
    buffer = ctypes.create_string_buffer(program)
    length = len(program) // 8
    head = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", length, ctypes.addressof(buffer)))
    # 4: no mitigation of speculation that would slow down whoever is measured here
    _call(_SECCOMP[machine], 1, 4, head)


def _filter(column: int, architecture: int, clone: int) -> list[tuple[int, int, int, int]]:
    load, equal, at_least, bits, give_back = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, no_such_call = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    steps = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (give_back, 0, 0, _KILL),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),
        (give_back, 0, 0, refuse),  # the x32 numbers
        (equal, 0, 1, _CLONE3),
        (give_back, 0, 0, no_such_call),  # its flags cannot be read; everybody falls back to clone
    ]
    for numbers in _DENIED.values():
        steps += [(equal, 0, 1, numbers[column]), (give_back, 0, 0, refuse)]
    steps += [(equal, 0, 3, clone), (load, 0, 0, 16), (bits, 0, 1, _NEWUSER), (give_back, 0, 0, refuse)]
    return [*steps, (give_back, 0, 0, _ALLOW)]


def limits(memory_bytes: int, cpu_s: int, processes: int) -> None:
    """Limit memory (per process), CPU time, file size, and the user's processes and threads."""
    # Private memory that can be written counts, not address space: runtimes reserve far more than they use.
    for what, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, memory_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (bound, bound))
