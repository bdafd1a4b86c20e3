"""`DeadLetters` and `Subjects`: letter, row and budget move together, from what was seen."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from tests.contract.places import Place
from tests.fakes.dead_letters import BUG, left, record, verbatim
from tests.fakes.memory import START_MS, FakeClock
from tests.fakes.samples import (
    PHONE,
    credit,
    debit,
    posting,
    refund,
    row_of,
    status_change,
)
from triage.act import Desk
from triage.desk import handle_request
from triage.reading import read
from wallet_ledger.domain.letters import (
    AUTOMATIC_AFTER_MS,
    LETTER_SHARDS,
    Action,
    Budget,
    Letter,
    LetterStatus,
    Standing,
    diagnose,
    discarded,
    held,
    letter_shard,
    moved,
    opened,
    released,
)
from wallet_ledger.domain.postings import Committed, NewEntry, Posting
from wallet_ledger.domain.transactions import (
    OPEN_SHARDS,
    OfflineTransaction,
    PendingRefund,
    Reason,
    Status,
)
from wallet_ledger.domain.wallets import Debit, Movement, Rejected, WalletStatus
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import DeadLetters, LetterPage, RowMove

NOW_MS = START_MS + 5_000
RECORD = verbatim(left(debit()))
SPENT = Budget(by_hand=1)


def letter_of(
    number: int = 0, standing: Standing = Standing.OPEN, *, at_ms: int = START_MS
) -> Letter:
    """One that waits, or by its standing one that is closed, parked or stale."""
    arrival = read(left(debit(), message_id=f"M-{number}"))
    diagnosis = diagnose(arrival.failure, standing, Budget())
    return opened(arrival, diagnosis, Budget(), preview="p", now_ms=at_ms)


def after(letter: Letter, status: LetterStatus, who: str = "amina") -> Letter:
    """The letter after an action."""
    return moved(letter, status, Action(NOW_MS, who, str(status), "mended"))


@pytest.fixture
def letters(place: Place) -> DeadLetters:
    """The port, where finished letters are kept for good."""
    return place.dead_letters()


def holding(place: Place) -> tuple[Letter, OfflineTransaction]:
    """A letter that holds a row."""
    row, letter = row_of(debit()), letter_of()
    place.put_row(row)
    waits = held(row, letter.letter_id, START_MS)
    assert place.dead_letters().file(letter, RECORD, RowMove(row, waits))
    return letter, waits


def row_now(place: Place, wanted: Debit | None = None) -> OfflineTransaction | None:
    """The row of a debit."""
    asked = wanted or debit()
    return place.accepted().find(asked.agent_id, asked.idempotency_key)


# --- filing ---------------------------------------------------------------------------------------


def test_a_letter_is_kept_with_its_record_and_its_row_waits(
    place: Place, letters: DeadLetters
) -> None:
    letter, waits = holding(place)

    assert letters.find(letter.letter_id) == letter
    assert letters.record(letter.letter_id) == RECORD
    assert row_now(place) == waits
    for shard in range(OPEN_SHARDS):
        assert list(place.open_transactions().open_rows(shard, 10)) == []


def test_nothing_is_known_of_what_was_never_kept(place: Place, letters: DeadLetters) -> None:
    assert letters.find("nothing") is None
    assert letters.record("nothing") is None
    assert letters.budget("nothing") == Budget()


def test_a_letter_is_kept_once_whatever_else_comes_with_it(
    place: Place, letters: DeadLetters
) -> None:
    letter, _ = holding(place)
    other = row_of(debit("K-2"))
    place.put_row(other)
    before = place.everything()

    again = replace(letter, why="other", status=LetterStatus.PARKED)
    hold = RowMove(other, held(other, letter.letter_id, NOW_MS))

    assert not letters.file(again, "other", hold)
    assert not letters.file(again, "other", None)
    assert place.everything() == before


def test_what_is_left_of_a_purged_letter_keeps_no_other_from_being_kept(
    place: Place, letters: DeadLetters
) -> None:
    """Time to live takes item by item, and a message may come once more meanwhile."""
    letter = letter_of()
    assert letters.file(letter, "the old record", None)
    place.purge_letter(letter.letter_id)

    assert letters.file(letter, RECORD, None)

    assert letters.find(letter.letter_id) == letter
    assert letters.record(letter.letter_id) == RECORD


ELSEWHERE: dict[str, Callable[[OfflineTransaction], OfflineTransaction | None]] = {
    "gone": lambda _: None,
    "sent again": lambda row: replace(row, attempt=2),
    "settled": lambda row: replace(row, status=Status.SYNCED, next_sweep_at_ms=None),
    "held by another": lambda row: held(row, "L-other", START_MS),
    "asked for differently": lambda row: replace(row, fingerprint=row_of(debit("x")).fingerprint),
    "given back": lambda row: replace(row, refunded_minor=1),
    "wanted back": lambda row: replace(row, refund_request=PendingRefund("R-1", None, "x")),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_letter_whose_row_has_moved_is_not_kept_and_the_row_stays(
    place: Place, letters: DeadLetters, name: str
) -> None:
    seen, letter = row_of(debit()), letter_of()
    there = ELSEWHERE[name](seen)
    if there is not None:
        place.put_row(there)
    before = place.everything()

    assert not letters.file(letter, RECORD, RowMove(seen, held(seen, letter.letter_id, NOW_MS)))

    assert place.everything() == before
    assert letters.find(letter.letter_id) is None
    assert letters.record(letter.letter_id) is None


@pytest.mark.parametrize("body", ["{bad", "é" * 524_288, '"' * 1_048_576])
def test_a_record_comes_back_word_for_word_however_long(
    place: Place, letters: DeadLetters, body: str
) -> None:
    told = verbatim(record("TxDLQ.fifo", body))
    letter = letter_of()

    assert letters.file(letter, told, None)

    assert letters.record(letter.letter_id) == told
    kept = letters.find(letter.letter_id)
    assert kept is not None
    assert replace(kept, record_parts=1) == letter


# --- moving ---------------------------------------------------------------------------------------


def test_a_letter_its_row_and_its_budget_move_in_one_step(
    place: Place, letters: DeadLetters
) -> None:
    letter, waits = holding(place)
    done, queued = after(letter, LetterStatus.REDRIVEN), released(waits, NOW_MS)

    assert letters.move(letter, done, RowMove(waits, queued), SPENT)

    assert letters.find(letter.letter_id) == done
    assert row_now(place) == queued
    assert letters.budget(letter.subject_ref) == Budget(by_hand=1)
    assert letters.record(letter.letter_id) == RECORD


def test_an_action_upon_what_somebody_has_changed_writes_nothing(
    place: Place, letters: DeadLetters
) -> None:
    letter, waits = holding(place)
    release = RowMove(waits, released(waits, NOW_MS))
    noted = after(letter, LetterStatus.WAITING, "otieno")
    assert letters.move(letter, noted)
    stale_row = RowMove(row_of(debit()), release.after)
    before = place.everything()

    assert not letters.move(letter, after(letter, LetterStatus.REDRIVEN), release, SPENT)
    assert not letters.move(noted, after(noted, LetterStatus.REDRIVEN), stale_row, SPENT)
    nobodys = replace(noted, letter_id="nothing")
    assert not letters.move(nobodys, after(nobodys, LetterStatus.CLOSED))

    assert place.everything() == before
    assert letters.move(noted, after(noted, LetterStatus.REDRIVEN), release, SPENT)
    kept = letters.find(letter.letter_id)
    assert kept is not None
    assert [each.who for each in kept.history] == ["otieno", "amina"]
    assert kept.revision == 3


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_letter_whose_row_has_moved_moves_neither_itself_nor_its_budget(
    place: Place, letters: DeadLetters, name: str
) -> None:
    letter, waits = holding(place)
    there = ELSEWHERE[name](waits)
    if there is None:
        place.purge(waits.agent_id, waits.idempotency_key)
    else:
        place.put_row(there)
    before = place.everything()
    done, release = after(letter, LetterStatus.REDRIVEN), RowMove(waits, released(waits, NOW_MS))

    assert letters.move(letter, done, release, SPENT) == (name == "held by another")

    assert (place.everything() == before) == (name != "held by another")


def test_a_budget_adds_up_over_the_letters_of_a_subject(place: Place, letters: DeadLetters) -> None:
    for number, spent in enumerate([Budget(1, 0), Budget(0, 1), Budget(1, 0), None]):
        letter = letter_of(number)
        assert letters.file(letter, RECORD, None)
        assert letters.move(letter, after(letter, LetterStatus.REDRIVEN), None, spent)

    assert letters.budget(letter_of().subject_ref) == Budget(automatic=2, by_hand=1)


def test_a_discarded_row_is_kept_for_good(place: Place) -> None:
    letters = place.dead_letters(retention_days=30)
    letter, waits = holding(place)
    gone = discarded(waits, NOW_MS)

    assert letters.move(letter, after(letter, LetterStatus.DISCARDED), RowMove(waits, gone))

    assert row_now(place) == gone
    assert place.purge_at_s(gone.agent_id, gone.idempotency_key) is None


def test_only_what_is_dealt_with_may_be_purged_and_its_record_with_it(place: Place) -> None:
    letters = place.dead_letters(retention_days=30)
    waiting, closed = letter_of(1), letter_of(2, Standing.DECIDED)
    long_record = RECORD + " " * 700_000
    for letter in (waiting, closed):
        assert letters.file(letter, long_record, None)
    assert place.letter_purges(waiting.letter_id) == {None}
    assert place.letter_purges(closed.letter_id) == {START_MS // 1000 + 30 * 86_400}

    kept = letters.find(waiting.letter_id)
    assert kept is not None
    assert letters.move(kept, looked := after(kept, LetterStatus.PARKED))
    assert place.letter_purges(waiting.letter_id) == {None}
    assert letters.move(looked, after(looked, LetterStatus.CLOSED))
    assert place.letter_purges(waiting.letter_id) == {NOW_MS // 1000 + 30 * 86_400}

    for_good = letter_of(3, Standing.DECIDED)
    assert place.dead_letters(retention_days=0).file(for_good, RECORD, None)
    assert place.letter_purges(for_good.letter_id) == {None}


def test_a_later_look_is_no_change_of_the_letter(place: Place, letters: DeadLetters) -> None:
    letter, _ = holding(place)
    later = replace(letter, due_at_ms=NOW_MS)

    assert letters.look_later(later)
    assert letters.find(letter.letter_id) == later

    noted = after(letter, LetterStatus.WAITING)  # by somebody who had read it before
    assert letters.move(letter, noted)
    assert letters.find(letter.letter_id) == replace(noted, due_at_ms=NOW_MS)
    assert not letters.look_later(letter)
    closed = after(replace(noted, due_at_ms=NOW_MS), LetterStatus.CLOSED)
    assert letters.move(replace(noted, due_at_ms=NOW_MS), closed)
    assert not letters.look_later(replace(letter, revision=3))
    assert not letters.look_later(letter_of(9))
    assert letters.find(letter.letter_id) == closed
    assert letters.find(letter_of(9).letter_id) is None


# --- lists ----------------------------------------------------------------------------------------


def of_one_shard(count: int) -> tuple[int, list[int]]:
    """A shard, and numbers of letters that are in it."""
    shard = letter_shard(letter_of(0).letter_id)
    same = [n for n in range(500) if letter_shard(letter_of(n).letter_id) == shard]
    return shard, same[:count]


def pages(letters: DeadLetters, ask: LetterPage) -> list[Sequence[Letter]]:
    """All pages, to the end."""
    found = []
    while True:
        page = letters.page(ask)
        found.append(page.letters)
        if page.ended is None:
            return found
        ask = replace(ask, after=page.ended)


def test_a_shard_lists_its_open_letters_by_their_next_look_and_all_by_their_arrival(
    place: Place, letters: DeadLetters
) -> None:
    shard, numbers = of_one_shard(5)
    offsets = (3, 0, 4, 1, 2)
    kept = [letter_of(n, at_ms=START_MS + at) for n, at in zip(numbers, offsets, strict=True)]
    closed = letter_of(501, Standing.DECIDED, at_ms=START_MS)
    for letter in (*kept, closed):
        assert letters.file(letter, RECORD, None)
    earlier = replace(kept[2], due_at_ms=START_MS)
    assert letters.look_later(earlier)
    in_order = sorted(kept, key=lambda each: each.arrived_at_ms)

    open_now = letters.page(LetterPage(shard, True, 10))
    assert list(open_now.letters) == [earlier, *in_order[:4]]
    assert open_now.ended is None
    every = pages(letters, LetterPage(shard, False, 2))
    assert max(map(len, every)) == 2
    assert [each for page in every for each in page] == [*in_order[:4], earlier]
    assert [each for page in pages(letters, LetterPage(shard, True, 3)) for each in page] == [
        earlier,
        *in_order[:4],
    ]

    assert letters.move(in_order[0], done := after(in_order[0], LetterStatus.CLOSED))
    assert list(letters.page(LetterPage(shard, True, 10)).letters) == [earlier, *in_order[1:4]]
    assert letters.page(LetterPage(shard, False, 10)).letters[0] == done


def test_a_list_of_all_letters_is_bounded_by_their_arrival(
    place: Place, letters: DeadLetters
) -> None:
    shard, numbers = of_one_shard(4)
    kept = [letter_of(n, at_ms=START_MS + at) for at, n in enumerate(numbers)]
    for letter in kept:
        assert letters.file(letter, RECORD, None)
    ask = LetterPage(shard, False, 1, None, START_MS + 1, START_MS + 2)

    assert [each for page in pages(letters, ask) for each in page] == kept[1:3]
    # Letters that are open come by their next look: their arrival bounds nothing there.
    due_first = pages(letters, replace(ask, open_only=True, limit=3))
    assert [each for page in due_first for each in page] == kept


def test_each_letter_is_in_one_shard_and_a_place_in_it_outlives_its_letter(
    place: Place, letters: DeadLetters
) -> None:
    kept = [letter_of(number, at_ms=START_MS + number) for number in range(20)]
    for letter in kept:
        assert letters.file(letter, RECORD, None)
    found = [
        each.letter_id
        for shard in range(LETTER_SHARDS)
        for each in letters.page(LetterPage(shard, True, 50)).letters
    ]
    assert sorted(found) == sorted(each.letter_id for each in kept)

    first = kept[0]
    shard = letter_shard(first.letter_id)
    ended = (START_MS + AUTOMATIC_AFTER_MS[0], first.letter_id)
    assert letters.move(first, after(first, LetterStatus.CLOSED))
    rest = letters.page(LetterPage(shard, True, 50, ended)).letters
    assert [each.letter_id for each in rest] == [
        each.letter_id for each in kept[1:] if letter_shard(each.letter_id) == shard
    ]


def test_a_letter_of_a_later_version_stops_no_list_no_group_and_no_clock(
    place: Place, letters: DeadLetters
) -> None:
    """As after a roll-back: it is named where it stands, and what comes after it is found."""
    shard, numbers = of_one_shard(3)
    kept = [letter_of(n, at_ms=START_MS + at) for at, n in enumerate(numbers)]
    for letter in kept:
        assert letters.file(letter, RECORD, None)
    first, odd, last = kept
    place.spoil_letter(odd.letter_id)

    for open_only in (True, False):
        page = letters.page(LetterPage(shard, open_only, 2))
        assert (page.letters, page.unreadable) == ([first], (odd.letter_id,))
        assert letters.page(LetterPage(shard, open_only, 2, page.ended)).letters == [last]
    with pytest.raises(ValueError, match="of_tomorrow|" + odd.letter_id):
        letters.find(odd.letter_id)

    desk = Desk(letters, place.subjects(), {}, FakeClock(NOW_MS + AUTOMATIC_AFTER_MS[0]))
    by = {"who": "amina", "why": "x", "letterIds": [odd.letter_id, last.letter_id]}
    listed = ask(desk, {"action": "list", "scope": "all"})["letters"]
    assert {each["letterId"] for each in listed} == {first.letter_id, last.letter_id}
    [group] = ask(desk, {"action": "groups"})["groups"]
    assert group["count"] == 2
    done = ask(desk, {"action": "discard", "dryRun": True} | by)["results"]
    assert [each["outcome"] for each in done] == ["contended", "discarded"]
    assert ask(desk, {"action": "due"}) == {"openLetters": 2, "parkedLetters": 0, "parked": 2}


def ask(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """The desk's answer."""
    return handle_request(request, desk, 2**63)


# --- races ----------------------------------------------------------------------------------------


def at_once(calls: Sequence[Callable[[], bool]]) -> list[bool]:
    """What each answers, all of them started together; contention is a no."""
    together = Barrier(len(calls), timeout=10)

    def run(call: Callable[[], bool]) -> bool:
        together.wait()
        try:
            return call()
        except Unavailable:
            return False

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_of_redrives_and_discards_at_once_one_counts(place: Place, letters: DeadLetters) -> None:
    letter, waits = holding(place)

    def redrive(who: str) -> bool:
        release = RowMove(waits, released(waits, NOW_MS))
        return letters.move(letter, after(letter, LetterStatus.REDRIVEN, who), release, SPENT)

    def discard() -> bool:
        refuse = RowMove(waits, discarded(waits, NOW_MS))
        return letters.move(letter, after(letter, LetterStatus.DISCARDED), refuse)

    done = at_once([*(partial(redrive, f"p{number}") for number in range(4)), discard])

    assert sum(done) == 1
    kept, row = letters.find(letter.letter_id), row_now(place)
    assert kept is not None
    assert row is not None
    assert (kept.revision, len(kept.history)) == (2, 1)
    if done[-1]:
        assert (kept.status, row.status) == (LetterStatus.DISCARDED, Status.FAILED)
    else:
        assert (kept.status, row.attempt) == (LetterStatus.REDRIVEN, 2)
    assert letters.budget(letter.subject_ref).by_hand == (0 if done[-1] else 1)


def test_of_letters_of_one_row_filed_at_once_one_holds_it(
    place: Place, letters: DeadLetters
) -> None:
    row = row_of(debit())
    place.put_row(row)
    kept = [letter_of(number) for number in (0, 0, 1, 2)]

    def file(letter: Letter) -> bool:
        return letters.file(letter, RECORD, RowMove(row, held(row, letter.letter_id, START_MS)))

    done = at_once([partial(file, letter) for letter in kept])

    assert sum(done) == 1
    now = row_now(place)
    assert now is not None
    assert now.held_by == kept[done.index(True)].letter_id
    assert [each for each in kept if letters.find(each.letter_id)] != []


# --- subjects -------------------------------------------------------------------------------------


def test_what_the_ledger_and_the_rows_say_of_a_subject(place: Place) -> None:
    subjects, books = place.subjects(), place.ledger()
    posted, declined, unknown = debit("K-1", 60), debit("K-2", 10_000), debit("K-3", 60)
    frozen = status_change(status=WalletStatus.FROZEN)
    for each in (posted, declined, unknown):
        place.put_row(row_of(each))
    assert not subjects.decided(posted)

    assert books.post(posting(None, credit("C-1", 100), posted)) == Committed()
    assert books.post(posting(books.wallet(posted.phone), declined)) == Committed()

    known: list[Movement] = [credit("C-1", 100), posted, declined, replace(posted, attempt=7)]
    others: list[Movement] = [unknown, credit("C-1", 99), credit("C-2"), frozen, debit("K-1", 61)]
    assert [subjects.decided(each) for each in known] == [True] * 4
    assert [subjects.decided(each) for each in others] == [False] * 5
    assert subjects.row(unknown) == row_of(unknown)
    assert subjects.row(debit("K-9")) is None
    asked = refund(key="K-1")
    assert subjects.see(asked) == place.refund_books().see(asked)
    assert subjects.see(asked).debit is not None


def test_the_refusal_of_a_reused_id_decides_those_who_reused_it(place: Place) -> None:
    subjects, books = place.subjects(), place.ledger()
    first, reuse = credit("C-1", 100), credit("C-1", 7)
    assert books.post(posting(None, first)) == Committed()
    seen = books.wallet(first.phone)
    refused = NewEntry(reuse, Rejected(Reason.KEY_REUSED))
    assert books.post(Posting(first.phone, seen, seen, 0, (refused,), (), NOW_MS)) == Committed()

    assert [subjects.decided(each) for each in (first, reuse, credit("C-1", 8))] == [
        True,
        True,
        False,
    ]


def test_a_parked_letter_of_a_bug_is_filed_as_it_is(place: Place, letters: DeadLetters) -> None:
    arrival = read(left(credit("C-1", phone=PHONE), BUG))
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())
    letter = opened(arrival, diagnosis, Budget(), preview="p", now_ms=START_MS)
    full = replace(letter, history=(Action(1, "a", "b", "c"), Action(2, "é", "…", "中")))

    assert letters.file(full, RECORD, None)

    assert letters.find(full.letter_id) == full
