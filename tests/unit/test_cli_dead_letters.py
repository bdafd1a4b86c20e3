"""The commands on dead letters, on a desk in memory that keeps the desk's protocol."""

import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from rich.console import Console

from wakala import dead_letters, info, main, options
from wakala.desk import Clock, Document
from wakala.options import LOCAL
from wakala.stack import FUNCTIONS_CONFIG, Stack
from wallet_ledger.domain.letters import LetterStatus

NOW_MS = 1_780_000_000_000
MINUTE_MS = 60_000
BUG, OUTAGE = "5f0c1a2b3d4e", "0123456789ab"
FINISHED = {"redriven": "already_redriven"}


def identifier(number: int) -> str:
    return f"{number:032x}"


def letter(number: int, **members: Any) -> Document:
    """A parked letter of a bug in settling; `number` minutes old."""
    at_ms = NOW_MS - number * MINUTE_MS
    return {
        "letterId": identifier(number),
        "fingerprint": BUG,
        "source": "TxQueue",
        "failure": "violated",
        "class": "BUG",
        "verdict": "parked",
        "status": "parked",
        "why": "KeyError",
        "place": "reconcile.settle:_settle",
        "meaning": "our code or our books are wrong: mend that, then redrive",
        "preview": f"{{agentId: AG-001, phone: …678, n: {number}}}",
        "lane": f"{number:04x}",
        "agentId": "AG-001",
        "arrivedAt": at_ms,
        "sentAt": at_ms,
        "updatedAt": at_ms,
        "receiveCount": 5,
        "revision": 1,
    } | members


class TriageDesk:
    """Lambda with the desk behind it, and STS. Its pages are short, and every other one is empty.

    `contended` says how often each letter is; `fails` are raised, or answered, before anything
    else; `before` hears every request.
    """

    def __init__(self, *letters: Document) -> None:
        self.letters = {each["letterId"]: each for each in letters}
        self.asked: list[Document] = []
        self.contended: Counter[str] = Counter()
        self.outcomes: dict[str, str] = {}
        self.fails: list[Exception | Document | None] = []
        self.before: Callable[[Document], None] = lambda _: None
        self.page = 2
        self.identities = 0
        self.arn = "arn:aws:sts::000000000000:assumed-role/operator/asha"

    def client(self, *_: object, **__: object) -> "TriageDesk":
        return self

    def get_caller_identity(self) -> dict[str, str]:
        self.identities += 1
        return {"Arn": self.arn}

    def invoke(self, **call: Any) -> dict[str, Any]:
        assert (call["FunctionName"], call["InvocationType"]) == ("desk", "RequestResponse")
        request = json.loads(call["Payload"])
        self.asked.append(request)
        self.before(request)
        failure = self.fails.pop(0) if self.fails else None
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            kind = {"FunctionError": "Unhandled"} if "errorType" in failure else {}
            return kind | {"Payload": io.BytesIO(json.dumps(failure).encode())}
        answer = getattr(self, f"_{request['action']}")(request)
        return {"Payload": io.BytesIO(json.dumps(answer).encode())}

    def acts(self, verb: str = "redrive") -> list[list[str]]:
        """The ids of each request to act."""
        return [each["letterIds"] for each in self.asked if each["action"] == verb]

    def _list(self, request: Document) -> Document:
        found, cursor = self._found(request)
        return {"letters": found, "cursor": cursor}

    def _groups(self, request: Document) -> Document:
        found, cursor = self._found(request)
        parts: dict[tuple[str, str], Document] = {}
        for each in found:
            names = ("fingerprint", "source", "failure", "class", "why", "place", "meaning")
            fresh = {name: each[name] for name in names} | {
                "sample": each["letterId"],
                "count": 0,
                "open": 0,
                "oldestAt": each["arrivedAt"],
                "newestAt": each["arrivedAt"],
            }
            part = parts.setdefault((each["fingerprint"], each["class"]), fresh)
            part["count"] += 1
            part["open"] += LetterStatus(each["status"]).is_open
            part["oldestAt"] = min(part["oldestAt"], each["arrivedAt"])
            part["newestAt"] = max(part["newestAt"], each["arrivedAt"])
        return {"groups": list(parts.values()), "cursor": cursor}

    def _found(self, request: Document) -> tuple[list[Document], str | None]:
        start, empty = json.loads(request["cursor"] or "[0, true]")
        if empty:
            return [], json.dumps([start, False])
        wanted = request["filter"]
        names = ("fingerprint", "class", "source", "agentId", "why")
        fitting = [
            each
            for each in self.letters.values()
            if (request["scope"] == "all" or LetterStatus(each["status"]).is_open)
            and all(name not in wanted or wanted[name] == each.get(name) for name in names)
            and each["status"] in wanted.get("status", [each["status"]])
            and wanted.get("arrivedFrom", 0) <= each["arrivedAt"]
            and each["arrivedAt"] <= wanted.get("arrivedUntil", NOW_MS)
        ]
        end = start + self.page
        more = json.dumps([end, True]) if end < len(fitting) else None
        return fitting[start:end], more

    def _show(self, request: Document) -> Document:
        found = self.letters.get(request["letterId"])
        if found is None:
            message = "letterId: no such letter"
            return {"error": {"code": "VALIDATION_FAILED", "message": message}}
        history = found.setdefault("history", [])
        shown: Document = {"budget": {"automatic": 3, "byHand": 1}, "original": {"messageId": "m"}}
        shown["original"]["group"] = None
        if request["reveal"]:
            line = {"who": request["who"], "what": "revealed", "why": request["why"]}
            history.append({"at": NOW_MS, **line})
            shown |= {"body": "254712345678\x1b[2J", "record": '{"body": "…"}'}
        return {"letter": found | shown}

    def _redrive(self, request: Document) -> Document:
        return self._each(request, "redriven")

    def _discard(self, request: Document) -> Document:
        assert "force" not in request
        return self._each(request, "discarded")

    def _each(self, request: Document, word: str) -> Document:
        assert 1 <= len(request["letterIds"]) <= 25
        assert request["who"]
        assert request["why"]
        outcomes = [self._outcome(each, request, word) for each in request["letterIds"]]
        return {
            "results": [
                {"letterId": each, "outcome": outcome, "note": f"so: {outcome}"}
                for each, outcome in zip(request["letterIds"], outcomes, strict=True)
            ]
        }

    def _outcome(self, letter_id: str, request: Document, word: str) -> str:
        found = self.letters.get(letter_id)
        if found is None:
            return "unknown"
        if not LetterStatus(found["status"]).is_open:
            return FINISHED.get(found["status"], "already_terminal")
        if self.contended[letter_id]:
            self.contended[letter_id] -= 1
            return "contended"
        outcome = self.outcomes.get(letter_id, word)
        if outcome == "capped" and request.get("force"):
            outcome = word
        if not request["dryRun"] and outcome in ("redriven", "discarded", "closed"):
            found["status"] = outcome
        return outcome


class Time:
    """A clock that stands still unless somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(dead_letters, "CLOCK", Clock(lambda: time.now, time.sleep))
    monkeypatch.setattr(dead_letters, "_now_ms", lambda: NOW_MS)
    return time


@pytest.fixture
def triage(monkeypatch: pytest.MonkeyPatch, passing: Time) -> TriageDesk:
    made = TriageDesk()
    outputs = {"TriageDeskFunctionName": "desk", "OperatorPolicyArn": "arn:policy"}
    stack = Stack("pilot", "us-east-1", "http://e", made, outputs)
    monkeypatch.setattr(options, "open_stack", lambda _: stack)
    monkeypatch.setattr("wakala.info.shutil.which", lambda _: "/bin/wakala")
    return made


def keep(triage: TriageDesk, *letters: Document) -> None:
    triage.letters = {each["letterId"]: each for each in letters}


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `wakala dead-letters …`; its exit status, and what it said on both outputs."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main.run(["dead-letters", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


type Told = Callable[..., tuple[int, str, str]]


def answer(told: Told, *arguments: str, status: int = 0) -> Document:
    """What a script gets."""
    found, said, problem = told(*arguments, "--json")
    assert (found, problem) == (status, "")
    document: Document = json.loads(said)
    return document


def outcomes(document: Document) -> list[tuple[int, str]]:
    return [(int(each["letterId"], 16), each["outcome"]) for each in document["results"]]


# --- reading --------------------------------------------------------------------------------


def test_a_thousand_letters_of_one_bug_are_one_row_with_the_command_to_type(
    triage: TriageDesk, told: Told
) -> None:
    poison = {"fingerprint": OUTAGE, "class": "POISON", "meaning": "nobody can read it"}
    over = {"fingerprint": "fedcba987654", "status": "noted"}
    done = [letter(n, status="redriven") for n in range(1, 41)]
    keep(triage, *done, *(letter(n) for n in range(41, 1001)), letter(1001, **poison))
    triage.letters[identifier(1002)] = letter(1002, **over)
    triage.page = 40
    status, said, _ = told("groups", "--all", "--profile", "o p")
    rows = [line.split() for line in said.splitlines() if " TxQueue " in line]
    assert status == 0
    assert rows[0][:12] == [
        *(BUG, "960", "1,000", "BUG", "TxQueue", "16h", "40m", "to", "1m", "ago"),
        *("KeyError", "reconcile.settle:_settle"),
    ]
    assert [row[:3] for row in rows[1:]] == [[OUTAGE, "1", "1"], ["fedcba987654", "0", "1"]]
    assert "  our code or our books are wrong: mend that, then redrive  " in said
    for typed in (
        f"redrive --group {BUG} --dry-run",
        f"show {identifier(1001)}",
        "list --group fedcba987654 --all",
    ):
        assert f"  wakala dead-letters {typed} --stack pilot --profile 'o p'\n" in said
    (group,) = answer(told, "groups", "--all", "--class", "bug", "--group", BUG)["groups"]
    assert (group["count"], group["open"], int(group["sample"], 16)) == (1000, 960, 41)
    assert group["newestAt"] == "2026-05-28T20:25:40.000Z"


def test_a_list_is_oldest_first_and_says_how_many_more_there_are(
    triage: TriageDesk, told: Told
) -> None:
    late = letter(9, sentAt=NOW_MS)
    unsent = letter(5)
    del unsent["sentAt"]
    keep(triage, letter(1), late, unsent, letter(7), letter(3))
    found = answer(told, "list", "--limit", "3")
    assert [int(each["letterId"], 16) for each in found["letters"]] == [7, 5, 3]
    assert found["more"] == 2
    assert found["letters"][0]["sentAt"] == "2026-05-28T20:19:40.000Z"
    assert "… and 2 more: --limit 5 shows them all\n" in told("list", "--limit", "3")[1]
    assert f"{identifier(9)}   9m ago  parked" in told("list")[1]  # by its arrival, as in a group


def test_what_is_piped_is_one_whole_line_for_each_letter_whatever_it_says(
    triage: TriageDesk, told: Told
) -> None:
    says = "[red]:100:\x1b[2J\n" + "x" * 300
    keep(triage, letter(1, preview=says, why="a\\"))
    rows = told("list")[1].splitlines()
    assert len(rows) == 2
    assert rows[0].split() == ["letter", "arrived", "status", "class", "why", "says"]
    assert "[red]:100:\\x1b[2J\\n" + "x" * 300 in rows[1]
    assert " a\\ " in rows[1]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_on_lines_of_their_own_what_no_row_has_room_for(
    triage: TriageDesk, told: Told, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(dead_letters, "out", screen)
    why, says = ("a rule " * 14).strip(), "x" * 400
    bug = letter(9999, why=why, preview=says, source="FailedTxQueue", **{"class": "NEVER_RAN"})
    keep(triage, bug, letter(1, fingerprint=OUTAGE, why="", place="", preview=""))
    triage.outcomes = {identifier(9999): "on_its_way"}
    for words in ("groups", "list", "redrive --everything --dry-run"):
        told(*words.split())
    lines = [line.rstrip() for line in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert {line for line in lines if len(line) > width and "  wakala dead-l" not in line} == set()
    assert lines[1].split() == [BUG, "1", "NEVER_RAN", "FailedTxQueue", "6d", "22h", "ago"]
    folded = lines[2 : 4 if width == 80 else 3]
    assert " ".join(line[11:] for line in folded) == why
    assert f"    place  reconcile.settle:_settle\n    means  {bug['meaning']}" in "\n".join(lines)
    assert f"    next   wakala dead-letters show {identifier(9999)} --stack pilot" in lines
    assert lines.count(f"    says  {says[: width - 11]}…") == 2
    assert "    note  so: on_its_way" in lines
    assert lines.count("    why") == 0


def test_a_letter_that_is_seen_on_two_pages_is_told_once_as_it_is_now(
    triage: TriageDesk, told: Told
) -> None:
    triage.letters = {"first": letter(1, revision=2), "again": letter(1), "other": letter(2)}
    found = answer(told, "list")["letters"]
    assert [each["revision"] for each in found] == [1, 2]


def test_every_filter_reaches_the_desk_and_a_finished_status_asks_for_all(
    triage: TriageDesk, told: Told
) -> None:
    words = f"--group {BUG} --class never-ran --source txqueue --agent AG-001 --reason KeyError"
    ages = "--older-than 30m --newer-than 2d --status parked --status waiting"
    answer(told, "list", *words.split(), *ages.split())
    assert triage.asked[0] == {
        "action": "list",
        "scope": "open",
        "limit": 500,
        "cursor": None,
        "filter": {
            "fingerprint": BUG,
            "class": "NEVER_RAN",
            "source": "TxQueue",
            "agentId": "AG-001",
            "why": "KeyError",
            "status": ["parked", "waiting"],
            "arrivedFrom": NOW_MS - 2880 * MINUTE_MS,
            "arrivedUntil": NOW_MS - 30 * MINUTE_MS,
        },
    }
    for asked in (["list", "--status", "noted"], ["groups", "--all"]):
        answer(told, *asked)
        assert triage.asked[-1]["scope"] == "all"


def test_who_finds_nothing_is_told_what_was_looked_for(triage: TriageDesk, told: Told) -> None:
    for words, line in {
        "groups": "No open letters.",
        "list": "No open letters.",
        "list --class bug --older-than 4h": "No open letter fits --class bug --older-than 4h; --all"
        " shows what is dealt with.",
        "groups --all": "No letters of the last seven days.",
        "groups --status noted --status closed": "No letter of the last seven days fits --status"
        " noted --status closed; --newer-than 90d looks further back.",
        "list --all --newer-than 90d": "No letter fits --newer-than 90d.",
    }.items():
        assert told(*words.split())[:2] == (0, f"{line}\n")


def test_what_the_clock_redrives_says_when(triage: TriageDesk, told: Told) -> None:
    waits = {"status": "waiting", "class": "NEVER_RAN", "fingerprint": OUTAGE}
    due = {4: 40_000, 5: 70_000, 6: -1}
    keep(triage, *(letter(n, dueAt=NOW_MS + ms, **waits) for n, ms in due.items()))
    triage.letters[identifier(7)] = letter(7, dueAt=NOW_MS)  # parked: it is only looked at
    cells = re.findall("by itself|(?:with)?in [0-9]+[ms]", told("list")[1])
    assert cells == ["by itself", "within 1m", "in 1m", "in 40s"]
    assert told("show", identifier(4))[1].count("tried again by itself in 40s ") == 1
    assert "by itself" not in told("show", identifier(7))[1].replace("times by itself", "")
    del triage.letters[identifier(6)]
    groups = {each["fingerprint"]: each for each in answer(told, "groups")["groups"]}
    assert groups[OUTAGE]["dueAt"] == "2026-05-28T20:27:20.000Z"
    assert "dueAt" not in groups[BUG]
    assert "  by itself, the next in 40s  " in told("groups")[1]
    triage.letters[identifier(8)] = letter(8, **waits | {"status": "parked"})
    triage.asked.clear()
    for words in (["groups", "--status", "parked"], ["groups", "--class", "BUG"]):
        answer(told, *words)
    assert {each["action"] for each in triage.asked} == {"groups"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("list --group 5f0c", "--group '5f0c': 12 of 0-9 a-f"),
        ("list --class BAD", "--class 'BAD': one of BUSINESS, TRANSIENT, NEVER_RAN, POISON, BUG"),
        ("list --source Tx", "--source 'Tx': one of TxQueue, RefundQueue, Inbox,"),
        ("list --status open", "--status 'open': one of waiting, parked, redriven"),
        ("list --agent A#1", "--agent 'A#1' is no agent's id"),
        ("list --older-than 5", "--older-than '5': a number and s, m, h or d"),
        ("list --older-than 2h --newer-than 1h", "nothing is both older and newer"),
        ("list --limit 0", "--limit 0: 1 or more"),
        ("show 12ab", "'12ab' is no letter's id: 32 of 0-9 a-f"),
        (f"show {identifier(1)} --reveal", "--reveal needs --why"),
        ("export --out /nowhere/letters", "cannot write /nowhere/.letters."),
        ("export --out --reveal --why x", "--out '--reveal': a file, or -"),
        (f"show {identifier(99)}", f"no letter has this id: {identifier(99)}"),
        (f"show {identifier(99)} --reveal --why x", f"no letter has this id: {identifier(99)}"),
        ("redrive 12ab", "'12ab' is no letter's id: 32 of 0-9 a-f"),
        ("redrive --class BUG", "say why with --why"),
        ("redrive --why x", "which letters? give ids, or a filter such as --group, or --every"),
        (f"redrive {identifier(1)} --class BUG --why x", "give ids, or filters, or --everything"),
        ("discard --everything --agent AG-001 --why x", "give ids, or filters, or --everything"),
        ("redrive --class BUG --why \x07", "--why: 1 to 200 printable characters"),
        ("redrive --class BUG --why x --rate nan", "--rate nan: 0.1 to 100 letters a second"),
        (f"redrive {identifier(1)} {identifier(99)} --why x", "no letter has this id: 0000000000"),
        ("discard --everything --why x", "2 letters of 1 group: --yes to discard them"),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_nothing_is_done(
    triage: TriageDesk, told: Told, arguments: str, line: str
) -> None:
    keep(triage, letter(1), letter(2))
    status, said, problem = told(*arguments.split(" "))
    assert (status, said, problem.count("\n")) == (1, "", 1)
    assert problem.startswith(f"error: {line}")
    assert not triage.acts() + triage.acts("discard")


# --- one letter -----------------------------------------------------------------------------


def test_a_letter_is_shown_whole_and_masked_with_its_history(
    triage: TriageDesk, told: Told
) -> None:
    line = {"at": NOW_MS, "who": "triage", "what": "redriven", "why": "[b]its time has come"}
    keep(triage, letter(1, history=[line], dueAt=NOW_MS + MINUTE_MS, place=""))
    status, said, _ = told("show", identifier(1))
    rows = [[part.strip() for part in line.split("  ", 1)] for line in said.splitlines()]
    assert status == 0
    assert ["dueAt", "2026-05-28 20:27:40"] in rows
    assert ["original messageId", "m"] in rows
    assert not {"place", "original group"}.intersection(
        row[0] for row in rows
    )  # nothing is said of what is not there
    assert ["redriven", "this request so far: 3 times by itself, 1 time by hand"] in rows
    assert "2026-05-28 20:26:40  redriven  triage  [b]its time has come" in said
    assert f"wakala dead-letters redrive {identifier(1)} --dry-run" in said
    assert triage.asked == [{"action": "show", "letterId": identifier(1), "reveal": False}]
    assert triage.identities == 0


def test_a_letter_is_revealed_to_whom_iam_names_and_for_a_reason(
    triage: TriageDesk, told: Told
) -> None:
    triage.arn = f"arn:aws:sts::000000000000:assumed-role/{'r' * 64}/{'s' * 64}"
    keep(triage, letter(1))
    status, said, _ = told("show", identifier(1), "--reveal", "--why", "ticket 4711")
    assert status == 0
    assert triage.asked[0]["who"] == f"{'r' * 63}/{'s' * 64}"
    assert triage.asked[0]["why"] == "ticket 4711"
    assert "body:\n254712345678\\x1b[2J\n" in said
    assert 'record:\n{"body": "…"}\n' in said
    masked = answer(told, "show", identifier(1), "--why", "x")
    assert masked["history"][0]["at"] == "2026-05-28T20:26:40.000Z"
    assert "body" not in masked


# --- moving them ----------------------------------------------------------------------------


def test_a_group_is_redriven_oldest_first_at_the_rate_and_without_chasing_new_letters(
    triage: TriageDesk, told: Told, passing: Time
) -> None:
    keep(triage, *(letter(n) for n in range(1, 31)), letter(40, fingerprint=OUTAGE))
    sent_at: list[float] = []

    def arrives(request: Document) -> None:
        if request["action"] == "redrive":
            sent_at.append(passing.now)
            triage.letters[identifier(100 + len(sent_at))] = letter(100 + len(sent_at))

    triage.before = arrives
    words = ("redrive", "--group", BUG, "--why", "fixed", "--yes", "--rate", "12")
    found = answer(told, *words)
    assert [number for number, _ in outcomes(found)] == list(range(30, 0, -1))
    assert list(chain(*triage.acts())) == [identifier(n) for n in range(30, 0, -1)]
    assert [len(ids) for ids in triage.acts()] == [12, 12, 6]
    assert sent_at == pytest.approx([0, 1, 2])
    assert triage.asked[-1]["why"] == "fixed"
    assert triage.asked[-1]["force"] is False
    assert triage.identities == 1
    assert found["counts"] == {"redriven": 30}
    again = answer(told, *words)
    assert {number for number, _ in outcomes(again)} == {101, 102, 103}
    status, said, _ = told("redrive", "--agent", "AG-404", "--why", "x")
    assert (status, said) == (0, "No open letter fits: nothing is to be done.\n")


def test_letters_of_one_phone_keep_their_order_while_one_is_contended(
    triage: TriageDesk, told: Told, passing: Time
) -> None:
    lanes = {1: "aa", 2: "bb", 3: "aa", 4: "aa", 5: "", 6: ""}
    keep(triage, *(letter(n, lane=lanes[n]) for n in lanes))
    triage.contended[identifier(4)] = 3
    found = answer(told, "redrive", "--everything", "--why", "x", "--yes")
    assert triage.acts()[0] == [identifier(n) for n in (6, 5, 4, 2)]
    assert triage.acts()[1:] == [[identifier(n)] for n in (4, 4, 4, 3, 1)]
    assert found["counts"] == {"redriven": 6}


def test_a_letter_that_stays_contended_is_left_with_the_later_ones_of_its_phone(
    triage: TriageDesk, told: Told, passing: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakala.desk.random.uniform", lambda _, ceiling: ceiling)
    keep(triage, *(letter(n, lane="aa" if n > 2 else "bb") for n in range(1, 6)))
    triage.contended[identifier(5)] = 99
    words = ("redrive", "--everything", "--why", "x", "--yes")
    status, said, _ = told(*words)
    assert status == 3
    rows = [line.split() for line in said.splitlines()[1:6]]
    assert [(int(row[0], 16), row[1]) for row in rows] == [
        *((5, "contended"), (4, "left"), (3, "left"), (2, "redriven"), (1, "redriven"))
    ]
    assert f"{identifier(5)} of the same phone is older, and contended" in said
    assert said.endswith("Something is left: the same command again tries only that.\n")
    assert list(chain(*triage.acts())).count(identifier(5)) == 6
    assert passing.now == pytest.approx(0.4 + 0.8 + 1.6 + 3.2 + 5)
    triage.contended.clear()
    assert outcomes(answer(told, *words)) == [(5, "redriven"), (4, "redriven"), (3, "redriven")]


@pytest.mark.parametrize(
    ("verb", "outcome", "status"),
    [
        ("redrive", "closed", 0),
        ("redrive", "capped", 3),
        ("redrive", "not_redrivable", 3),
        ("redrive", "unknown", 3),
        ("discard", "closed", 3),  # it has its outcome, and is not given up
        ("discard", "on_its_way", 3),
    ],
)
def test_the_exit_status_says_whether_something_was_left_undone(
    triage: TriageDesk, told: Told, verb: str, outcome: str, status: int
) -> None:
    keep(triage, letter(1), letter(2))
    triage.outcomes[identifier(2)] = outcome
    found = answer(told, verb, identifier(1), identifier(2), "--why", "x", "--yes", status=status)
    assert outcomes(found)[0] == (2, outcome)
    assert found["undone"] == (status == 3)


@pytest.mark.parametrize(
    ("verb", "before", "status"),
    [
        ("redrive", "redriven", 0),
        ("redrive", "closed", 0),
        ("redrive", "discarded", 3),
        ("redrive", "noted", 3),
        ("discard", "discarded", 0),
        ("discard", "redriven", 3),
        ("discard", "closed", 3),
        ("discard", "noted", 3),
    ],
)
def test_what_was_dealt_with_before_is_done_only_if_it_is_as_was_wished(
    triage: TriageDesk, told: Told, verb: str, before: str, status: int
) -> None:
    keep(triage, letter(1, status=before))
    for more in ([], ["--dry-run"]):
        answer(told, verb, identifier(1), "--why", "x", *more, status=status)
    keep(triage, letter(1), letter(2))

    def somebody_is_first(request: Document) -> None:
        if request["action"] == verb:
            triage.letters[identifier(2)]["status"] = before

    triage.before = somebody_is_first
    answer(told, verb, "--everything", "--why", "x", "--yes", status=status)


def test_force_redrives_what_was_redriven_too_often_and_one_letter_needs_no_yes(
    triage: TriageDesk, told: Told
) -> None:
    keep(triage, letter(1))
    triage.outcomes[identifier(1)] = "capped"
    found = answer(told, "redrive", identifier(1), identifier(1), "--why", "x", "--force")
    assert outcomes(found) == [(1, "redriven")]


def test_a_dry_run_shows_what_would_become_of_each_and_does_nothing(
    triage: TriageDesk, told: Told, passing: Time
) -> None:
    keep(triage, *(letter(n, lane="aa") for n in range(1, 31)))
    triage.outcomes[identifier(30)] = "closed"
    triage.outcomes[identifier(29)] = "not_redrivable"
    triage.contended[identifier(28)] = 1
    status, said, problem = told("redrive", "--everything", "--dry-run")
    assert (status, problem) == (3, "")
    rows = said.splitlines()[1:31]
    assert [int(row.split()[0], 16) for row in rows] == list(range(30, 0, -1))
    assert "n: 30}" in rows[0]
    assert {row.partition("  ")[2][:17] for row in rows[2:-1]} >= {"would be redriven"}
    counts = "27 would be redriven, 1 would be closed, 1 not_redrivable, 1 contended"
    assert f"30 letters: {counts}\nNothing was done" in said
    assert [len(ids) for ids in triage.acts()] == [25, 5]
    assert all(each["dryRun"] for each in triage.asked if each["action"] == "redrive")
    assert {each["status"] for each in triage.letters.values()} == {"parked"}
    assert passing.now == 0
    found = answer(told, "redrive", identifier(1), "--dry-run")
    assert (found["dryRun"], outcomes(found)) == (True, [(1, "redriven")])


@pytest.mark.parametrize(("typed", "status"), [("y", 0), ("no", 1), (None, 1)])
def test_more_than_one_letter_is_asked_about_on_a_terminal(
    triage: TriageDesk, told: Told, monkeypatch: pytest.MonkeyPatch, typed: str | None, status: int
) -> None:
    def typing(*_: object) -> str:
        if typed is None:
            raise EOFError
        return typed

    monkeypatch.setattr(dead_letters, "_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", typing)
    keep(triage, letter(1), letter(2), letter(3, fingerprint=OUTAGE))
    found, _, asked = told("discard", "--everything", "--why", "x")
    assert found == status
    assert f"2 of group {BUG}\n" in asked
    assert asked.endswith("Nothing was done: no discard of 3 letters of 2 groups.\n") == (
        status == 1
    )
    assert "error" not in asked
    assert "discard 3 letters of 2 groups? [y/N]" in asked
    assert len(triage.acts("discard")) == (status == 0)


def test_of_many_letters_only_those_are_shown_that_are_not_as_was_wished(
    triage: TriageDesk, told: Told
) -> None:
    keep(triage, *(letter(n) for n in range(1, 41)))
    triage.outcomes = {identifier(7): "capped", identifier(8): "closed"}
    status, said, _ = told("redrive", "--everything", "--why", "x", "--yes")
    _header, *rows, _, counts, hint = said.splitlines()
    assert status == 3
    assert [(int(row.split()[0], 16), row.split()[1]) for row in rows] == [
        *((8, "closed"), (7, "capped"))
    ]
    assert counts == "40 letters: 38 redriven, 1 closed, 1 capped"
    assert hint == "Not all could be done, and the same command again cannot do it either."


def test_who_interrupts_is_told_what_was_done_and_may_go_on(triage: TriageDesk, told: Told) -> None:
    keep(triage, *(letter(n) for n in range(1, 7)))

    def interrupt(request: Document) -> None:
        if len(triage.acts("discard")) == 2:
            triage.before = lambda _: None
            raise KeyboardInterrupt

    triage.before = interrupt
    words = ("discard", "--everything", "--why", "x", "--yes", "--rate", "2")
    status, said, problem = told(*words, "--json")
    assert status == 130
    assert "the same command again goes on" in problem
    triage.asked.clear()
    assert outcomes(json.loads(said)) == [
        *((6, "discarded"), (5, "discarded"), (4, "unanswered"), (3, "unanswered")),
        *((2, "left"), (1, "left")),
    ]
    triage.before = interrupt
    assert told(*words)[:2] == (130, "4 letters: 2 discarded, 2 unanswered\n")
    assert outcomes(answer(told, *words)) == [(n, "discarded") for n in (2, 1)]


def test_what_was_done_is_told_when_the_desk_fails_in_the_middle(
    triage: TriageDesk, told: Told
) -> None:
    keep(triage, letter(1), letter(2))
    triage.fails = [None, None, None, {"errorType": "HandlerFailed"}]
    words = ("redrive", "--everything", "--why", "x", "--yes", "--rate", "1")
    status, said, problem = told(*words)
    assert status == 1
    assert "2 letters: 1 redriven, 1 unanswered" in said
    assert problem.startswith("error: the triage desk failed (HandlerFailed)")


# --- export ---------------------------------------------------------------------------------


def test_an_export_is_masked_unless_every_letter_is_revealed_for_a_reason(
    triage: TriageDesk, told: Told, tmp_path: Path
) -> None:
    keep(triage, letter(1), letter(2), letter(3, status="closed"))
    file = tmp_path / "letters.ndjson"
    assert told("export", "--out", str(file), "--all")[1] == f"3 letters in {file}\n"
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [int(each["letterId"], 16) for each in lines] == [3, 2, 1]
    assert not any("body" in each for each in lines)
    assert file.stat().st_mode & 0o777 == 0o600
    status, said, _ = told("export", "--out", "-", "--reveal", "--why", "ticket")
    assert status == 0
    assert [json.loads(line)["body"][:12] for line in said.splitlines()] == ["254712345678"] * 2
    shows = [each for each in triage.asked if each["action"] == "show"]
    assert [(each["reveal"], each["why"]) for each in shows] == [(True, "ticket")] * 2


def test_an_export_that_fails_leaves_no_part_of_it(
    triage: TriageDesk, told: Told, tmp_path: Path
) -> None:
    keep(triage, letter(1), letter(2))
    (tmp_path / "whole").write_text("before", "utf-8")
    triage.fails = [None, None, None, {"errorType": "Sandbox.Timedout"}]
    words = ("export", "--reveal", "--why", "x", "--out", str(tmp_path / "whole"))
    assert told(*words)[2].endswith("/whole': it is there already, and --yes replaces it\n")
    assert triage.asked == []
    assert told(*words, "--yes")[0] == 1
    assert [each.read_text("utf-8") for each in tmp_path.iterdir()] == ["before"]
    assert told(*words, "--yes")[0] == 0
    assert (tmp_path / "whole").read_text("utf-8").count("\n") == 2


@pytest.mark.parametrize("link", [False, True])
def test_an_export_is_written_into_no_file_that_somebody_has_put_there(
    triage: TriageDesk, told: Told, tmp_path: Path, link: bool
) -> None:
    """Whose it is reads it, whatever its rights become."""
    keep(triage, letter(1))
    planted, theirs = tmp_path / f".letters.{os.getpid()}", tmp_path / "theirs"
    theirs.write_text("theirs", "utf-8")
    if link:
        planted.symlink_to(theirs)
    else:
        planted.write_text("theirs", "utf-8")
    words = ("export", "--reveal", "--why", "x", "--out", str(tmp_path / "letters"))

    status, _, problem = told(*words)

    assert (status, problem) == (1, f"error: cannot write {planted}: File exists\n")
    assert "show" not in [each["action"] for each in triage.asked]
    assert {each.name for each in tmp_path.iterdir()} == {planted.name, theirs.name}
    assert planted.read_text("utf-8") == theirs.read_text("utf-8") == "theirs"


# --- the desk -------------------------------------------------------------------------------


UNAVAILABLE: Document = {"error": {"code": "UNAVAILABLE", "message": "Throttled"}}


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}}, "Invoke")


@pytest.mark.parametrize(
    ("fails", "line"),
    [
        ([UNAVAILABLE] * 6, "the triage desk cannot do it now (Throttled): try again in a moment"),
        (
            [{"errorType": "HandlerFailed", "errorMessage": "254712345678"}],
            "the triage desk failed (HandlerFailed): read its log group /aws/lambda/desk, and docs",
        ),
        (
            [refused("AccessDeniedException")],
            "you may not invoke desk: that takes the policy arn:policy",
        ),
        ([refused("ResourceNotFoundException")], "there is no function desk: deploy the stack"),
        ([refused("TooManyRequests")], "AWS refuses Invoke: TooManyRequests: m"),
        ([[]], "the triage desk answers what this command does not know: update either"),
    ],
)
def test_a_desk_without_an_answer_is_one_line_that_says_what_to_do(
    triage: TriageDesk, told: Told, fails: list[Any], line: str
) -> None:
    triage.fails = fails
    status, said, problem = told("list")
    assert (status, said, problem.count("\n")) == (1, "", 1)
    assert problem.startswith(f"error: {line}")


def test_a_desk_that_is_not_available_is_asked_again(
    triage: TriageDesk, told: Told, passing: Time
) -> None:
    keep(triage, letter(1))
    triage.fails = [UNAVAILABLE] * 5
    assert len(answer(told, "list")["letters"]) == 1
    assert 0 < passing.now < 0.4 + 0.8 + 1.6 + 3.2 + 5


def test_a_call_is_waited_for_until_the_desk_itself_gives_up() -> None:
    config: Any = FUNCTIONS_CONFIG
    assert config.read_timeout > 50
    assert config.ignore_configured_endpoint_urls


def test_info_counts_letters_and_does_not_need_them(triage: TriageDesk) -> None:
    stack = LOCAL.open()
    nobodys = letter(4, attempt=1, **{"class": "POISON"})
    done = letter(3, status="noted", attempt=1)
    keep(triage, letter(1), letter(2, status="waiting", attempt=1), done, nobodys)
    found = info.dead_letters(stack)
    assert found.view() == {"open": 3, "parked": 2, "held": 1, "more": False, "problem": None}
    assert found.words() == "3 letters open, 2 parked: a person decides"
    page = Console(file=io.StringIO(), width=80)
    page.print(info.Info(replace(stack, outputs={"ApiUrl": "u"}), {}, 0, found).render())
    rows = [line.rstrip() for line in page.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert rows[3:5] == [
        "open          0 transactions, and 1 held by dead letters",
        "dead letters  3 letters open, 2 parked: a person decides",
    ]
    assert "curl" not in "".join(rows)
    triage.fails = [refused("AccessDeniedException")]
    unknown = info.dead_letters(stack)
    assert unknown.open is None
    assert unknown.words().startswith("not known: you may not invoke desk")
    keep(triage, *(letter(n) for n in range(info.COUNTED_MAX + 9)))
    triage.page = 2500
    assert info.dead_letters(stack).words().startswith("at least 5,000 letters open")
