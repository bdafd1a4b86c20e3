"""A simulator that finds nothing proves nothing: bugs are planted, and it must find each."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingest import accept, api
from ingest import refund as ingest_refund
from reconcile import queue as reconcile_queue
from reconcile import settle
from refund import give_back
from relay import forward, stream, sweep
from tests.simulation.histories import world
from tests.simulation.histories.plan import Plan, plan
from tests.simulation.histories.play import STEPS, play
from tests.simulation.histories.seldom import (
    with_events_given_up_twice,
    with_keys_used_again_in_dollars,
    with_refunds_down_for_days,
)
from triage import act, keep, watch
from triage import queue as triage_queue
from wallet_ledger import consumer, derive, messages
from wallet_ledger.aws import balance, items, ledger, messaging, transactions
from wallet_ledger.aws import refunds as aws_refunds
from wallet_ledger.aws.letters import DynamoDeadLetters
from wallet_ledger.domain import letters, refunds
from wallet_ledger.domain.transactions import Reason, next_sweep_ms
from wallet_ledger.domain.transactions import accept as row_of

SEEDS = range(1, 241)

type Plant = Callable[[pytest.MonkeyPatch], None]


def funds_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    def blind(seen: Any, needed_minor: int) -> tuple[str, dict[str, Any]]:
        if seen is None:
            return original(seen, needed_minor)
        values = {":seenStatus": {"S": seen.status}, ":currency": {"S": seen.currency}}
        return (
            "attribute_exists(#version) AND #status = :seenStatus AND currency = :currency",
            values,
        )

    original = balance._still_as_seen
    patch.setattr(balance, "_still_as_seen", blind)


def fingerprints_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    def loose(self: Any, *arguments: Any) -> dict[str, Any]:
        write = original(self, *arguments)
        write["Update"]["ConditionExpression"] = "#status = :queued"
        del write["Update"]["ExpressionAttributeValues"][":fingerprint"]
        return write

    original = ledger.DynamoLedger._row_status
    patch.setattr(ledger.DynamoLedger, "_row_status", loose)


def entries_may_be_written_again(patch: pytest.MonkeyPatch) -> None:
    def loose(self: Any, *arguments: Any) -> dict[str, Any]:
        write = original(self, *arguments)
        del write["Put"]["ConditionExpression"]
        return write

    original = ledger.DynamoLedger._entry
    patch.setattr(ledger.DynamoLedger, "_entry", loose)


def rows_are_moved_whatever_they_are(patch: pytest.MonkeyPatch) -> None:
    def loose(item: Any, seen: Any, also_named: Any) -> Any:
        known = original(item, seen, also_named)
        text = known["ConditionExpression"]
        return known | {"ConditionExpression": text.replace("#status = ", "#status >= ")}

    original = items._as_seen
    patch.setattr(items, "_as_seen", loose)


def the_stream_goes_on_behind_the_last_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forward, "min", max, raising=False)
    patch.setattr(stream, "min", max, raising=False)


def entries_that_were_not_taken_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: Any) -> frozenset[int]:
        original(*arguments)
        return frozenset()

    original = messaging._in_calls
    patch.setattr(messaging, "_in_calls", forgetful)


def letters_go_before_they_are_kept(patch: pytest.MonkeyPatch) -> None:
    def hasty(records: Sequence[Any], keep: Any) -> dict[str, list[dict[str, str]]]:
        original(records, keep)
        return {"batchItemFailures": []}

    original = triage_queue.handle_batch
    for handle in _globals_of("triage", "handle_batch"):
        patch.setitem(handle, "handle_batch", hasty)


def the_sweep_sends_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions.DynamoOpenTransactions, "send_again", lambda *_: False)
    patch.setattr(world, "DRAIN_MAX", 2_000)  # it never ends; whole histories take 450 steps


def only_the_first_of_a_group_comes_again(patch: pytest.MonkeyPatch) -> None:
    def short(self: Any, records: Sequence[Any]) -> dict[str, Any]:
        answer = original(self, records)
        return {"batchItemFailures": answer["batchItemFailures"][:1]}

    original = consumer.Consumer.handle_batch
    patch.setattr(consumer.Consumer, "handle_batch", short)


def groups_are_not_phones(patch: pytest.MonkeyPatch) -> None:
    def scattered(movement: Any, dedup_id: str) -> Any:
        return replace(original(movement, dedup_id), group=dedup_id[:32])

    original = messages.movement_message
    patch.setattr(derive, "movement_message", scattered)


def what_is_not_stored_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def hopeful(request: Any, table: Any, clock: Any, open_days: int) -> Any:
        answer = original(request, table, clock, open_days)
        if isinstance(answer, accept.NotStored):
            return accept.Accepted(row_of(request, clock.now_ms(), open_days))
        return answer

    original = accept.accept_one
    patch.setattr(accept, "accept_one", hopeful)
    patch.setattr(api, "accept_one", hopeful)


def phones_are_logged(patch: pytest.MonkeyPatch) -> None:
    def talkative(movement: Any) -> dict[str, str]:
        return {"phone": movement.phone}

    patch.setattr(reconcile_queue, "_name", talkative)


def events_are_told_under_new_ids(patch: pytest.MonkeyPatch) -> None:
    def fresh(detail_type: str, named: Any, detail: Any) -> Any:
        return original(detail_type, (*named, next(numbers)), detail)

    original, numbers = messages.event, itertools.count()
    patch.setattr(derive, "event", fresh)


def events_tell_another_amount(patch: pytest.MonkeyPatch) -> None:
    def wrong(detail_type: str, named: Any, detail: Any) -> Any:
        more = {"amount": detail["amount"] + 1} if detail.get("amount") else {}
        return original(detail_type, named, {**detail, **more})

    original = messages.event
    patch.setattr(derive, "event", wrong)


def the_sweep_does_not_wait_longer_each_time(patch: pytest.MonkeyPatch) -> None:
    def eager(_attempt: int, now_ms: int, expires_at_s: int | None) -> int:
        return next_sweep_ms(1, now_ms, expires_at_s)

    patch.setattr(sweep, "next_sweep_ms", eager)


def the_sweep_does_not_look_at_the_backlog(patch: pytest.MonkeyPatch) -> None:
    def blind(self: Any) -> int:
        original(self)
        return 0

    original = messaging.SqsQueue.depth
    patch.setattr(messaging.SqsQueue, "depth", blind)


def the_sweep_takes_up_whatever_is_due(patch: pytest.MonkeyPatch) -> None:
    def unbounded(backlog_max: int, rows_max: int, deadline_ms: int) -> sweep.Limits:
        return sweep.Limits(backlog_max, rows_max + 100, deadline_ms)

    for handle in _globals_of("sweep", "Limits"):
        patch.setitem(handle, "Limits", unbounded)


def the_sweep_lets_expire_what_waits_for_a_refund(patch: pytest.MonkeyPatch) -> None:
    def hard(self: Any, row: Any, at_ms: int, now_ms: int) -> bool:
        late = row.expires_at_s * 1000 <= now_ms
        return self.expire(row, now_ms) if late else original(self, row, at_ms, now_ms)

    original = transactions.DynamoOpenTransactions.send_again
    patch.setattr(transactions.DynamoOpenTransactions, "send_again", hard)


def entries_lose_when_the_device_captured_them(patch: pytest.MonkeyPatch) -> None:
    def poorer(new: Any, at_ms: int) -> dict[str, Any]:
        item = original(new, at_ms)
        return {name: value for name, value in item.items() if name != "capturedAt"}

    original = items.entry_item
    patch.setattr(items, "entry_item", poorer)


def refunds_that_name_no_currency_mismatch(patch: pytest.MonkeyPatch) -> None:
    def strict(asked: Any, seen: Any) -> bool:
        return asked.currency is None or original(asked, seen)

    original = refunds._is_anothers
    patch.setattr(refunds, "_is_anothers", strict)


def refunds_of_all_that_remains_exceed_it(patch: pytest.MonkeyPatch) -> None:
    def mean(asked: Any, seen: Any, now_ms: int, *, patient: bool) -> Any:
        decided = original(asked, seen, now_ms, patient=patient)
        if isinstance(decided, refunds.Post) and asked.amount_minor == decided.amount_minor:
            remains = decided.original_minor - seen.refunded_minor
            if decided.amount_minor == remains:
                reason = Reason.EXCEEDS_ORIGINAL
                return refunds._reject(reason, asked, seen, now_ms, remains)
        return decided

    original = refunds.decide_refund
    patch.setattr(give_back, "decide_refund", mean)


def originals_are_hardly_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(give_back, "RECEIVES_UNSEEN_MAX", give_back.RECEIVES_UNSEEN_MAX - 1)


def triage_redrives_a_fourth_time(patch: pytest.MonkeyPatch) -> None:
    more = (*letters.AUTOMATIC_AFTER_MS, letters.AUTOMATIC_AFTER_MS[-1])
    patch.setattr(letters, "AUTOMATIC_AFTER_MS", more)
    patch.setattr(act, "AUTOMATIC_AFTER_MS", more)


def actions_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    def nameless(by: Any, what: str, desk: Any) -> Any:
        return original(by if by.automatic else replace(by, who="operator"), what, desk)

    original = act._action
    patch.setattr(act, "_action", nameless)


def actions_have_no_reason(patch: pytest.MonkeyPatch) -> None:
    original = act._action
    patch.setattr(act, "_action", lambda by, *more: original(replace(by, why=""), *more))


def actions_are_dated_back(patch: pytest.MonkeyPatch) -> None:
    original = act._action
    patch.setattr(act, "_action", lambda *arguments: replace(original(*arguments), at_ms=1))


def redrives_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def free(self: Any, before: Any, after: Any, row: Any = None, _spent: Any = None) -> Any:
        return original(self, before, after, row)

    original = DynamoDeadLetters.move
    patch.setattr(DynamoDeadLetters, "move", free)


def apps_may_not_have_back_all_that_remains(patch: pytest.MonkeyPatch) -> None:
    def mean(wanted: Any, row: Any, now_ms: int) -> Any:
        remains = row.amount_minor - (row.refunded_minor or 0)
        if wanted.amount_minor == remains:
            return ingest_refund.NotRefundable(Reason.EXCEEDS_ORIGINAL, remains, settled=True)
        return original(wanted, row, now_ms)

    original = ingest_refund._after_settlement
    patch.setattr(ingest_refund, "_after_settlement", mean)


def credits_that_come_again_are_another_use(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, identity: Any, entry: Any) -> None:
        other = replace(entry, fingerprint="other") if entry.kind == "credit" else entry
        original(self, identity, other)

    original = settle._Group._meet
    patch.setattr(settle._Group, "_meet", forgetful)


def letters_are_closed_whatever_the_tables_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(act._Case, "is_over", property(lambda _: True))


def what_is_redriven_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(act, "_send_again", lambda *_: True)


def letters_hold_later_attempts(patch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any, **named: Any) -> Any:
        standing = original(*arguments, **named)
        newer = standing is letters.Standing.NEWER_ATTEMPT
        return letters.Standing.OPEN if newer else standing

    original = letters.debit_standing
    patch.setattr(keep, "debit_standing", greedy)


def events_tell_another_reason(patch: pytest.MonkeyPatch) -> None:
    def wrong(detail_type: str, named: Any, detail: Any) -> Any:
        other = {"reason": Reason.MISMATCH} if detail.get("reason") else {}
        return original(detail_type, named, {**detail, **other})

    original = messages.event
    patch.setattr(derive, "event", wrong)


def apps_hear_nothing_of_what_came_back(patch: pytest.MonkeyPatch) -> None:
    original = api._view
    patch.setattr(api, "_view", lambda row: original(replace(row, refunded_minor=None)))


def resends_find_the_table_unavailable(patch: pytest.MonkeyPatch) -> None:
    def deaf(*arguments: Any) -> Any:
        answer = original(*arguments)
        return accept.NotStored() if isinstance(answer, accept.Replayed) else answer

    original = accept.accept_one
    patch.setattr(accept, "accept_one", deaf)
    patch.setattr(api, "accept_one", deaf)


def debits_go_to_nobodys_account(patch: pytest.MonkeyPatch) -> None:
    def wrong(new: Any, at_ms: int) -> dict[str, Any]:
        item = original(new, at_ms)
        return item | ({"contra": {"S": "agent:"}} if "contra" in item else {})

    original = items.entry_item
    patch.setattr(items, "entry_item", wrong)


def totals_of_refunds_are_not_raised(patch: pytest.MonkeyPatch) -> None:
    def flat(self: Any, asked: Any, seen: Any, decided: Any) -> dict[str, Any]:
        write = original(self, asked, seen, decided)
        if "Update" in write:
            values = write["Update"]["ExpressionAttributeValues"]
            values[":total"] = {"N": str(seen.refunded_minor)}
        return write

    original = aws_refunds.DynamoRefundBooks._total
    patch.setattr(aws_refunds.DynamoRefundBooks, "_total", flat)


def letters_of_one_subject_go_side_by_side(patch: pytest.MonkeyPatch) -> None:
    def apart(due: Sequence[letters.Letter]) -> list[list[letters.Letter]]:
        lanes: dict[str, list[letters.Letter]] = defaultdict(list)
        for letter in sorted(due, key=watch._sent_at_ms):
            lanes[letter.lane or letter.letter_id].append(letter)
        return list(lanes.values())

    patch.setattr(watch, "_lanes", apart)


def refunds_are_in_the_currency_of_whoever_has_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aws_refunds, "original_of", lambda _asked, seen: seen.row or seen.debit)


def _globals_of(function: str, name: str) -> list[dict[str, Any]]:
    """Where the wired handlers look a function up: their modules are nowhere else."""
    from tests.simulation.histories.functions import handlers

    settings = {(p.retention_days, p.budget_ms) for p in (plan(seed, 200) for seed in SEEDS)}
    found = []
    for each in sorted(settings):
        [wrapped] = [
            cell.cell_contents
            for cell in handlers(*each)[function].__closure__ or ()
            if name in getattr(cell.cell_contents, "__globals__", {})
        ]
        found.append(wrapped.__globals__)
    return found


BUGS: dict[Plant, tuple[int, set[str]]] = {
    funds_are_not_checked: (3, {"P2", "P3"}),
    fingerprints_are_not_checked: (31, {"P1"}),
    entries_may_be_written_again: (1, {"P1", "P3", "P7"}),
    rows_are_moved_whatever_they_are: (43, {"P4", "P5", "P6", "P8"}),
    the_stream_goes_on_behind_the_last_failure: (19, {"P5"}),
    entries_that_were_not_taken_are_forgotten: (19, {"P5"}),
    letters_go_before_they_are_kept: (29, {"P5"}),
    the_sweep_sends_nothing_again: (18, {"P5"}),
    only_the_first_of_a_group_comes_again: (5, {"P5"}),
    groups_are_not_phones: (1, {"P10"}),
    what_is_not_stored_is_accepted: (5, {"P5", "P6"}),
    events_are_told_under_new_ids: (25, {"P6"}),
    events_tell_another_amount: (1, {"P6"}),
    apps_hear_nothing_of_what_came_back: (1, {"P6"}),
    events_tell_another_reason: (1, {"P6"}),
    phones_are_logged: (1, {"P12"}),
    the_sweep_does_not_wait_longer_each_time: (8, {"P8"}),
    the_sweep_does_not_look_at_the_backlog: (1, {"P8"}),
    the_sweep_takes_up_whatever_is_due: (17, {"P8"}),
    the_sweep_lets_expire_what_waits_for_a_refund: (14, {"P5"}),
    entries_lose_when_the_device_captured_them: (1, {"P1"}),
    refunds_that_name_no_currency_mismatch: (1, {"P7"}),
    refunds_of_all_that_remains_exceed_it: (4, {"P7"}),
    originals_are_hardly_waited_for: (6, {"P7"}),
    triage_redrives_a_fourth_time: (5, {"TRIAGE"}),
    actions_are_nobodys: (1, {"TRIAGE"}),
    actions_have_no_reason: (1, {"TRIAGE"}),
    actions_are_dated_back: (1, {"TRIAGE"}),
    redrives_are_not_counted: (4, {"TRIAGE"}),
    apps_may_not_have_back_all_that_remains: (10, {"P6"}),
    credits_that_come_again_are_another_use: (6, {"P7"}),
    letters_are_closed_whatever_the_tables_say: (4, {"P5", "P8"}),
    what_is_redriven_is_not_sent: (5, {"P5"}),
    letters_hold_later_attempts: (185, {"P8"}),
    resends_find_the_table_unavailable: (1, {"P6"}),
    debits_go_to_nobodys_account: (1, {"P9"}),
    totals_of_refunds_are_not_raised: (1, {"P4"}),
    letters_of_one_subject_go_side_by_side: (1, {"TRIAGE"}),
    refunds_are_in_the_currency_of_whoever_has_the_key: (3, {"P4"}),
}
"""Each bug with the seed that found it last, and the promises that it may break."""


SELDOM_MET: Mapping[Plant, Callable[[Plan], Plan]] = {
    the_sweep_lets_expire_what_waits_for_a_refund: with_refunds_down_for_days,
    letters_of_one_subject_go_side_by_side: with_events_given_up_twice,
    refunds_are_in_the_currency_of_whoever_has_the_key: with_keys_used_again_in_dollars,
}
"""What hardly any history meets, with what has to befall one that it shows."""


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within all of `SEEDS`, from the one on that found it last: the others only take time."""
    plant(monkeypatch)
    found_by, promises = BUGS[plant]
    for seed in (*SEEDS[found_by - 1 :], *SEEDS[: found_by - 1]):
        history = plan(seed, STEPS)
        played = play(SELDOM_MET[plant](history) if plant in SELDOM_MET else history)
        if played.failed:
            assert played.broken in promises, played.what
            return
    pytest.fail(f"{plant.__name__} was not found in {len(SEEDS)} histories")


@pytest.mark.parametrize("befalls", SELDOM_MET.values(), ids=lambda befalls: befalls.__name__)
def test_what_has_to_befall_a_history_breaks_nothing_by_itself(
    befalls: Callable[[Plan], Plan],
) -> None:
    for seed in SEEDS[:3]:
        played = play(befalls(plan(seed, STEPS)))
        assert not played.failed, f"seed {seed}: {played.what}"
