"""What can go wrong on the device. Whatever is raised by `submit`, nothing was stored."""


class InvalidTransaction(ValueError):
    """The server would refuse it for good: the text names the member and the rule."""


class KeyReused(ValueError):
    """The idempotency key is in the outbox already, with other content, which stands."""


class LimitExceeded(Exception):
    """One of the outbox's `Limits` forbids it."""


class StorageFull(Exception):
    """The device has no space left. What was submitted before is safe, and `submit` may be tried
    again when there is space: with the same idempotency key, it is the same transaction.
    """


class OutboxUnusable(Exception):
    """The file cannot be opened, read or written, or is another agent's outbox."""


class UnknownKey(KeyError):
    """No transaction of this outbox has the key; it may have been pruned."""
