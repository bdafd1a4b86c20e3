"""Ingest: accepts offline transactions over HTTP, and requests for wallets from the bus."""
