"""Devices that run the tvmflow agent: protocol, transport, session, registration."""
