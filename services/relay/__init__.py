"""Relay: turns committed rows into messages and events, and sweeps what is still open."""
