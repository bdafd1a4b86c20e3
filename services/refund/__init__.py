"""Refund: gives debits back, each request once, never more than was taken."""
