"""RefundQueue's edge: read each record, refund by phone, tell what came of it."""

from collections.abc import Callable, Sequence
from typing import assert_never

from refund.give_back import Cancelled, Decided, Result
from wallet_ledger.consumer import Consumer, GiveBack, Record, receives
from wallet_ledger.domain.ids import transaction_ref
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.wallets import Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.messages import read_refund
from wallet_ledger.ports import Queue
from wallet_ledger.telemetry import count, count_by, logger

type Received = tuple[Refund, int]
"""A refund and how often its message has been received."""


def consumer(
    *,
    refund_phone: Callable[[Sequence[Received]], list[Result]],
    delivery_failures: Queue,
    give_back: GiveBack,
    receives_max: int,
) -> Consumer[Received, Decided | Cancelled]:
    """Refund as a consumer of RefundQueue."""
    return Consumer(
        source="RefundQueue",
        read=_read,
        phone_of=lambda received: received[0].phone,
        work=refund_phone,
        report=_report,
        delivery_failures=delivery_failures,
        give_back=give_back,
        receives_max=receives_max,
    )


def _read(record: Record) -> Received:
    return read_refund(record["body"]), receives(record)


def _report(received: Received, result: Result) -> None:
    """One log line per decision, and its metric."""
    asked, _ = received
    ref = transaction_ref(asked.agent_id, asked.idempotency_key)
    named: dict[str, object] = {"kind": "refund", "transaction": ref}
    match result:
        case Decided(outcome, new):
            if not new:
                count("DuplicatesSuppressed")
            elif isinstance(outcome, Rejected):
                count_by("RefundsRejected", "reason", outcome.reason)
            else:
                count("RefundsCompleted")
            told = outcome.reason if isinstance(outcome, Rejected) else "posted"
            logger.info("refund decided", extra=named | {"outcome": told, "new": new})
        case Cancelled(new):
            count("RefundsCompleted" if new else "DuplicatesSuppressed")
            logger.info("cancelled", extra=named | {"new": new})
        case Unfinished(codes):
            logger.warning("unfinished", extra=named | {"codes": codes})
        case Violation(codes, _):
            count("InvariantViolations")
            logger.critical("invariant violated", extra=named | {"codes": codes})
        case _:
            assert_never(result)
