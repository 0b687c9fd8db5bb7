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
import struct
from collections.abc import Iterable
from pathlib import Path

from tvmflow.sandbox.allowed_calls import MACHINES, filter_for

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 38, 24, 36
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
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x1000, 0x4000, 0x40000
_MOUNT_SETATTR, _AT_RECURSIVE, _RDONLY, _NOSUID, _MNT_DETACH = 442, 0x8000, 1, 2, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_SECCOMP = {"x86_64": 317, "aarch64": 277}


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


def signal_when_parent_dies(parent: int | None, number: int) -> None:
    """Ask the kernel for a signal when the parent ends. parent: its id; None if this process cannot see it."""
    _prctl(_PR_SET_PDEATHSIG, number, of="parent death signal")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_descendants() -> None:
    """Become the parent of all descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, of="child subreaper")


def no_new_privileges() -> None:
    """Disallow privilege gains by exec, as Landlock and seccomp require."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, of="no new privileges")


def landlock_version() -> int:
    """Return the kernel's Landlock version, 0 without Landlock."""
    try:
        return _call(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def landlock(reads: Iterable[str], writes: Iterable[str], lists: Iterable[str] = ()) -> None:
    """Leave only `reads` readable, `writes` writable, and folders below `lists` to be listed; no TCP and no signals to
    others, if the version supports it.
    """
    version = landlock_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "no Landlock")
    rights = (1 << _FS_BITS.get(version, 16)) - 1
    words = [rights] + ([3] if version >= 4 else []) + ([3] if version >= 6 else [])
    attributes = struct.pack(f"<{len(words)}Q", *words)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for paths, allowed in ((lists, _READ_DIR), (reads, _READ), (writes, _WRITE)):
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


def enter_namespaces() -> None:
    """Leave the network, IPC and mounts of the user; processes started from now on see only each other."""
    flags, user, group = _NEWNS | _NEWPID | _NEWIPC | _NEWNET, os.getuid(), os.getgid()
    if os.geteuid() == 0 and _LIBC.unshare(flags) == 0:  # root keeps the files of other users, as without namespaces
        pass
    elif _LIBC.unshare(flags | _NEWUSER) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    else:
        raise OSError(ctypes.get_errno(), "no namespaces for this user")
    _mount(None, "/", _MS_REC | _MS_PRIVATE)


def change_root(root: str, reads: Iterable[str], writes: Iterable[str]) -> None:
    """Make an empty folder the root, with these files and folders at their places; only `writes` can be changed."""
    here, places = str(Path.cwd()), list(writes)
    _mount("tmpfs", root, _MS_NOSUID, kind="tmpfs")
    paths = {*reads, *places}
    for path in [*sorted({str(Path(path).resolve()) for path in paths}), *sorted(paths)]:  # what links lead to first
        _place(root, path)
    places = [path for path in places if Path(root + path).exists()]
    for path in places:
        _mount(path, root + path, _MS_BIND)
    _set_mount(root, _AT_RECURSIVE, _RDONLY | _NOSUID, 0)
    for path in places:
        _set_mount(root + path, 0, 0, _RDONLY)
    os.chdir(root)
    _call(_PIVOT_ROOT[platform.machine()], b".", b".")
    if _LIBC.umount2(b".", _MNT_DETACH) != 0:  # the old root, which lies over the new one
        raise OSError(ctypes.get_errno(), "the old root stays")
    os.chdir(here)


def _place(root: str, path: str) -> None:
    """Show a file, folder or link of the old root in the new one, and what lies below, unless it is there already."""
    source, target = Path(path), Path(root + path)
    if not source.exists() or target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path == "/proc":
        target.mkdir()
        try:
            _mount("proc", str(target), _MS_NOSUID, kind="proc")
            return
        except OSError:  # in a container that hides parts of it
            pass
    elif source.is_symlink():
        target.symlink_to(source.readlink())
        return _place(root, str(source.resolve()))
    elif source.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(path, str(target), _MS_BIND | _MS_REC)


def _mount(source: str | None, target: str, flags: int, kind: str | None = None) -> None:
    name, system = (None if text is None else os.fsencode(text) for text in (source, kind))
    if _LIBC.mount(name, os.fsencode(target), system, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _set_mount(path: str, flags: int, on: int, off: int) -> None:
    attributes = struct.pack("<4Q", on, off, 0, 0)
    _call(_MOUNT_SETATTR, -100, os.fsencode(path), flags, attributes, len(attributes))


def drop_capabilities() -> None:
    """Drop root's capabilities beyond reading and writing files, and all of another user's in its own namespaces."""
    is_root = os.geteuid() == 0
    for capability in range(_LAST_CAP + 1):
        if capability != _CAP_DAC_OVERRIDE or not is_root:
            _LIBC.prctl(ctypes.c_int(_PR_CAPBSET_DROP), ctypes.c_ulong(capability), 0, 0, 0)
    kept = 1 << _CAP_DAC_OVERRIDE if is_root else 0
    header, data = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", kept, kept, 0, 0, 0, 0)
    if _LIBC.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def seccomp(only_own_signals: int | None = None) -> None:
    """Refuse all system calls but those of `allowed_calls` from now on."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    program = b"".join(struct.pack("<HBBI", *step) for step in filter_for(machine, only_own_signals))
    buffer = ctypes.create_string_buffer(program)
    length = len(program) // 8
    head = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", length, ctypes.addressof(buffer)))
    # 4: no mitigation of speculation that would slow down whoever is measured here
    _call(_SECCOMP[machine], 1, 4, head)


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
