"""Accepting is one conditional write under the key: new, a replay, another meaning, or not now."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Barrier, Event, Lock, get_ident

from hypothesis import given
from hypothesis import strategies as st

from ingest.accept import (
    WORKERS_MAX,
    Acceptance,
    Accepted,
    KeyReused,
    NotStored,
    Replayed,
    accept_many,
    accept_one,
)
from tests.fakes.memory import FakeAcceptedTransactions, FakeClock, Store
from tests.fakes.scripted import Call, around, scripted, unavailable
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.transactions import Request, Status
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import AcceptedTransactions

OPEN_DAYS = 7


def _request(key: str = "k-1", phone: str = "254712345678", amount_minor: int = 100) -> Request:
    return Request(
        AgentId("AG-001"), IdempotencyKey(key), Phone(phone), amount_minor, Currency("KES")
    )


def _accept(requests: Sequence[Request], table: AcceptedTransactions) -> list[Acceptance]:
    return accept_many(requests, table, FakeClock(), OPEN_DAYS, in_thread=lambda call: call)


def _accept_all(store: Store, requests: Sequence[Request]) -> list[Acceptance]:
    return _accept(requests, FakeAcceptedTransactions(store))


def test_a_new_request_is_stored_queued_and_open_for_seven_days() -> None:
    store, clock = Store(), FakeClock(now_ms=1_000_000_000_000)
    answer = accept_one(_request(), FakeAcceptedTransactions(store), clock, OPEN_DAYS)
    (row,) = store.rows.values()
    assert answer == Accepted(row)
    assert (row.status, row.attempt, row.created_at_ms) == (Status.QUEUED, 1, 1_000_000_000_000)
    assert row.expires_at_s == 1_000_000_000 + 7 * 86_400
    assert row.next_sweep_at_ms == 1_000_000_120_000


def test_c41_what_the_device_says_of_its_clock_moves_neither_expiry_nor_identity() -> None:
    store, clock = Store(), FakeClock()
    table = FakeAcceptedTransactions(store)
    claim = replace(_request(), captured_at="2099-01-01T00:00:00Z")
    accept_one(claim, table, clock, OPEN_DAYS)
    (row,) = store.rows.values()
    accept_one(_request("k-2"), table, clock, OPEN_DAYS)
    plain = store.rows[AgentId("AG-001"), IdempotencyKey("k-2")]
    assert (row.expires_at_s, row.next_sweep_at_ms) == (plain.expires_at_s, plain.next_sweep_at_ms)
    assert row.captured_at == "2099-01-01T00:00:00Z"
    assert accept_one(_request(), table, clock, OPEN_DAYS) == Replayed(row)


def test_p7_another_meaning_of_a_key_names_what_differs_and_changes_nothing() -> None:
    store, clock = Store(), FakeClock()
    table = FakeAcceptedTransactions(store)
    accept_one(_request(), table, clock, OPEN_DAYS)
    before = dict(store.rows)
    for other, fields in (
        (replace(_request(), amount_minor=101), ("amount",)),
        (replace(_request(), phone=Phone("254733000111")), ("phone",)),
        (replace(_request(), currency=Currency("TZS")), ("currency",)),
        (_request("k-1", "254733000111", 5), ("phone", "amount")),
    ):
        assert accept_one(other, table, clock, OPEN_DAYS) == KeyReused(fields)
    assert store.rows == before


def test_p11_the_same_key_of_another_agent_is_another_transaction() -> None:
    store = Store()
    other = replace(_request(), agent_id=AgentId("AG-002"))
    answers = _accept_all(store, [_request()]) + _accept_all(store, [other])
    assert [type(answer) for answer in answers] == [Accepted, Accepted]
    assert len({row.fingerprint for row in store.rows.values()}) == len(store.rows) == 2


def test_a_table_that_does_not_answer_is_not_now_and_never_a_refusal() -> None:
    store = Store()
    table = scripted(FakeAcceptedTransactions(store), "put_if_new", [unavailable("Throttling")])
    assert accept_one(_request(), table, FakeClock(), OPEN_DAYS) == NotStored()
    assert not store.rows
    assert isinstance(accept_one(_request(), table, FakeClock(), OPEN_DAYS), Accepted)


def test_c44_one_key_three_times_in_one_batch_is_accepted_replayed_and_refused() -> None:
    store = Store()
    batch = [_request(), _request(), _request(amount_minor=250)]
    answers = _accept_all(store, batch)
    (row,) = store.rows.values()
    assert answers == [Accepted(row), Replayed(row), KeyReused(("amount",))]


def test_c44_a_key_that_comes_again_for_another_phone_never_overtakes_its_first_use() -> None:
    overtaken = Event()

    def slow_at_first(call: Call) -> object:
        if call.arguments[0].phone == "254712345678":
            overtaken.wait(0.1)
            return call.proceed()
        answer = call.proceed()
        overtaken.set()
        return answer

    table = around(FakeAcceptedTransactions(Store()), slow_at_first)
    batch = [_request("k", "254712345678"), _request("k", "254733000111")]
    first, second = _accept(batch, table)
    assert isinstance(first, Accepted)
    assert second == KeyReused(("phone",))


def test_p10_the_requests_of_one_phone_are_stored_in_their_order() -> None:
    stored: list[str] = []
    lock = Lock()

    def note(call: Call) -> object:
        with lock:
            stored.append(call.arguments[0].idempotency_key)
        return call.proceed()

    table = around(FakeAcceptedTransactions(Store()), note)
    phones = ["254712345678", "254733000111", "254722000222"]
    batch = [_request(f"{n:02d}", phones[n % 3]) for n in range(45)]
    _accept(batch, table)
    for lane in range(3):
        mine = [key for key in stored if int(key) % 3 == lane]
        assert mine == sorted(mine)
    assert len(stored) == 45


def test_p10_after_one_that_was_not_stored_no_later_one_of_its_phone_is() -> None:
    """Nor one whose key came before; other phones go on, and the same batch again is in order."""
    stored: list[str] = []
    failing = {"2"}

    def fail(call: Call) -> object:
        key = call.arguments[0].idempotency_key
        if key in failing:
            raise Unavailable("Throttling")
        answer = call.proceed()
        stored.append(key)
        return answer

    table = around(FakeAcceptedTransactions(Store()), fail)
    batch = [_request(key) for key in ("1", "2", "3", "3", "2")]
    batch += [_request("a", "254733000111"), _request("b", "254733000111")]
    answers = [type(answer) for answer in _accept(batch, table)]
    assert answers == [Accepted, *[NotStored] * 4, Accepted, Accepted]
    assert [key for key in stored if key.isdecimal()] == ["1"]
    failing.clear()
    answers = [type(answer) for answer in _accept(batch, table)]
    assert answers == [Replayed, Accepted, Accepted, *[Replayed] * 4]


def test_a_batch_of_many_phones_is_stored_ten_phones_at_a_time() -> None:
    together = Barrier(WORKERS_MAX, timeout=10)
    threads: set[int] = set()

    def wait_for_the_others(call: Call) -> object:
        threads.add(get_ident())
        together.wait()
        return call.proceed()

    table = around(FakeAcceptedTransactions(Store()), wait_for_the_others)
    batch = [_request(f"k-{n}", f"2547{n:08d}") for n in range(5 * WORKERS_MAX)]
    answers = _accept(batch, table)
    assert {type(answer) for answer in answers} == {Accepted}
    assert len(threads) == WORKERS_MAX == 10


def test_what_runs_in_other_threads_is_prepared_for_them_first() -> None:
    ran: list[int] = []

    def in_thread(run: Callable[[Sequence[int]], None]) -> Callable[[Sequence[int]], None]:
        def prepared(lane: Sequence[int]) -> None:
            ran.extend(lane)
            run(lane)

        return prepared

    batch = [_request(f"k-{n}", f"2547{n:08d}") for n in range(3)]
    table = FakeAcceptedTransactions(Store())
    accept_many(batch, table, FakeClock(), OPEN_DAYS, in_thread=in_thread)
    assert sorted(ran) == [0, 1, 2]


def test_an_empty_batch_is_answered_with_nothing() -> None:
    assert _accept_all(Store(), []) == []


REQUESTS = st.builds(
    _request,
    st.sampled_from(["k-1", "k-2", "k-3"]),
    st.sampled_from(["254712345678", "254733000111"]),
    st.integers(1, 2),
)


@given(st.lists(REQUESTS, max_size=12))
def test_p1_a_batch_is_answered_as_if_its_requests_came_one_by_one(batch: list[Request]) -> None:
    store, table = Store(), FakeAcceptedTransactions(Store())
    one_by_one = [accept_one(request, table, FakeClock(), OPEN_DAYS) for request in batch]
    assert _accept_all(store, batch) == one_by_one
    assert len(store.rows) == len({request.idempotency_key for request in batch})
