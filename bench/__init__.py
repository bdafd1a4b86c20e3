"""Measures the settlement path beside the article's own, on one engine and in one run."""
