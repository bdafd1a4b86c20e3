"""The desk's protocol: what it takes, what it refuses, and what it shows of a letter."""

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.dead_letters import (
    BUG,
    SENT_MS,
    TRANSIENT,
    Json,
    Triage,
    given_up,
    in_group,
    json_round,
    left,
    record,
    verbatim,
)
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT, PHONE, credit, debit, refund, status_change
from tests.fakes.scripted import Call, around, first, proceed, scripted, unavailable
from triage import desk as desk_module
from triage.act import HISTORY_MAX, By, redrive
from triage.desk import LETTERS_MAX, handle_request
from wallet_ledger import telemetry
from wallet_ledger.domain.ids import digest, transaction_ref
from wallet_ledger.domain.letters import (
    LETTER_SHARDS,
    Action,
    LetterStatus,
    Source,
    letter_shard,
)
from wallet_ledger.domain.wallets import Movement, WalletStatus
from wallet_ledger.domain.work import Violation
from wallet_ledger.errors import Unavailable

KEY = f"K-{PHONE}"
REFUSED = json.dumps({"reason": "INSUFFICIENT_FUNDS", "agentId": "AG-003", "idempotencyKey": "K-1"})


@pytest.fixture
def triage() -> Iterable[Triage]:
    """Nothing kept, nothing counted."""
    telemetry.metrics.clear_metrics()
    yield Triage()
    telemetry.metrics.clear_metrics()


def ids(answer: Json) -> list[str]:
    """Which letters a list has."""
    return [each["letterId"] for each in answer["letters"]]


def every(triage: Triage, action: str, **members: Any) -> list[Json]:
    """All answers of a list, page by page."""
    answers = [triage.ask(action, **members)]
    while answers[-1]["cursor"] is not None:
        assert len(answers) < 200, "it has no end"
        answers.append(triage.ask(action, **members | {"cursor": answers[-1]["cursor"]}))
    return answers


def listed(triage: Triage, **members: Any) -> list[Json]:
    """All letters of a list."""
    return [each for answer in every(triage, "list", **members) for each in answer["letters"]]


def grouped(triage: Triage, **members: Any) -> list[Json]:
    """All groups, in the parts in which they come."""
    return [each for answer in every(triage, "groups", **members) for each in answer["groups"]]


# --- list -----------------------------------------------------------------------------------------


def test_a_letter_in_a_list_has_what_everybody_may_know(triage: Triage) -> None:
    wanted = debit(KEY, attempt=2)
    triage.accept(wanted)
    letter = triage.keep(left(wanted, BUG)).letter

    assert listed(triage) == [
        {
            "letterId": letter.letter_id,
            "fingerprint": letter.fingerprint,
            "source": "TxQueue",
            "failure": "violated",
            "class": "BUG",
            "verdict": "parked",
            "status": "parked",
            "why": "KeyError",
            "place": "settle.py _decide",
            "meaning": "our code or our books are wrong: mend that, then redrive",
            "preview": letter.preview,
            "lane": letter.lane,
            "agentId": AGENT,
            "transaction": transaction_ref(AGENT, wanted.idempotency_key),
            "attempt": 2,
            "arrivedAt": START_MS,
            "sentAt": SENT_MS,
            "dueAt": START_MS + 3_600_000,
            "updatedAt": START_MS,
            "receiveCount": 10,
            "revision": 1,
        }
    ]


FILTERS: list[tuple[Json, set[str]]] = [
    ({}, {"T", "B", "R", "F", "P"}),
    ({"class": "BUG"}, {"B"}),
    ({"source": "RefundQueue"}, {"R"}),
    ({"agentId": "AG-002"}, {"R"}),
    ({"agentId": "AG-003"}, {"F"}),
    ({"why": "KeyError"}, {"B"}),
    ({"status": ["noted", "parked"]}, {"B", "F", "P"}),
    ({"status": []}, {"T", "B", "R", "F", "P"}),
    ({"status": [str(each) for each in LetterStatus]}, {"T", "B", "R", "F", "P"}),
    ({"arrivedFrom": START_MS + 1_000}, {"B", "R", "F", "P"}),
    ({"arrivedUntil": START_MS + 1_000}, {"T", "B"}),
    ({"arrivedFrom": START_MS + 1_000, "arrivedUntil": START_MS + 1_000}, {"B"}),
    ({"class": "TRANSIENT", "status": ["waiting"], "source": "TxQueue"}, {"T"}),
    ({"class": "BUG", "why": "other"}, set()),
    ({"fingerprint": "group of B"}, {"B"}),
    ({"class": None, "why": None}, {"T", "B", "R", "F", "P"}),
]


@pytest.mark.parametrize(("wanted", "found"), FILTERS)
def test_each_filter_takes_what_it_says(triage: Triage, wanted: Json, found: set[str]) -> None:
    triage.accept(debit())
    told = {
        "T": left(debit(), TRANSIENT, "T"),
        "B": left(credit(), BUG, "B"),
        "R": given_up(refund(agent_id="AG-002"), "R"),
        "F": record("FailedTxQueue.fifo", REFUSED, "F"),
        "P": record("TxDLQ.fifo", "{bad", "P"),
    }
    names = {}
    groups = {}
    for name, each in told.items():
        letter = triage.keep(each).letter
        names[letter.letter_id] = name
        groups[f"group of {name}"] = letter.fingerprint
        triage.clock.pause(1)
    asked = {
        name: groups.get(value, value) if isinstance(value, str) else value
        for name, value in wanted.items()
    }

    for scope, left_out in (("all", set[str]()), ("open", {"F"})):
        found_here = [names[each["letterId"]] for each in listed(triage, scope=scope, filter=asked)]
        assert sorted(found_here) == sorted(found - left_out)
        groups_here = grouped(triage, scope=scope, filter=asked)
        assert sum(group["count"] for group in groups_here) == len(found_here)


@pytest.mark.parametrize("scope", ["open", "all"])
@pytest.mark.parametrize("limit", [1, 3, 500])
def test_paging_to_the_end_shows_each_letter_once_and_no_page_is_longer_than_asked(
    triage: Triage, scope: str, limit: int
) -> None:
    kept = [
        triage.keep(left(credit(f"C-{n}"), BUG if n % 3 else TRANSIENT, f"M-{n}")).letter
        for n in range(60)
    ]
    assert len({letter_shard(each.letter_id) for each in kept}) == LETTER_SHARDS

    for wanted, expected in (({}, kept), ({"class": "TRANSIENT"}, kept[::3])):
        answers = every(triage, "list", scope=scope, limit=limit, filter=wanted)
        shown = [each for answer in answers for each in ids(answer)]
        assert sorted(shown) == sorted(each.letter_id for each in expected)
        assert max(len(answer["letters"]) for answer in answers) <= limit


def test_a_filter_that_takes_little_makes_short_pages_and_not_slow_ones(triage: Triage) -> None:
    asked = []

    def listen(call: Call) -> Any:
        asked.append(call.arguments[0])
        return call.proceed()

    triage.letters = around(triage.letters, listen)

    answer = triage.ask("list", filter={"why": "none"})

    assert (answer["letters"], len(asked)) == ([], desk_module.QUERIES_MAX)
    assert triage.ask("list", cursor=answer["cursor"]) == {"letters": [], "cursor": None}
    assert [each.shard for each in asked] == list(range(LETTER_SHARDS))


def test_letters_that_arrive_or_are_dealt_with_between_two_pages_lose_no_other(
    triage: Triage,
) -> None:
    kept = [triage.keep(left(credit(f"C-{n}"), BUG, f"M-{n}")).letter for n in range(40)]
    page = triage.ask("list", limit=10)
    shown = ids(page)
    assert triage.act("discard", *shown) == ["discarded"] * 10
    triage.keep(left(credit("C-new"), BUG, "M-new"))

    rest = [each["letterId"] for each in listed(triage, cursor=page["cursor"], limit=10)]

    assert {each.letter_id for each in kept} <= {*shown, *rest}
    assert len(rest) == len(set(rest))


# --- groups ---------------------------------------------------------------------------------------


def test_a_thousand_letters_of_one_bug_are_one_group(triage: Triage) -> None:
    for number in range(1_000):
        triage.keep(left(credit(f"C-{number}"), BUG, f"M-{number}"))
        triage.clock.pause(0.001)
    triage.keep(left(credit("C-x"), Violation(("KeyError",), "post.py _f"), "M-x"))
    some = triage.ask("list", limit=5)["letters"]
    done = [each["letterId"] for each in some if each["place"] == "settle.py _decide"]
    triage.act("discard", *done)

    groups = grouped(triage, scope="all")

    fingerprints = {group["fingerprint"] for group in groups}
    one = [g for g in groups if g["place"] == "settle.py _decide"]
    assert len(fingerprints) == 2
    assert sum(group["count"] for group in one) == 1_000
    assert sum(group["open"] for group in one) == 1_000 - len(done)
    assert min(group["oldestAt"] for group in one) == START_MS
    assert max(group["newestAt"] for group in one) == START_MS + 999
    assert all(triage.letter(g["sample"]).fingerprint == g["fingerprint"] for g in groups)
    assert {name: one[0][name] for name in ("source", "failure", "class", "why", "meaning")} == {
        "source": "TxQueue",
        "failure": "violated",
        "class": "BUG",
        "why": "KeyError",
        "meaning": "our code or our books are wrong: mend that, then redrive",
    }


# --- show -----------------------------------------------------------------------------------------


def poisoned(triage: Triage) -> str:
    """A letter whose every part holds a phone."""
    wanted = debit(KEY, agent_id=PHONE)
    triage.accept(wanted)
    told = given_up(wanted)
    told["attributes"] = in_group(f"+{PHONE}") | {"MessageDeduplicationId": f"d {PHONE}"}
    return triage.keep(told).letter.letter_id


def test_c49_a_letter_is_shown_masked_and_whole_only_after_its_history_says_so(
    triage: Triage,
) -> None:
    letter_id = poisoned(triage)
    letter = triage.letter(letter_id)
    before = triage.everything()

    masked = triage.ask("show", letterId=letter_id)["letter"]

    assert triage.everything() == before
    [in_list] = listed(triage)
    text = json.dumps([masked, in_list, grouped(triage)], ensure_ascii=False)
    assert PHONE not in text
    assert PHONE[3:9] not in text
    assert masked["agentId"] == "•" * 12
    assert masked == in_list | {
        "original": {
            "messageId": "M-1",
            "group": "…678",
            "dedupId": "d ••••••••••••",
            "receiveCount": 10,
            "sentAt": SENT_MS,
        },
        "history": [],
        "budget": {"automatic": 0, "byHand": 0},
    }

    triage.clock.pause(1)
    asked = {"letterId": letter_id, "reveal": True, "who": "amina", "why": "ticket 7"}
    whole = triage.ask("show", **asked)["letter"]

    told = {"at": START_MS + 1_000, "who": "amina", "what": "revealed", "why": "ticket 7"}
    assert whole == masked | {
        "updatedAt": START_MS + 1_000,
        "revision": 2,
        "history": [told],
        "record": triage.store.records[letter_id],
        "body": json.loads(triage.store.records[letter_id])["body"],
        "group": f"+{PHONE}",
        "dedupId": f"d {PHONE}",
        "idempotencyKey": KEY,
    }
    after = triage.letter(letter_id)
    assert (after.status, after.due_at_ms) == (letter.status, letter.due_at_ms)
    assert triage.ask("show", letterId=letter_id)["letter"]["history"] == [told]
    assert triage.ask("show", letterId=letter_id)["letter"]["preview"] == letter.preview


@pytest.mark.parametrize("fault", ["it moved", "unavailable", "no record", "history full"])
def test_c49_what_cannot_be_written_down_is_not_revealed(triage: Triage, fault: str) -> None:
    letter_id = poisoned(triage)
    desk = triage.desk
    if fault == "it moved":
        by = By("otieno", "meanwhile")
        triage.letters = scripted(
            triage.letters, "move", [first(lambda: redrive(letter_id, by, desk))]
        )
    elif fault == "unavailable":
        triage.letters = scripted(triage.letters, "move", [unavailable("Throttled")])
    elif fault == "no record":
        triage.store.records.clear()
    else:
        lines = (Action(START_MS, "otieno", "revealed", "often"),) * HISTORY_MAX
        triage.store.letters[letter_id] = replace(triage.letter(letter_id), history=lines)

    answer = triage.ask("show", letterId=letter_id, reveal=True, who="amina", why="ticket 7")

    lasting = fault in {"history full", "no record"}  # trying again would not help
    assert answer["error"]["code"] == ("VALIDATION_FAILED" if lasting else "UNAVAILABLE")
    assert PHONE not in json.dumps(answer)
    assert "amina" not in [each.who for each in triage.letter(letter_id).history]


@pytest.mark.parametrize("size", [256 * 1024, 1024 * 1024 - 700])
def test_a_body_of_any_size_comes_back_word_for_word(triage: Triage, size: int) -> None:
    inner = record("TxQueue.fifo", '{"x": "' + "é\\n" * (size // 4), "inner")
    told = record("DeliveryFailures", json.dumps({"v": 1, "source": "TxQueue", "record": inner}))
    letter_id = triage.keep(told).letter.letter_id

    shown = triage.ask("show", letterId=letter_id, reveal=True, who="a", why="b")["letter"]

    assert (shown["record"], shown["body"]) == (verbatim(told), inner["body"])
    assert len(json.dumps(shown, ensure_ascii=False).encode()) < 6 * 1024 * 1024


# --- due ------------------------------------------------------------------------------------------


def test_the_clock_counts_what_is_open_how_old_it_is_and_what_it_did(
    triage: Triage, capsys: pytest.CaptureFixture[str]
) -> None:
    triage.keep(left(credit("C-1"), BUG, "M-1"))
    triage.clock.pause(3_600)
    triage.keep(left(credit("C-2"), TRANSIENT, "M-2"))
    triage.keep(record("FailedTxQueue.fifo", REFUSED, "M-3"))
    triage.settle(credit("C-1"))
    triage.clock.pause(61)
    telemetry.metrics.clear_metrics()
    capsys.readouterr()

    answer = triage.ask("due")

    assert answer == {"openLetters": 2, "parkedLetters": 1, "closed": 1, "redriven": 1}
    telemetry.metrics.flush_metrics()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    counted = [
        (each["Name"], line[each["Name"]], line.get("outcome"))
        for line in told
        for each in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    ]
    assert sorted(counted, key=str) == [
        ("LettersActedOn", [1], "closed"),
        ("LettersActedOn", [1], "redriven"),
        ("OldestOpenLetterAgeSeconds", [3_661], None),
        ("OpenLetters", [2], None),
        ("ParkedLetters", [1], None),
    ]
    assert triage.ask("due") == {"openLetters": 0, "parkedLetters": 0}


def test_a_shard_that_cannot_be_read_now_keeps_no_other_waiting(
    triage: Triage, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is counted of a part is not told as if it were all."""
    triage.keep(left(credit("C-1"), TRANSIENT, "M-1"))
    triage.clock.pause(61)
    whole = triage.letters
    mine = letter_shard(listed(triage)[0]["letterId"])
    other = [unavailable("Throttled")] if mine else [proceed, unavailable("Throttled")]
    triage.letters = scripted(whole, "page", other)
    telemetry.metrics.clear_metrics()
    capsys.readouterr()

    assert triage.ask("due")["redriven"] == 1

    telemetry.metrics.flush_metrics()
    assert "OpenLetters" not in capsys.readouterr().out


def test_a_parked_letter_that_cannot_be_looked_at_now_keeps_no_other_waiting(
    triage: Triage,
) -> None:
    parked = triage.keep(left(credit("C-1"), BUG, "M-1")).letter
    triage.keep(left(credit("C-2"), TRANSIENT, "M-2"))
    triage.clock.pause(3_660)

    def away(call: Call) -> Any:
        if call.method == "record" and call.arguments == (parked.letter_id,):
            raise Unavailable("Throttled")
        return call.proceed()

    triage.letters = around(triage.letters, away)

    answer = triage.ask("due")

    assert (answer["contended"], answer["redriven"]) == (1, 1)


@pytest.mark.parametrize("scope", ["open", "all"])
def test_a_cursor_goes_on_from_any_letter_that_was_listed(triage: Triage, scope: str) -> None:
    """Open ones are listed by their next look, which no bound of their arrival is about."""
    for number in range(3):
        triage.keep(left(credit(f"C-{number}"), message_id=f"M-{number}"))
    bounds = {"arrivedFrom": START_MS, "arrivedUntil": START_MS}

    assert len(listed(triage, scope=scope, filter=bounds, limit=1)) == 3


def test_names_and_reasons_may_be_as_long_as_is_said(triage: Triage) -> None:
    letter_id = triage.keep(left(credit("C-1"))).letter.letter_id
    longest = {"who": "a" * 128, "why": "b" * 200}

    assert triage.act("redrive", letter_id, dryRun=True, **longest) == ["redriven"]
    for name, text in longest.items():
        asked = {"letterIds": [letter_id], **longest, name: f"{text}c"}
        assert triage.ask("redrive", **asked)["error"]["code"] == "VALIDATION_FAILED"


def test_a_letter_that_nobody_can_read_is_told_of_and_stops_no_other(
    triage: Triage, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    letter = triage.keep(left(credit("C-1"), TRANSIENT, "M-1")).letter
    triage.clock.pause(61)
    mine = letter_shard(letter.letter_id)

    def beside(call: Call) -> Any:
        page = call.proceed()
        here = call.method == "page" and call.arguments[0].shard == mine
        return replace(page, unreadable=("later",)) if here else page

    triage.letters = around(triage.letters, beside)
    telemetry.metrics.clear_metrics()
    capsys.readouterr()

    assert [each["letterId"] for each in listed(triage)] == [letter.letter_id]
    assert triage.ask("due")["redriven"] == 1

    telemetry.metrics.flush_metrics()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["LettersUnreadable"] == [1, 1]
    lines = [telemetry.logger.registered_formatter.format(each) for each in caplog.records]
    assert sum('"letters":["later"]' in line.replace(" ", "") for line in lines) == 2


def test_a_clock_that_can_read_nothing_fails_aloud(triage: Triage) -> None:
    """Nobody reads its answer: an error is what Lambda counts, and notes."""
    triage.letters = scripted(triage.letters, "page", [unavailable("Throttled")] * LETTER_SHARDS)

    with pytest.raises(Unavailable):
        triage.ask("due")


def test_a_letter_that_is_contended_lets_no_later_one_of_its_phone_overtake(
    triage: Triage,
) -> None:
    triage.keep(left(credit("C-1"), TRANSIENT, "M-1"))
    triage.keep(left(credit("C-2"), TRANSIENT, "M-2"))
    triage.clock.pause(61)
    triage.letters = scripted(triage.letters, "find", [unavailable("Throttled")])

    assert triage.ask("due") == {"openLetters": 2, "parkedLetters": 0, "contended": 1}
    assert {each["status"] for each in listed(triage)} == {"waiting"}


def test_the_clock_freezes_a_wallet_in_its_turn_and_unfreezes_none(triage: Triage) -> None:
    """Out of turn, or after a freeze that was asked for since, one of them undoes another."""
    asked: list[Movement] = [
        credit("C-1"),
        status_change("S-1", WalletStatus.FROZEN),
        status_change("S-2", WalletStatus.ACTIVE),
    ]
    for number, movement in reversed(list(enumerate(asked))):
        triage.keep(given_up(movement, f"M-{number}", SENT_MS + number))
    triage.letters = scripted(triage.letters, "find", [unavailable("Throttled")])

    assert triage.pass_minutes(2) == {"openLetters": 3, "parkedLetters": 1, "contended": 1}
    assert triage.messages(Source.TX_QUEUE) == []
    assert triage.pass_minutes(1) == {"openLetters": 3, "parkedLetters": 1, "redriven": 2}
    assert "redriven" not in triage.pass_minutes(2_000)

    [unfreezes] = listed(triage)
    assert triage.act("redrive", unfreezes["letterId"]) == ["redriven"]
    sent = [json.loads(body)["id"] for body in triage.messages(Source.TX_QUEUE)]
    assert sent == ["C-1", "S-1", "S-2"]


# --- what is refused ------------------------------------------------------------------------------


def cursor(value: object) -> str:
    """What somebody made up."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


BY: Json = {"who": "amina", "why": "mended"}
ACT: Json = {"action": "redrive", "letterIds": ["x"], **BY}
REVEAL: Json = {"action": "show", "letterId": "KNOWN", "reveal": True, **BY}
LIST: Json = {"action": "list"}
NOT_SHORT_TEXT: list[Any] = [None, "", 7, True, ["x"], {}, "a\nb", "\x1b[2J", "\ud800", "x" * 201]
NO_FLAG: list[Any] = [None, 0, 1, "true", []]
NO_CURSOR: list[Any] = [
    None,
    7,
    [],
    [True, 0],
    [True, 0, None, None],
    [True, LETTER_SHARDS, None],
    [True, -1, None],
    [True, True, None],
    [True, "0", None],
    [1, 0, None],
    [False, 0, None],
    [True, 0, []],
    [True, 0, [1]],
    [True, 0, ["1", "x"]],
    [True, 0, [1.5, "x"]],
    [True, 0, [True, "x"]],
    [True, 0, [-1, "x"]],
    [True, 0, [1, ""]],
    [True, 0, [1, 7]],
    [True, 0, [1, "\ud800"]],
    [True, 0, {"id": "x", "dueAt": 1}],
]


def with_each(request: Json, name: str, values: list[Any]) -> list[Json]:
    """The request with each value for one member."""
    return [request | {name: value} for value in values]


def filters(name: str, values: list[Any]) -> list[Json]:
    """A list with each value for one member of its filter."""
    return with_each(LIST, "filter", [{name: value} for value in values])


BAD: list[Any] = [
    *(None, [], "due", 7, {}),
    *with_each({}, "action", [None, ["list"], "Redrive", ""]),
    {"action": "due", "now": 1},
    ACT | {"dryrun": True},
    *({name: value for name, value in ACT.items() if name != each} for each in ACT),
    *with_each(ACT, "who", [*NOT_SHORT_TEXT, "x" * 129, "triage", " Triage", "ámina"]),
    *with_each(ACT, "why", NOT_SHORT_TEXT),
    *with_each(ACT, "force", NO_FLAG),
    *with_each(ACT, "dryRun", NO_FLAG),
    *with_each(ACT, "letterIds", [None, [], "x", {"x": 1}, ["x"] * (LETTERS_MAX + 1)]),
    *with_each(ACT, "letterIds", [[7], [None], [""], ["x" * 65], ["\ud800"], ["x", "a\n"]]),
    *with_each(REVEAL, "who", [*NOT_SHORT_TEXT, "triage"]),
    *with_each(REVEAL, "why", NOT_SHORT_TEXT),
    *with_each(REVEAL, "reveal", NO_FLAG),
    *with_each(REVEAL, "letterId", [*NOT_SHORT_TEXT, "x" * 65, "nothing"]),
    *with_each(LIST, "limit", [None, 0, -1, 501, True, 1.0, "5"]),
    *with_each(LIST, "scope", ["", "closed", 7, ["open"]]),
    *with_each(LIST, "filter", [None, [], "x", {"x": 1}, {"Class": "BUG"}]),
    *(
        bad
        for name in ("fingerprint", "class", "source", "agentId", "why")
        for bad in filters(name, NOT_SHORT_TEXT[1:])
    ),
    *filters("status", ["parked", ["Parked"], [None], [["x"]], 7]),
    *filters("arrivedFrom", [None, -1, 10**14 + 1, True, 1.5, "5"]),
    *filters("arrivedUntil", [None, -1, 10**14 + 1, True, 1.5, "5"]),
    LIST | {"filter": {"arrivedFrom": 2, "arrivedUntil": 1}},
    *with_each(LIST, "cursor", ["", "x", "é", 7, [], {}, *map(cursor, NO_CURSOR)]),
    *with_each(
        LIST,
        "cursor",
        [base64.urlsafe_b64encode(each).decode() for each in (b"[" * 100_000, b"\xff\xfe")],
    ),
    LIST | {"scope": "all", "cursor": cursor([True, 0, None])},
    LIST | {"scope": "all", "cursor": cursor([False, 0, [5, "x"]]), "filter": {"arrivedFrom": 6}},
]


def test_a_request_that_cannot_be_meant_is_refused_and_its_values_are_not_told(
    triage: Triage, caplog: pytest.LogCaptureFixture
) -> None:
    known = triage.keep(left(credit())).letter.letter_id
    before = triage.everything()
    dry = ACT | {"dryRun": True}
    for good in (dry, LIST, LIST | {"cursor": cursor([True, 0, [1, "x"]]), "limit": 500}):
        assert "error" not in handle_request(good, triage.desk, 2**63)
    caplog.clear()

    for asked in BAD:
        if isinstance(asked, dict) and asked.get("letterId") == "KNOWN":
            asked = asked | {"letterId": known}  # noqa: PLW2901
        answer = json_round(handle_request(asked, triage.desk, 2**63))
        assert answer.keys() == {"error"}, asked
        assert answer["error"]["code"] == "VALIDATION_FAILED", asked
        assert "amina" not in answer["error"]["message"]

    assert triage.everything() == before
    assert caplog.records == []
    assert "letter" in handle_request(REVEAL | {"letterId": known}, triage.desk, 2**63)


def test_a_cursor_goes_on_for_the_request_that_it_answers(triage: Triage) -> None:
    """A time outside of what is asked for is an error of the table, not of the caller."""
    for number in range(40):
        triage.keep(left(credit(f"C-{number}"), BUG, f"M-{number}"))
    page = triage.ask("list", scope="all", limit=20, filter={"arrivedFrom": START_MS})
    asked = {"scope": "all", "limit": 20, "cursor": page["cursor"]}

    assert len(triage.ask("list", **asked, filter={"arrivedFrom": START_MS})["letters"]) == 20
    for wanted in ({"arrivedFrom": START_MS + 1}, {"arrivedUntil": START_MS - 1}):
        assert "error" in triage.ask("list", **asked, filter=wanted)
    assert "error" in triage.ask("list", cursor=page["cursor"])


@pytest.mark.parametrize("action", ["list", "groups", "show"])
def test_what_cannot_be_read_now_may_be_asked_again(triage: Triage, action: str) -> None:
    method = "find" if action == "show" else "page"
    triage.letters = scripted(triage.letters, method, [unavailable("Throttled")])
    asked = {"letterId": "x"} if action == "show" else {}

    assert triage.ask(action, **asked) == {"error": {"code": "UNAVAILABLE", "message": "Throttled"}}


def test_twenty_five_letters_are_one_request_and_the_results_are_in_its_order(
    triage: Triage,
) -> None:
    kept = [
        triage.keep(left(credit(f"C-{n}"), BUG, f"M-{n}")).letter.letter_id
        for n in range(LETTERS_MAX - 2)
    ]
    asked = [digest("nothing"), *reversed(kept), kept[0]]

    outcomes = triage.act("redrive", *asked)

    assert outcomes == ["unknown", *["redriven"] * len(kept), "already_redriven"]
    sent = [json.loads(body)["id"] for body in triage.messages(Source.TX_QUEUE)]
    assert sent == [f"C-{n}" for n in reversed(range(len(kept)))]
