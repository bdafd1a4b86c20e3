"""`decide`: what the books say to a list of movements, against a model that knows no better."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.samples import KES, PHONE, USD, credit, debit, status_change, wallet
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX, Reason
from wallet_ledger.domain.wallets import (
    BALANCE_MINOR_MAX,
    Credit,
    Debit,
    Decision,
    Movement,
    Posted,
    Rejected,
    StatusChange,
    Wallet,
    WalletStatus,
    decide,
)

FROZEN, ACTIVE = WalletStatus.FROZEN, WalletStatus.ACTIVE

# --- one movement ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "movement", "outcome"),
    [
        (None, debit(), Rejected(Reason.WALLET_NOT_FOUND)),
        (wallet(), debit(amount_minor=1000), Posted(2, 0)),
        (wallet(), debit(amount_minor=1001), Rejected(Reason.INSUFFICIENT_FUNDS)),
        (wallet(0), debit(amount_minor=1), Rejected(Reason.INSUFFICIENT_FUNDS)),
        (wallet(), debit(currency=USD), Rejected(Reason.CURRENCY_MISMATCH)),
        (wallet(status=FROZEN), debit(), Rejected(Reason.WALLET_FROZEN)),
        (None, credit(currency=USD), Posted(1, 1000)),
        (wallet(status=FROZEN), credit(), Posted(2, 2000)),
        (wallet(), credit(currency=USD), Rejected(Reason.CURRENCY_MISMATCH)),
        (wallet(BALANCE_MINOR_MAX - 5), credit(amount_minor=5), Posted(2, BALANCE_MINOR_MAX)),
        (wallet(BALANCE_MINOR_MAX - 5), credit(amount_minor=6), Rejected(Reason.BALANCE_LIMIT)),
        (None, status_change(), Posted(1, 0)),
        (wallet(status=FROZEN), status_change(status=FROZEN), Posted(2, 1000)),
        (wallet(status=FROZEN), status_change(status=ACTIVE), Posted(2, 1000)),
    ],
)
def test_a_movement_is_posted_or_refused_for_its_reason(
    seen: Wallet | None, movement: Movement, outcome: object
) -> None:
    assert decide(seen, [movement]).outcomes == (outcome,)


@pytest.mark.parametrize(
    ("seen", "movement", "reason"),
    [
        (wallet(0, status=FROZEN), debit(currency=USD), Reason.CURRENCY_MISMATCH),
        (wallet(0, status=FROZEN), debit(), Reason.WALLET_FROZEN),
        (wallet(BALANCE_MINOR_MAX), credit(currency=USD), Reason.CURRENCY_MISMATCH),
    ],
)
def test_the_first_rule_that_is_broken_is_the_reason(
    seen: Wallet, movement: Movement, reason: Reason
) -> None:
    assert decide(seen, [movement]).outcomes == (Rejected(reason),)


def test_no_movement_decides_nothing() -> None:
    assert decide(None, []) == Decision((), None, 0)
    assert decide(wallet(), []) == Decision((), wallet(), 0)


# --- several in their order ------------------------------------------------------------------


def test_a_credit_pays_for_the_debit_behind_it_and_not_for_the_one_before() -> None:
    wanted: list[Movement] = [debit("K-1", 300), credit("C-1", 200), debit("K-2", 300)]

    decision = decide(wallet(100), wanted)

    assert decision.outcomes == (
        Rejected(Reason.INSUFFICIENT_FUNDS),
        Posted(2, 300),
        Posted(3, 0),
    )


def test_a_refused_debit_leaves_room_for_a_smaller_one() -> None:
    decision = decide(wallet(100), [debit("K-1", 101), debit("K-2", 100)])

    assert decision.outcomes == (Rejected(Reason.INSUFFICIENT_FUNDS), Posted(2, 0))
    assert decision.after == replace(wallet(0), version=2)


def test_a_wallet_that_opens_and_freezes_on_the_way_is_seen_so_by_what_follows() -> None:
    wanted: list[Movement] = [
        debit("K-1"),
        credit("C-1", 50, currency=USD),
        debit("K-2"),
        status_change("S-1", FROZEN),
        debit("K-3", 10, currency=USD),
        status_change("S-2", ACTIVE),
        debit("K-4", 10, currency=USD),
    ]

    decision = decide(None, wanted)

    assert decision.outcomes == (
        Rejected(Reason.WALLET_NOT_FOUND),
        Posted(1, 50),
        Rejected(Reason.CURRENCY_MISMATCH),
        Posted(2, 50),
        Rejected(Reason.WALLET_FROZEN),
        Posted(3, 50),
        Posted(4, 40),
    )
    assert decision.after == Wallet(PHONE, 40, USD, 4, ACTIVE)


def test_what_is_needed_is_the_deepest_the_balance_sinks_below_where_it_began() -> None:
    wanted: list[Movement] = [
        debit("K-1", 30),
        credit("C-1", 100),
        debit("K-2", 90),
        debit("K-3", 15),
    ]

    assert decide(wallet(100), wanted).needed_minor == 35


def test_what_was_refused_needs_nothing() -> None:
    assert decide(wallet(10), [debit("K-1", 11), credit("C-1", 5)]).needed_minor == 0


# --- any list, against the plain model --------------------------------------------------------

amounts = st.one_of(st.integers(1, 300), st.sampled_from([AMOUNT_MINOR_MAX, 2**40]))
currencies = st.sampled_from([KES, KES, KES, USD])
statuses = st.sampled_from(WalletStatus)


@st.composite
def movement_lists(draw: st.DrawFn) -> list[Movement]:
    """Movements of one wallet, each with an id of its own."""
    movements: list[Movement] = []
    for number in range(draw(st.integers(0, 12))):
        amount, currency = draw(amounts), draw(currencies)
        match draw(st.sampled_from(["debit", "debit", "credit", "status"])):
            case "debit":
                movements.append(debit(f"K-{number}", amount, currency=currency))
            case "credit":
                movements.append(credit(f"C-{number}", amount, currency=currency))
            case _:
                movements.append(status_change(f"S-{number}", draw(statuses), currency=currency))
    return movements


balances = st.one_of(st.integers(0, 500), st.just(BALANCE_MINOR_MAX - 100), st.just(2**41))
wallets = st.one_of(
    st.none(),
    st.builds(wallet, balances, version=st.integers(1, 9), currency=currencies, status=statuses),
)


def plain(seen: Wallet | None, movements: Sequence[Movement]) -> list[tuple[bool, int | None]]:
    """Whether each movement is posted, and the balance it leaves: written as one would say it."""
    balance = seen.balance_minor if seen else None
    currency = seen.currency if seen else None
    frozen = seen is not None and seen.status is FROZEN
    said: list[tuple[bool, int | None]] = []
    for movement in movements:
        good = False
        if isinstance(movement, Debit) and balance is not None and not frozen:
            good = currency == movement.currency and balance >= movement.amount_minor
            balance -= movement.amount_minor if good else 0
        elif isinstance(movement, Credit):
            total = (balance or 0) + movement.amount_minor
            good = currency in {None, movement.currency} and total <= 9_007_199_254_740_991
            balance = total if good else balance
        elif isinstance(movement, StatusChange):
            good, balance, frozen = True, balance or 0, movement.status is FROZEN
        if good:
            currency = currency or movement.currency
        said.append((good, balance))
    return said


def change_of(movement: Movement) -> int:
    """What a posted movement adds to the balance."""
    match movement:
        case Debit():
            return -movement.amount_minor
        case Credit():
            return movement.amount_minor
        case StatusChange():
            return 0


@given(wallets, movement_lists())
def test_any_list_is_decided_as_the_plain_model_says(
    seen: Wallet | None, movements: list[Movement]
) -> None:
    decision = decide(seen, movements)

    said = plain(seen, movements)
    assert len(decision.outcomes) == len(movements)
    version = seen.version if seen else 0
    for outcome, (posted, balance) in zip(decision.outcomes, said, strict=True):
        assert isinstance(outcome, Posted) is posted
        if isinstance(outcome, Posted):
            version += 1
            assert outcome == Posted(version, balance or 0)
            assert outcome.balance_after_minor >= 0
    last = said[-1][1] if said else (seen.balance_minor if seen else None)
    assert (decision.after.balance_minor if decision.after else None) == last
    assert (decision.after.version if decision.after else 0) == version


@given(wallets, movement_lists())
def test_the_balance_is_where_it_began_and_the_sum_of_what_was_posted(
    seen: Wallet | None, movements: list[Movement]
) -> None:
    decision = decide(seen, movements)

    total = sum(
        change_of(movement)
        for movement, outcome in zip(movements, decision.outcomes, strict=True)
        if isinstance(outcome, Posted)
    )
    began = seen.balance_minor if seen else 0
    assert (decision.after.balance_minor if decision.after else began) == began + total


@given(wallets, movement_lists())
def test_what_is_needed_is_the_smallest_opening_balance_under_which_every_step_holds(
    seen: Wallet | None, movements: list[Movement]
) -> None:
    decision = decide(seen, movements)

    change = lowest = 0
    for movement, outcome in zip(movements, decision.outcomes, strict=True):
        if isinstance(outcome, Posted):
            change += change_of(movement)
            lowest = min(lowest, change)
    assert decision.needed_minor == -lowest
    assert decision.needed_minor <= (seen.balance_minor if seen else 0)


@given(wallets, movement_lists(), st.integers(0, 12))
def test_a_list_may_be_cut_anywhere_and_decided_in_two_parts(
    seen: Wallet | None, movements: list[Movement], at: int
) -> None:
    whole = decide(seen, movements)

    first = decide(seen, movements[:at])
    second = decide(first.after, movements[at:])

    assert (first.outcomes + second.outcomes, second.after) == (whole.outcomes, whole.after)
