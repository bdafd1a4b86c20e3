"""Seeded traffic: the shapes that it has, and that a seed is one traffic."""

from collections import Counter

import pytest

from wakala.traffic import BRANCH_DEBITS, Shape, Shares, make_traffic
from wallet_ledger.contracts import Defaults, read_transaction
from wallet_ledger.domain.ids import Currency

NUMBER = 1_000
PLAIN = Shares(duplicates=0, reorders=0, overdrafts=0, refunds=0)


@pytest.mark.parametrize("shape", Shape)
def test_a_seed_is_one_traffic_and_another_seed_other_transactions(shape: Shape) -> None:
    first, again, other = (make_traffic(shape, NUMBER, seed=seed) for seed in (1, 1, 2))
    assert first == again
    keys = [{each.document["idempotencyKey"] for each in t.sent} for t in (first, other)]
    assert not keys[0] & keys[1]
    assert all(key.startswith(f"{first.name}-") for key in keys[0])


def test_one_seed_with_another_number_or_other_shares_is_other_transactions() -> None:
    """Else a wallet would be funded for the one, and a key used again for the other."""
    names = {
        make_traffic(Shape.UNIFORM, number, seed=1, shares=shares).name
        for number, shares in ((10, PLAIN), (11, PLAIN), (10, Shares()))
    }
    assert len(names) == 3


def test_what_an_office_brings_is_one_agents_and_one_wallets() -> None:
    sent = make_traffic(Shape.BRANCH, 50, seed=1, shares=PLAIN, rate=10).sent
    offices: dict[float, set[tuple[str, str]]] = {}
    for each in sent:
        who = each.document["agentId"], each.document["phone"]
        offices.setdefault(each.at_s, set()).add(who)
    assert [len(each) for each in offices.values()] == [1] * 5


def test_an_office_is_one_moment_whatever_is_sent_twice_or_changes_places() -> None:
    sent = make_traffic(Shape.BRANCH, NUMBER, seed=1, shares=Shares(), rate=50).sent
    moments = [each.at_s for each in sent]
    assert moments == sorted(moments)
    assert moments[-1] <= NUMBER / 50
    first: dict[float, Counter[str]] = {}
    for each in sent:
        if not each.repeated:
            first.setdefault(each.at_s, Counter())[each.document["phone"]] += 1
    assert [[*each.values()] for each in first.values()] == [[BRANCH_DEBITS]] * (NUMBER // 10)
    seen: set[str] = set()
    for each in sent:
        assert (each.document["idempotencyKey"] in seen) is each.repeated
        seen.add(each.document["idempotencyKey"])


@pytest.mark.parametrize("shape", Shape)
def test_what_is_sent_is_what_the_api_takes(shape: Shape) -> None:
    for each in make_traffic(shape, 50, seed=1).sent:
        read_transaction(each.document, Defaults(Currency("KES"), "KE"))


@pytest.mark.parametrize(
    ("shape", "wallets", "debits_each"),
    [
        (Shape.UNIFORM, NUMBER, 1),
        (Shape.BRANCH, NUMBER // BRANCH_DEBITS, BRANCH_DEBITS),
        (Shape.HOT, 1, NUMBER),
    ],
)
def test_a_shape_is_how_debits_meet_wallets(shape: Shape, wallets: int, debits_each: int) -> None:
    traffic = make_traffic(shape, NUMBER, seed=1, shares=PLAIN)
    counts = Counter(each.document["phone"] for each in traffic.sent)
    assert len(counts) == len(traffic.openings) == wallets
    assert {*counts.values()} == {debits_each}


def test_a_month_end_has_a_spike_and_busy_wallets() -> None:
    sent = make_traffic(Shape.MONTH_END, NUMBER, seed=1, shares=PLAIN, rate=100).sent
    tenths = Counter(int(each.at_s) for each in sent)
    assert max(tenths.values()) > 2.5 * NUMBER / 10
    phones = Counter(each.document["phone"] for each in sent)
    assert sum(count for _, count in phones.most_common(10)) > NUMBER * 0.15


@pytest.mark.parametrize("shape", Shape)
def test_everything_is_sent_in_its_time_and_in_order(shape: Shape) -> None:
    sent = make_traffic(shape, NUMBER, seed=1, shares=PLAIN, rate=50).sent
    moments = [each.at_s for each in sent]
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] <= NUMBER / 50


def test_shares_are_of_the_debits_that_are_sent_first() -> None:
    shares = Shares(duplicates=0.1, reorders=0.1, overdrafts=0.05, refunds=0.2)
    traffic = make_traffic(Shape.UNIFORM, NUMBER, seed=1, shares=shares)
    again = [each for each in traffic.sent if each.repeated]
    assert 70 < len(again) < 130
    assert len(traffic.sent) == NUMBER + len(again)
    over = [d for d in traffic.sent if d.document["amount"] > traffic.openings[d.document["phone"]]]
    assert 30 < len(over) < 80
    assert 150 < len(traffic.refunded) < 250
    first = [each.document["idempotencyKey"] for each in traffic.sent if not each.repeated]
    assert first != sorted(first)


def test_a_repetition_comes_after_what_it_repeats() -> None:
    seen = set()
    for each in make_traffic(Shape.HOT, NUMBER, seed=1, shares=Shares(duplicates=0.5)).sent:
        key = each.document["idempotencyKey"]
        assert (key in seen) is each.repeated
        seen.add(key)


def test_a_debit_taken_twice_is_not_refused_for_want_of_funds() -> None:
    traffic = make_traffic(Shape.BRANCH, NUMBER, seed=1, shares=PLAIN)
    debited: Counter[str] = Counter()
    for each in traffic.sent:
        debited[each.document["phone"]] += each.document["amount"]
    assert {phone: 2 * amount for phone, amount in debited.items()} == traffic.openings


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_part(part: float) -> None:
    with pytest.raises(ValueError, match="duplicates: a part from 0 to 1"):
        Shares(duplicates=part)
