"""What people say of guards: what each clause keeps, what each module protects, what is redundant.

The guards themselves are found (conditions.py, code.py); a clause that is found and
not told of here stops `make guards`, and so does a guard that nothing catches and nobody explains.
"""

from collections.abc import Mapping

HEAD = """\
# Every guard, and the test that goes red without it

Written by `make guards`; nothing is listed by hand. **Conditions** are recorded as the adapters
send them while the contract suites run on the simulated engine, and as the functions send them in a
few dozen seeded histories of the whole system; that engine's own parser cuts them into clauses. A
clause is broken at the engine, in the request, where our code cannot know: dropped; a bound moved
by one; an equal number accepted from above (never from below: attempts, versions, revisions and
totals only rise). **Guards in code** are found in the syntax of every module that runs on Lambda: a
condition that never or always holds, or loses a part; a bound off by one; rules in another order; a
validator's constraint, an error's handler, a sorting or a step left out. Not broken, so not counted
here, are two things: which of two values stands in for the other (`a or b`), and an assignment
(`a = b`), which binds a name at first or again. A module without a part of its own below has
nothing that can be broken so.

Each mutant gets those tests that can tell: in which its clause decides otherwise, or which run its
line. They run in one process, the quickest first, up to the first that is red: the contract suites
on the fakes and on the simulated engine, the unit tests, the interleavings. What nothing catches is
either **redundant**, with the reason, or a missing test, which was then written. Whenever the tests
run, a sample is broken again, one of each way, and the test that is named here must go red.

| Clauses | In code | Mutants | Caught by a test | By the clock alone | Redundant | By nothing |
|--:|--:|--:|--:|--:|--:|--:|
| {clauses} | {guards} | {mutants} | {caught} | {late} | {redundant} | {nothing} |
"""

_ROW = "OfflineTx row"
_BALANCE = "WalletLedger balance"
_ONCE = "an id has one outcome, which is never overwritten"

KEEPS: Mapping[tuple[str, str, str], str] = {
    ("", _ROW, "attribute_not_exists(idempotencyKey)"): "P1: a key means one thing, for good",
    ("", _ROW, "status = :queued"): "P1, P5: what is settled, cancelled, held or expired stays so",
    (
        "",
        _ROW,
        "fingerprint = :fingerprint",
    ): "P1: a message moves the row of its own request alone",
    ("", _ROW, "status = :status"): "P5: only what is still open is sent again",
    ("", _ROW, "attempt = :seen"): "P8: one look sends again once",
    ("", _ROW, "expiresAt = :seen"): "P5: a row that was given more time does not expire",
    (
        "",
        _ROW,
        "status = :seen_status",
    ): "P5, P8: a row moves from where it was seen, or not at all",
    (
        "",
        _ROW,
        "fingerprint = :seen_fingerprint",
    ): "P1: a purged key that was sent again is another",
    ("", _ROW, "attempt = :seen_attempt"): "P8: a row that was sent again since is somebody else's",
    (
        "",
        _ROW,
        "attribute_not_exists(refundedMinor)",
    ): "P4, P6: no refund was posted since the look",
    (
        "",
        _ROW,
        "refundedMinor = :seen_refundedMinor",
    ): "P4, P6: no refund was posted since the look",
    ("", _ROW, "attribute_not_exists(refundRequest)"): "P5: nobody began to wait since the look",
    ("", _ROW, "refundRequest = :seen_refundRequest"): "P5: who waits is who waited at the look",
    (
        "",
        _ROW,
        "attribute_not_exists(agentId)",
    ): "P4: a refusal for want of a row is true when written",
    ("", _BALANCE, "version = :seen"): "P2, P3: each posting stands on the one before it",
    ("", _BALANCE, "status = :seenStatus"): "P7: a frozen wallet gives nothing, at the very write",
    ("", _BALANCE, "currency = :seenCurrency"): "P3, P9: a balance is of one currency",
    ("", _BALANCE, "balanceMinor >= :needed"): "P2: no balance below zero, whatever else is wrong",
    ("", _BALANCE, "attribute_not_exists(version)"): "P3, P7: a wallet opens once",
    ("", "WalletLedger debit#", "attribute_not_exists(txId)"): f"P1: {_ONCE}",
    ("", "WalletLedger credit#", "attribute_not_exists(txId)"): f"P9: {_ONCE}",
    ("", "WalletLedger status#", "attribute_not_exists(txId)"): f"P7: {_ONCE}",
    ("", "WalletLedger refund#", "attribute_not_exists(txId)"): f"P4: {_ONCE}",
    ("", "WalletLedger refunds#", "attribute_not_exists(refundedMinor)"): (
        "P4: the first refund is the first"
    ),
    ("", "WalletLedger refunds#", "refundedMinor = :seen"): "P4: no refund between look and write",
    ("", "WalletLedger refunds#", "refundedMinor <= :room"): "P4: never more than was taken",
    ("", "DeadLetters letter", "attribute_not_exists(id)"): "P8: a letter is kept once",
    ("", "DeadLetters letter", "revision = :seen"): "P8: of two actions at once, one counts",
    ("", "DeadLetters letter", "attribute_exists(openShard)"): "P8: what is over is not looked at",
    ("", "DeadLetters record", "(no condition)"): (
        "written only beside its letter, whose condition holds for both"
    ),
    ("", "DeadLetters subject", "(no condition)"): (
        "`ADD` in the transaction of a letter's move, whose revision makes it happen once"
    ),
}
"""By writer (or anybody), item and clause."""

PROTECTS: Mapping[str, str] = {
    "wallet_ledger.clock": "A pause is one.",
    "wallet_ledger.errors": "An error says what the caller must do, and its code says why.",
    "wallet_ledger.settings": "A function has all of its settings, or does not start.",
    "wallet_ledger.telemetry": (
        "What happened is counted and told, and nothing that is anybody's (P12)."
    ),
    "wallet_ledger.strict_json": "What readers of JSON disagree on is refused (P1, P7).",
    "wallet_ledger.contracts": (
        "What strangers send is read whole and strictly, or refused (P1, P7, P12)."
    ),
    "wallet_ledger.messages": "No message is trusted more than a stranger (P1, P4).",
    "wallet_ledger.consumer": (
        "What cannot be finished holds back what comes after it of its phone, no other (P10)."
    ),
    "wallet_ledger.patience": "Waiting has a limit (P5).",
    "wallet_ledger.derive": "Every committed move is told once, with the same id each time (P5).",
    "wallet_ledger.domain.ids": "No id reaches a reserved key (P1, P11).",
    "wallet_ledger.domain.wallets": "Who is refused, and for which reason first (P2, P7).",
    "wallet_ledger.domain.transactions": (
        "When an open row is looked at again, and when it is too old (P5)."
    ),
    "wallet_ledger.domain.refunds": "The refund's rules, in their order (P4, P6).",
    "wallet_ledger.domain.letters": "What a letter is, and what may be done with it (P5, P8).",
    "wallet_ledger.aws.balance": "How a balance row is written (P2, P3).",
    "wallet_ledger.aws.calls": "What each call cost is told; nothing is decided.",
    "wallet_ledger.aws.clients": "What passes by itself is told from what does not (P5, P7).",
    "wallet_ledger.aws.items": (
        "What is written is what is read, and a write says on what it stands (P1, P4, P8)."
    ),
    "wallet_ledger.aws.ledger": (
        "How a failed write is read: what passes by itself first, never a lack of funds (P1, P7)."
    ),
    "wallet_ledger.aws.letters": "A letter, its row and its budget move together (P8).",
    "wallet_ledger.aws.messaging": (
        "Entries of a batch fail one by one, and nothing overtakes (P5, P10)."
    ),
    "wallet_ledger.aws.refunds": "What a refund was decided on is in its write (P4).",
    "wallet_ledger.aws.transactions": (
        "A key is taken once; a row moves from where it was seen (P1, P5)."
    ),
    "ingest.accept": "A key in one batch means one thing (P1).",
    "ingest.api": "An agent sees and touches only its own (P11).",
    "ingest.bus": "A request reaches its queue, or the letters (P5).",
    "ingest.refund": "What an agent's refund may change at once (P4, P6).",
    "relay.forward": "The first record of which something was not taken (P5, P10).",
    "relay.stream": "A stream starts again at its first failure, and no record blocks it (P5).",
    "relay.sweep_handler": "What a sweep saw and did is counted, for the alarms (P5).",
    "relay.sweep": "What is open is sent again in time, and never as a storm (P5).",
    "reconcile.handler": "It tries within its budget, and answers in time (P10).",
    "reconcile.queue": "What reconcile counts, for the alarms, and names without a phone (P12).",
    "reconcile.settle": "The failure table, and the rule of groups (P1, P3, P10).",
    "refund.queue": "What the refund function counts, for the alarms.",
    "refund.handler": "It tries within its budget, and answers in time (P10).",
    "refund.give_back": "One refund after the other, and what comes too early waits (P4, P5).",
    "triage.act": "Caps, and what may still be on its way (P1, P8).",
    "triage.desk": "What operators may ask for (P12).",
    "triage.keep": "Kept before it is removed; a row is held only as it was seen (P8).",
    "triage.preview": "What is shown of a letter names nobody (P12).",
    "triage.reading": "Whose a letter is and why it came; no sender can tell us (P8, P12).",
    "triage.views": "Which letters are meant, and what is shown of them (P12).",
    "triage.queue": "Kept before it is removed (P8).",
    "triage.watch": "The clock's work, phone by phone, in order (P5, P10).",
}
"""What each module's guards are for."""

_TYPES = "for the type checker alone: what was asked before excludes it"
_DISJOINT = "the two never hold at once, so their order says nothing"
_SPARES = "without it a call is made, or a pool opened, that changes nothing"
_SLACK = "a limit with room to spare, of which one more is still within"
_TOLD = "only what is logged or said depends on it"
_ORDER = "Lambda does not ask for the order of what comes again"
_FULL_BEFORE = "all of it was answered just before, as a cancellation"
_PARALLEL = "both are made from one list, a few lines above"

REDUNDANT: Mapping[str, str] = {
    f"wallet_ledger.{name}": why
    for name, why in {
        "contracts | _phone | national and info.context is not None"
        " | without `info.context is not None`": "every caller gives the region as context",
        "contracts | (module) | max_length=64 | left out": (
            "the pattern allows no more; it stands here for readers of the OpenAPI document"
        ),
        "contracts | _Body | hide_input_in_errors=True | left out": (
            "pydantic's own error never leaves `_validate`; it hides the input from whoever logs it"
        ),
        "contracts | read_batch | errors or not isinstance(batch, list)"
        " | without `not isinstance(batch, list)`": _TYPES,
        "contracts | read_bus_request | refund.currency | always": _TYPES,
        "messages | _require_members | min(missing) | max": (
            "which of several missing members is named"
        ),
        "consumer | Consumer.handle_batch | strict=True | left out": _PARALLEL,
        "consumer | Consumer._hand_over | sorted(kept) | not sorted": (_ORDER),
        "consumer | Consumer._in_parallel | len(items) < 2 | `len(items) <= 2`": (
            "two wallets in turn: only slower"
        ),
        "patience | Patience.over | self._clock.now_ms() > self._deadline_ms"
        " | `self._clock.now_ms() >= self._deadline_ms`": _SLACK,
        "patience | Patience.wait | self._clock.now_ms() + pause_s * 1000 >= self._deadline_ms"
        " | `self._clock.now_ms() + pause_s * 1000 > self._dea…`": _SLACK,
        "derive | from_row | new.status is Status.QUEUED,"
        " then new.status is Status.REFUND_REQUESTED | in the other order": _DISJOINT,
        "aws.refunds | _read_failure | is_transient(error), then 'ConditionalCheckFailed' in codes"
        " and {'None', 'Conditional… | in the other order": _DISJOINT,
        "domain.refunds | decide_refund | seen.row is None and seen.debit is None,"
        " then _is_anothers(asked, seen) | in the other order": _DISJOINT,
        "domain.refunds | decide_refund | seen.row is not None and seen.row.status in _OPEN,"
        " then seen.row is not None and seen.row.status in _NO_MONEY_MOVED"
        " | in the other order": _DISJOINT,
        "domain.refunds | _is_anothers | original is not None and"
        " (not _currency_fits(asked, original.currency)) | without `original is not None`": _TYPES,
        "domain.refunds | _cancelled_by | row.status is Status.CANCELLED and mine"
        " | without `row.status is Status.CANCELLED`": (
            "`cancelled_by` is set with that status alone, which is final"
        ),
        "domain.refunds | _before_settlement | is_full(asked.amount_minor, row), then"
        " asked.amount_minor is not None and asked.amount_minor > row… | in the other order": (
            _DISJOINT
        ),
        "domain.refunds | _before_settlement | asked.amount_minor is not None and"
        " asked.amount_minor > row.amount_minor | without `asked.amount_minor is not None`": _TYPES,
        "domain.refunds | _before_settlement | asked.amount_minor is not None and"
        " asked.amount_minor > row.amount_minor | `asked.amount_minor >= row.amount_minor`": (
            _FULL_BEFORE
        ),
        "domain.refunds | _after_settlement | seen.row is None and seen.debit is not None and"
        " isinstance(seen.debit.outcome, Rejected) | without `seen.row is None`": (
            "P6: a row says settled only where its debit was posted"
        ),
        "domain.refunds | _after_settlement | seen.row is None and seen.debit is not None and"
        " isinstance(seen.debit.outcome, Rejected) | without `seen.debit is not None`": _TYPES,
        "domain.refunds | _after_settlement | original is None or seen.wallet is None"
        " | without `original is None`": _TYPES,
        "domain.letters | debit_standing | row.status is Status.HELD,"
        " then row.status is Status.QUEUED | in the other order": _DISJOINT,
        "aws.messaging | _chunks | chunk and (len(chunk) == ENTRIES_MAX or chunk_bytes + size >"
        " CALL_BYTES_MAX) | `chunk_bytes + size >= CALL_BYTES_MAX`": _SLACK,
        "aws.refunds | DynamoRefundBooks._row | seen.row is not None and"
        " decided.row_after is not None | without `seen.row is not None`": _TYPES,
        "errors | Unavailable.__init__ | super().__init__(code) | left out": (
            "Python has kept the arguments of an exception before"
        ),
        "aws.items | _as_seen | sorted(names) | not sorted": (
            "DynamoDB asks for no order of names; it makes equal requests equal texts"
        ),
        "aws.items | read_letter | agent_id is None | never": _TYPES,
        "aws.items | read_letter | key is None | never": _TYPES,
        "aws.ledger | _read_failure | strict=True | left out": "their lengths were compared before",
        "aws.letters | DynamoDeadLetters.record | len(parts[-1]) < RECORD_PART_BYTES | never": (
            _SPARES
        ),
    }.items()
} | {
    "relay.forward | _for | item.destination is destination and isinstance(item.content, kind)"
    " | without `isinstance(item.content, kind)`": _TYPES,
    "ingest.api | Problem.members | self.errors | always": "an empty list of errors says the same",
    "ingest.api | submit_batch | strict=True | left out": _PARALLEL,
    "ingest.bus | _send | sorted(kept) | not sorted": _ORDER,
    "ingest.refund | _before_settlement | is_full(wanted.amount_minor, row), then"
    " wanted.amount_minor is not None and wanted.amount_minor > r… | in the other order": _DISJOINT,
    "ingest.refund | _before_settlement | wanted.amount_minor is not None and wanted.amount_minor >"
    " row.amount_minor | without `wanted.amount_minor is not None`": _TYPES,
    "ingest.refund | _before_settlement | wanted.amount_minor is not None and wanted.amount_minor >"
    " row.amount_minor | `wanted.amount_minor >= row.amount_minor`": _FULL_BEFORE,
    "ingest.refund | _while_pending | pending is None or pending.refund_id != wanted.refund_id"
    " | without `pending is None`": _TYPES,
    "reconcile.settle | settle | refused is not None | always": (
        "where nothing was refused nothing is left to be tried one by one"
    ),
    "reconcile.settle | _Group.committed | posting.new, then posting.status_only"
    " | in the other order": "an id is in one of the two",
    "reconcile.settle | _Group.learn | conflict.moved, then conflict.recorded.items()"
    " | in the other order": "a debit whose row has moved is dropped in either order",
    "reconcile.settle | _Group.posting | undecided or new | always": _SPARES,
    "refund.give_back | give_back_all | results and stopped is None and patience.over"
    " | without `stopped is None`": "which of two reasons those behind it are told",
    "triage.act | _Case.held_row | row is None or self.seen.standing is not Standing.HELD"
    " | without `row is None`": _TYPES,
    "triage.act | _Case.held_row | row is None or self.seen.standing is not Standing.HELD"
    " | without `self.seen.standing is not Standing.HELD`": (
        "P8: a row names a letter only while it is held; one that is decided too is over before"
    ),
    "triage.act | _try_again | current is not None and current.status is LetterStatus.WAITING"
    " | without `current is not None`": "only what is dealt with is ever purged",
    "triage.act | _try_again | result.outcome is Outcome.CONTENDED and late"
    " | without `result.outcome is Outcome.CONTENDED`": (
        "after any other outcome the letter waits no more, which is asked next"
    ),
    "triage.act | _redrive | by.automatic and budget.automatic >= len(AUTOMATIC_AFTER_MS), then"
    " not by.automatic and budget.by_hand >= BY_HAND_MAX and (not… | in the other order": _DISJOINT,
    "triage.act | _discard | case.is_debit and case.seen.standing is Standing.UNREADABLE, then"
    " _is_on_its_way(case.letter) | in the other order": (
        "a debit is never sent from here, so none is on its way"
    ),
    "triage.desk | handle_request | not isinstance(request, dict) or not request.keys() <= _MEMBERS"
    " | `request.keys() < _MEMBERS`": "no action takes every member at once",
    "triage.desk | _due | watched.unread | never": _TOLD,
    "triage.desk | _due | watched.unread | always": _TOLD,
    "triage.desk | _due | (logger.warning if watched.unread else logger.info)('looked',"
    " extra=seen | told) | left out": _TOLD,
    "triage.desk | _choice | sorted(choices) | not sorted": _TOLD,
    "triage.desk | _page | part.shard == LETTER_SHARDS, then len(found) == limit"
    " | in the other order": "a page that is full says where it ended, so its shard goes on",
    "triage.keep | keep | diagnosis.verdict is Verdict.AUTO_REDRIVE | always": _SPARES,
    "triage.keep | _see_debit | standing is not Standing.DECIDED and subjects.decided(debit)"
    " | without `standing is not Standing.DECIDED`": _SPARES,
    "triage.keep | _hold | seen.row is None or seen.standing is not Standing.OPEN or"
    " (not letter.status.is_open) | without `not letter.status.is_open`": (
        "a letter about a debit that is open is open: the table of diagnoses"
    ),
    "triage.preview | _name | name in _KNOWN | never": (
        "no member that is known has digits or is too long"
    ),
    "triage.reading | _read | queue in _CONSUMED, then queue == 'FailedTxQueue.fifo'"
    " | in the other order": _DISJOINT,
    "triage.reading | _number | isinstance(value, int | str) | always": (
        "of nothing else in JSON is the text digits alone"
    ),
    "triage.watch | watch | letter.due_at_ms is not None and letter.due_at_ms <= now_ms"
    " | without `letter.due_at_ms is not None`": _TYPES,
    "triage.watch | watch.work | desk.clock.now_ms() >= deadline_ms"
    " | `desk.clock.now_ms() > deadline_ms`": _SLACK,
    "relay.stream | _letter | len(letter.body) <= LETTER_BYTES_MAX"
    " | `len(letter.body) < LETTER_BYTES_MAX`": _SLACK,
}
"""By the mutant's name, why no test can tell."""
