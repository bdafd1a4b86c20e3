"""What triage counts of the letters that somebody acted on: people's and the clock's alike."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.dead_letters import BUG, TRANSIENT, Triage, left
from tests.fakes.samples import credit
from wallet_ledger import telemetry


@pytest.fixture
def triage() -> Triage:
    """Nothing kept."""
    return Triage()


@pytest.fixture
def acted(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], dict[str, int]]]:
    """How many letters were acted on since the last look, by outcome."""

    def look() -> dict[str, int]:
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        by_outcome = [line for line in lines if "LettersActedOn" in line]
        return {line["outcome"]: sum(line["LettersActedOn"]) for line in by_outcome}

    telemetry.metrics.clear_metrics()
    yield look
    telemetry.metrics.clear_metrics()


def test_what_a_person_did_is_counted_and_what_was_only_tried_is_not(
    triage: Triage, acted: Callable[[], dict[str, int]]
) -> None:
    letter = triage.keep(left(credit(), BUG)).letter
    acted()

    assert triage.act("redrive", letter.letter_id, dryRun=True) == ["redriven"]
    assert acted() == {}
    assert triage.act("redrive", letter.letter_id) == ["redriven"]
    assert acted() == {"redriven": 1}


def test_a_look_that_changes_nothing_is_not_counted(
    triage: Triage, acted: Callable[[], dict[str, int]]
) -> None:
    triage.keep(left(credit("C-1"), BUG, "M-1"))
    triage.keep(left(credit("C-2"), TRANSIENT, "M-2"))
    acted()

    triage.pass_minutes(61)

    assert acted() == {"redriven": 1}
