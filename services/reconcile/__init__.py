"""Reconcile: settles movements against the ledger, each exactly once."""
