"""Run modules of WebAssembly in node on this machine."""
