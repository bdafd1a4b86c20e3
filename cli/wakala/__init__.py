"""Wakala's command: the local engine, the demo, and an operator's tools."""
