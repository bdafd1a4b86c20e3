"""Triage: keeps every dead letter, says what it is, and acts on it once somebody decides."""
