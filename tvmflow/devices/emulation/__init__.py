"""An arm64 system emulated on this machine by qemu: its files, its processors, what its programs execute."""
