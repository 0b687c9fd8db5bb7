"""The VTA accelerator: configuration, instructions, programs, simulators, compiler, runtime."""
