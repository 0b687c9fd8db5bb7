"""An arm64 system emulated on this machine by qemu."""
