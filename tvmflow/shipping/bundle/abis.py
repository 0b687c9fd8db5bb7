"""List the ABIs of shipped libraries, with the system libraries and functions that each may use.

These are allowlists of what the C runtime, TVM's kernels and LLVM's calls to the C math library use; others are
rejected.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

from tvmflow.support.errors import BundleError
from tvmflow.toolchain.triples import ARM32, WASM, triple_of

_RUNTIME = (
    "clock_gettime fclose fopen fscanf free madvise memcpy memmove memset posix_memalign "
    "pthread_cond_broadcast pthread_cond_destroy pthread_cond_init "
    "pthread_cond_signal pthread_cond_wait pthread_create pthread_join pthread_mutex_destroy "
    "pthread_mutex_init pthread_mutex_lock "
    "pthread_mutex_unlock sched_getaffinity sched_getcpu __sched_cpucount sched_yield snprintf strcmp strlen sysconf"
)
_MATHEMATICS = (
    "acos acosh asin asinh atan atan2 atanh ceil cos cosh erf exp exp2 fabs floor fma fmax fmin fmod "
    "ldexp log log10 log1p log2 "
    "nearbyint pow rint round roundeven sin sinh sqrt tan tanh trunc"
)
_C = frozenset(_RUNTIME.split()) | {f"{name}{end}" for name in _MATHEMATICS.split() for end in ("", "f")}
# Symbols added by the compiler and the dynamic linker.
_LINKED = frozenset(
    (
        "__cxa_finalize",
        "__cxa_atexit",
        "__stack_chk_fail",
        "__gmon_start__",
        "_ITM_deregisterTMCloneTable",
        "_ITM_registerTMCloneTable",
    )
)
_HWCAP = frozenset(("getauxval",))  # what an Arm processor has
_FORKS = "__register_atfork pthread_mutex_trylock"  # Android's apps do not fork
_OF_GLIBC = "__isoc99_fscanf __isoc23_fscanf __tls_get_addr pthread_setaffinity_np"
_GNU = _C | _LINKED | _HWCAP | frozenset(f"{_FORKS} {_OF_GLIBC}".split())
# Variables of threads are made by functions of the compiler's before Android 10: what those call is bionic's, too.
_THREAD_LOCAL = "abort calloc malloc pthread_getspecific pthread_key_create pthread_once pthread_setspecific realloc"
_BIONIC = _C | _LINKED | _HWCAP | frozenset(_THREAD_LOCAL.split()) | {"__tls_get_addr", "sched_setaffinity"}
_BIONIC_LIBRARIES = frozenset(("libc.so", "libm.so", "libdl.so"))


# What clang makes of calls of memset, sin with cos, and thread-local variables on Apple's systems.
_OF_APPLE = "bzero memset_pattern16 __sincos_stret __sincosf_stret _tlv_bootstrap __stack_chk_guard sysctlbyname"
_APPLE = _C | frozenset(f"{_OF_APPLE} __stack_chk_fail pthread_atfork pthread_mutex_trylock".split())

# What a network of a GPU asks for beside it: to find the system's driver, and to keep compiled programs.
_GPU = frozenset(
    (
        "calloc dlclose dlerror dlopen dlsym fread fwrite getpid malloc memcmp nanosleep qsort remove rename "
        "strcpy strcspn strrchr strstr vsnprintf"
    ).split()
)


@dataclass(frozen=True)
class Abi:
    """machine: of ELF, as pyelftools names it; needed, symbols: that a library may ask
    for; page: that segments must fit, in bytes.

    bits: of a pointer; flags: bits of ELF's e_flags that are looked at, and what they have to be.
    """

    name: str
    architecture: str
    system: str
    machine: str
    needed: frozenset[str]
    symbols: frozenset[str]
    page: int
    bits: int = 64
    flags: tuple[int, int] = (0, 0)

    @property
    def with_gpu(self) -> Abi:
        """Return the ABI extended by what GPU networks use."""
        libraries = {"libdl.so.2"} if self.system == "gnu" else set[str]()
        return replace(self, symbols=self.symbols | _GPU, needed=self.needed | libraries)

    @property
    def is_wasm(self) -> bool:
        return self.system == "wasi"

    @property
    def is_apple(self) -> bool:
        return self.machine == "mach-o"

    @property
    def runs_here(self) -> bool:
        return self.system == "gnu" and self.architecture == platform.machine() and platform.libc_ver()[0] == "glibc"


def _gnu(name: str, architecture: str, machine: str, loader: str) -> Abi:
    needed = frozenset(("libc.so.6", "libm.so.6", "libpthread.so.0", loader))
    return Abi(name, architecture, "gnu", machine, needed, _GNU, 4096)


def _android(name: str, architecture: str, machine: str) -> Abi:
    return Abi(name, architecture, "android", machine, _BIONIC_LIBRARIES, _BIONIC, 16384)


def _apple(name: str, system: str) -> Abi:
    return Abi(name, "aarch64", system, "mach-o", frozenset(("libSystem",)), _APPLE, 16384)


def _of_arm32(abi: Abi, *, takes_floats_in_vectors: bool) -> Abi:
    """Return the ABI with what 32-bit Arm's has beside: EABI version 5, and in which registers functions take
    floats.
    """
    return replace(abi, bits=32, flags=(0xFF000400, 0x05000400 if takes_floats_in_vectors else 0x05000000))


ABIS = {
    abi.name: abi
    for abi in (
        _gnu("x86_64-linux-gnu", "x86_64", "EM_X86_64", "ld-linux-x86-64.so.2"),
        _gnu("aarch64-linux-gnu", "aarch64", "EM_AARCH64", "ld-linux-aarch64.so.1"),
        _android("arm64-v8a", "aarch64", "EM_AARCH64"),
        _android("x86_64", "x86_64", "EM_X86_64"),
        _of_arm32(_gnu("armv7a-linux-gnueabihf", ARM32, "EM_ARM", "ld-linux-armhf.so.3"), takes_floats_in_vectors=True),
        _of_arm32(_android("armeabi-v7a", ARM32, "EM_ARM"), takes_floats_in_vectors=False),
        _apple("ios-arm64", "ios"),
        _apple("ios-arm64-simulator", "ios-simulator"),
        _apple("macos-arm64", "macos"),
        Abi(WASM, WASM, "wasi", "none", frozenset(), frozenset(("clock_time_get",)), 65536, bits=32),
    )
}


def abi_of(triple: str) -> Abi:
    """Return the ABI of a target triple, by processor and system. Raises BundleError with the legal ones."""
    parts = triple_of(triple)
    for abi in ABIS.values():
        is_complete = "-linux-" in triple or parts.architecture == WASM or parts.is_apple
        if is_complete and (abi.architecture, abi.system) == (parts.architecture, parts.system):
            return abi
    raise BundleError(f"no ABI for the triple {triple}", f"a target for one of {', '.join(ABIS)}")


def abi_named(name: str) -> Abi:
    """Return an ABI by its name. Raises BundleError with the legal ones."""
    if name not in ABIS:
        raise BundleError(f"no ABI {name!a}", f"one of {', '.join(ABIS)}")
    return ABIS[name]
