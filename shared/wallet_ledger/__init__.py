"""The Lambda layer: the ledger's rules, its ports, and their AWS adapters."""
