"""Make a folder a disk that becomes full, without root: a library loaded before a command fails its writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_full(int file) {
  char link[40], path[4096];
  const char *full = getenv("FULL"), *disk = getenv("DISK");
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0 || !full || access(full, F_OK)) return 0;
  return !strncmp(path, disk, strlen(disk));
}

#define WRITES(name, parameters, ...)                                      \
  ssize_t name parameters {                                                \
    ssize_t (*real) parameters;                                            \
    *(void **)&real = dlsym(RTLD_NEXT, #name);                             \
    return is_full(file) ? (errno = ENOSPC, -1) : real(__VA_ARGS__);       \
  }

WRITES(write, (int file, const void *from, size_t size), file, from, size)
WRITES(pwrite, (int file, const void *from, size_t size, off_t at), file, from, size, at)
WRITES(pwrite64, (int file, const void *from, size_t size, off64_t at), file, from, size, at)
"""


def full_disk(disk: Path, full: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a command for which `disk` is full as long as the file `full` exists.

    folder: for the library.
    """
    source, shim = folder / "full.c", folder / "full.so"
    source.write_text(_SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"], check=True)
    return {"LD_PRELOAD": str(shim), "DISK": str(disk), "FULL": str(full)}
