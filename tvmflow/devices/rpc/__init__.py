"""Devices behind TVM's RPC: tracker, local server, emulated processors, VTA."""
