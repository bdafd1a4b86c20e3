"""TxQueue's edge: read each record, settle by phone, tell what came of it."""

from collections.abc import Callable, Sequence
from typing import assert_never

from reconcile.settle import Dropped, Settled, Settlement
from wallet_ledger.consumer import Consumer, GiveBack
from wallet_ledger.domain.ids import transaction_ref
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected, movement_id
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.messages import read_movement
from wallet_ledger.ports import Clock, Queue
from wallet_ledger.telemetry import count, count_by, logger

type SettlePhone = Callable[[Sequence[Movement]], list[Settlement]]


def consumer(
    *,
    settle_phone: SettlePhone,
    delivery_failures: Queue,
    give_back: GiveBack,
    receives_max: int,
    clock: Clock,
) -> Consumer[Movement, Settled | Dropped]:
    """Reconcile as a consumer of TxQueue."""
    return Consumer(
        source="TxQueue",
        read=lambda record: read_movement(record["body"]),
        phone_of=lambda movement: movement.phone,
        work=settle_phone,
        report=lambda movement, settlement: _report(movement, settlement, clock),
        delivery_failures=delivery_failures,
        give_back=give_back,
        receives_max=receives_max,
    )


def _report(movement: Movement, settlement: Settlement, clock: Clock) -> None:
    """One log line per decision, and the metrics that follow from it."""
    match settlement:
        case Settled(outcome, new):
            _count_outcome(movement, outcome, clock)
            decided = outcome.reason if isinstance(outcome, Rejected) else "posted"
            logger.info("settled", extra=_name(movement) | {"outcome": decided, "new": new})
        case Dropped():
            count("DuplicatesSuppressed")
            logger.info("dropped", extra=_name(movement))
        case Unfinished(codes):
            logger.warning("unfinished", extra=_name(movement) | {"codes": codes})
        case Violation(codes, _):
            count("InvariantViolations")
            logger.critical("invariant violated", extra=_name(movement) | {"codes": codes})
        case _:
            assert_never(settlement)


def _count_outcome(movement: Movement, outcome: Posted | Rejected, clock: Clock) -> None:
    if not isinstance(movement, Debit):
        return
    if isinstance(outcome, Posted):
        count("TransactionsSynced")
        count("SettleLatencyMs", max(0, clock.now_ms() - movement.created_at_ms))
    else:
        count_by("TransactionsFailed", "reason", outcome.reason)


def _name(movement: Movement) -> dict[str, str]:
    """What may be logged of a movement: never its phone, its key or its amount."""
    kind, *_ = movement_id(movement)
    if isinstance(movement, Debit):
        ref = transaction_ref(movement.agent_id, movement.idempotency_key)
        return {"kind": kind, "transaction": ref}
    return {"kind": kind, "transaction": movement.fingerprint[:16]}
