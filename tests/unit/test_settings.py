"""A function has all of its settings at the start, or says at once what is missing."""

from dataclasses import asdict, dataclass, fields

import pytest

from wallet_ledger.settings import (
    IngestBusSettings,
    IngestSettings,
    ReconcileSettings,
    RefundSettings,
    RelaySettings,
    SweepSettings,
    read,
    variables,
)

ALL = [
    IngestBusSettings,
    IngestSettings,
    ReconcileSettings,
    RefundSettings,
    RelaySettings,
    SweepSettings,
]


@dataclass(frozen=True, slots=True)
class Settings:
    """One of each kind."""

    table: str
    days: int


def test_settings_are_read_from_upper_case_variables_and_others_are_ignored() -> None:
    environment = {"TABLE": "t-1", "DAYS": "07", "HOME": "/", "days": "9"}
    assert read(Settings, environment) == Settings("t-1", 7)
    assert variables(Settings) == {"TABLE", "DAYS"}


def test_everything_that_is_missing_or_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"^TABLE is missing; DAYS is missing$"):
        read(Settings, {})
    with pytest.raises(ValueError, match=r"^TABLE is missing; DAYS is not a whole number$"):
        read(Settings, {"TABLE": "", "DAYS": "seven"})


@pytest.mark.parametrize("text", ["-1", "+1", "1.0", " 1", "1\n", "1_000", "1e3", "\uff11", "²"])
def test_a_number_is_made_of_ascii_digits_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="DAYS is not a whole number") as error:
        read(Settings, {"TABLE": "t", "DAYS": text})
    assert text not in str(error.value)


@pytest.mark.parametrize("settings", ALL)
def test_each_function_needs_every_one_of_its_variables(settings: type[Settings]) -> None:
    whole = dict.fromkeys(variables(settings), "5")
    assert set(asdict(read(settings, whole)).values()) <= {"5", 5}
    for field in fields(settings):
        name = field.name.upper()
        with pytest.raises(ValueError, match=f"^{name} is missing$"):
            read(settings, {key: value for key, value in whole.items() if key != name})
