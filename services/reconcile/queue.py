"""TxQueue's edge: parse each record, settle by phone in parallel, say which records come again."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_never

from reconcile.settle import Dropped, Settled, Settlement, Unfinished, Violation
from wallet_ledger.domain.ids import Phone, transaction_ref
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected, movement_id
from wallet_ledger.errors import InvalidMessage, Unavailable
from wallet_ledger.messages import read_movement, unreadable
from wallet_ledger.ports import Clock, Queue
from wallet_ledger.telemetry import count, count_by, in_current_trace, log_failure, logger

type Record = Mapping[str, Any]
type SettlePhone = Callable[[Sequence[Movement]], list[Settlement]]
type GiveBack = Callable[[Sequence[tuple[str, int]]], None]

GIVE_BACK_S = (2, 4, 8, 16, 32, 64, 128, 256)
"""How long a group rests after its 1st, 2nd, … receive, so that a bad minute does not use up the
queue's receive count in seconds."""


def handle_batch(
    records: Sequence[Record],
    *,
    settle_phone: SettlePhone,
    delivery_failures: Queue,
    give_back: GiveBack,
    clock: Clock,
) -> dict[str, list[dict[str, str]]]:
    """The answer to Lambda: the message ids that must come again."""
    movements, unread = _read(records)
    again: list[Record] = []
    rests: list[tuple[str, int]] = []
    lanes: dict[Phone, list[tuple[Record, Movement]]] = defaultdict(list)
    for record, movement in movements:
        lanes[movement.phone].append((record, movement))
    for lane, settlements in zip(lanes.values(), _in_parallel(lanes, settle_phone), strict=True):
        left = []
        for (record, movement), settlement in zip(lane, settlements, strict=True):
            _report(movement, settlement, clock)
            if isinstance(settlement, Unfinished | Violation):
                left.append(record)
        rests += _rests(left)
        again += left
    _rest(rests, give_back)
    # Last, since a slow queue of letters must not eat the time in which nine wallets settle.
    again += _hand_over(unread, delivery_failures)
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in again]}


def _read(
    records: Sequence[Record],
) -> tuple[list[tuple[Record, Movement]], list[tuple[Record, str]]]:
    readable, unread = [], []
    for record in records:
        try:
            readable.append((record, read_movement(record["body"])))
        except InvalidMessage as error:
            unread.append((record, str(error)))
    return readable, unread


def _hand_over(unread: Sequence[tuple[Record, str]], delivery_failures: Queue) -> list[Record]:
    """Move what nobody can read out of its group's way; what could not be moved stays."""
    for _, why in unread:
        logger.error("unreadable message", extra={"why": why})
    letters = [unreadable("TxQueue", why, record) for record, why in unread]
    try:
        kept = delivery_failures.send(letters) if letters else frozenset()
    except Exception as error:  # say, a letter larger than the queue takes: the others still settle
        log_failure("unreadable messages not handed over", error)
        return [record for record, _ in unread]
    return [unread[index][0] for index in sorted(kept)]


def _in_parallel(
    lanes: Mapping[Phone, Sequence[tuple[Record, Movement]]], settle_phone: SettlePhone
) -> list[list[Settlement]]:
    work = [[movement for _, movement in lane] for lane in lanes.values()]

    def settle_alone(movements: Sequence[Movement]) -> list[Settlement]:
        # One wallet's trouble (a row that somebody edited, a bug on one path) must not take nine
        # other wallets' messages back to the queue, and in the end to the dead letters, with it.
        try:
            return settle_phone(movements)
        except Exception as error:
            log_failure("settling failed", error)
            return [Violation((type(error).__name__,))] * len(movements)

    if len(work) < 2:
        return [settle_alone(movements) for movements in work]
    with ThreadPoolExecutor(max_workers=len(work)) as pool:
        return list(pool.map(in_current_trace(settle_alone), work))


def _rests(left: Sequence[Record]) -> list[tuple[str, int]]:
    """A group rests as one, by its first message: one that is out keeps the whole group waiting."""
    if not left:
        return []
    received = int(left[0]["attributes"]["ApproximateReceiveCount"])
    rest_s = GIVE_BACK_S[min(received, len(GIVE_BACK_S)) - 1]
    return [(record["receiptHandle"], rest_s) for record in left]


def _rest(rests: Sequence[tuple[str, int]], give_back: GiveBack) -> None:
    try:
        if rests:
            give_back(rests)
    except Unavailable as error:
        logger.warning("not given back early", extra={"code": error.code})
    except Exception as error:  # what is settled must not come again for want of a shorter rest
        log_failure("not given back early", error)


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
            logger.warning("given back", extra=_name(movement) | {"codes": codes})
        case Violation(codes):
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
