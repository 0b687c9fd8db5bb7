"""List the system calls that a sandbox may make, as a seccomp filter; every other call is answered with "not there".

Each entry is NAME:NUMBER:NUMBER, on x86_64 and on aarch64, -1 where there is none. No call here opens a socket, changes
modes, owners, times or attributes of files, makes links or devices, shares memory beyond forks, or changes namespaces.
"""

from __future__ import annotations

import errno

_ALLOWED = """
    read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 close:3:57
    close_range:436:436 stat:4:-1 fstat:5:80 lstat:6:-1 newfstatat:262:79 statx:332:291 access:21:-1 faccessat:269:48
    faccessat2:439:439 lseek:8:62 getdents:78:-1 getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 rmdir:84:-1
    unlink:87:-1 unlinkat:263:35 rename:82:-1 renameat:264:38 renameat2:316:276 readlink:89:-1 readlinkat:267:78
    truncate:76:45 ftruncate:77:46 fallocate:285:47 fsync:74:82 fdatasync:75:83 fadvise64:221:223
    copy_file_range:326:285 sendfile:40:71 dup:32:23 dup2:33:-1 dup3:292:24 fcntl:72:25 flock:73:32 umask:95:166
    statfs:137:43 fstatfs:138:44 poll:7:-1 ppoll:271:73 select:23:-1 pselect6:270:72 epoll_create:213:-1
    epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:-1 epoll_pwait:281:22 eventfd:284:-1 eventfd2:290:19
    pipe:22:-1 pipe2:293:59 recvfrom:45:207 shutdown:48:210 getsockname:51:204 getpeername:52:205 getsockopt:55:209
    setsockopt:54:208 mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214 msync:26:227
    mbind:237:235 get_mempolicy:239:236 set_mempolicy:238:237 membarrier:324:283 fork:57:-1 vfork:58:-1 execve:59:221
    exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 futex:202:98 set_tid_address:218:96 set_robust_list:273:99
    rseq:334:293 gettid:186:178 getpid:39:172 getppid:110:173 getpgid:121:155 getpgrp:111:-1 getsid:124:156
    setpgid:109:154 setsid:112:157 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139
    rt_sigtimedwait:128:137 sigaltstack:131:132 restart_syscall:219:128 sched_getaffinity:204:123
    sched_setaffinity:203:122 sched_yield:24:124 sched_getparam:143:121 sched_getscheduler:145:120
    sched_get_priority_max:146:125 sched_get_priority_min:147:126 getpriority:140:141 getcpu:309:168 prctl:157:167
    arch_prctl:158:-1 getrlimit:97:163 setrlimit:160:164 getrusage:98:165 uname:63:160 sysinfo:99:179 getuid:102:174
    geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148 getresgid:120:150
    clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169
    time:201:-1 getrandom:318:278
"""
# Calls of which some arguments are refused: one of a file's mode (setuid, setgid), of ioctl (typing into a terminal),
# of a process (others), of clone (namespaces), of sockets (datagrams, which have an address).
_MODES = {"open:2:-1": 2, "openat:257:56": 3, "creat:85:-1": 1, "mkdir:83:-1": 1, "mkdirat:258:34": 2}
_SIGNALS = ("kill:62:129", "tkill:200:130", "tgkill:234:131")
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_NEW_NAMESPACES, _SPECIAL_MODES, _STREAM, _SOCKET_TYPES = 0x7E020000, 0o6000, 1, 0xF
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column of the tables, AUDIT_ARCH
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_REFUSE, _NOT_THERE = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
# Instructions of BPF
_LOAD, _EQUAL, _AT_LEAST, _BITS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
Step = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def filter_for(machine: str, only_own_signals: int | None = None) -> list[Step]:
    """Return the filter of a machine of `MACHINES`. only_own_signals: the process to which signals may go, None for all
    that it sees.
    """
    column, architecture = MACHINES[machine]
    steps: list[Step] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    steps += _conditions(column, only_own_signals)
    for first, last in _ranges(sorted(_numbers(column))):
        steps += [(_AT_LEAST, 0, 2, first), (_AT_LEAST, 1, 0, last + 1), (_RETURN, 0, 0, _ALLOW)]
    return [*steps, (_RETURN, 0, 0, _NOT_THERE)]


def _numbers(column: int) -> set[int]:
    return {number for entry in _ALLOWED.split() if (number := int(entry.split(":")[column])) >= 0}


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _conditions(column: int, only_own_signals: int | None) -> list[Step]:
    """Return the steps of calls of which some are refused."""
    steps: list[Step] = []
    for entry, place in _MODES.items():
        steps += _unless(entry, column, [(_LOAD, 0, 0, _low(place)), (_BITS, 0, 1, _SPECIAL_MODES)])
    terminal = [(_LOAD, 0, 0, _low(1)), (_EQUAL, 1, 0, _TERMINAL[0]), (_EQUAL, 0, 1, _TERMINAL[1])]
    steps += _unless("ioctl:16:29", column, terminal)
    for entry in _SIGNALS:
        own = [] if only_own_signals is None else [(_LOAD, 0, 0, _low(0)), (_EQUAL, 1, 0, only_own_signals)]
        steps += _unless(entry, column, own)
    steps += _unless("prlimit64:302:261", column, [(_LOAD, 0, 0, _low(0)), (_EQUAL, 1, 0, 0)])
    steps += _unless("clone:56:220", column, [(_LOAD, 0, 0, _low(0)), (_BITS, 0, 1, _NEW_NAMESPACES)])
    kind = [(_LOAD, 0, 0, _low(1)), (_AND, 0, 0, _SOCKET_TYPES), (_EQUAL, 1, 0, _STREAM)]
    steps += _unless("socketpair:53:199", column, kind)
    address = [(_LOAD, 0, 0, _low(4)), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _low(4) + 4), (_EQUAL, 1, 0, 0)]
    return [*steps, *_unless("sendto:44:206", column, address)]


def _low(argument: int) -> int:
    """Return the place of the low word of an argument in the kernel's description of a call."""
    return 16 + 8 * argument


def _unless(entry: str, column: int, test: list[Step]) -> list[Step]:
    """Return the steps that allow a call unless a test goes on to its end; a jump of a test by one allows it."""
    number = int(entry.split(":")[column])
    if number < 0:
        return []
    refused: list[Step] = [(_RETURN, 0, 0, _REFUSE)] if test else []
    block: list[Step] = [*test, *refused, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(block), number), *block]
