"""What each function reads from its environment, all of it at the start or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def variables(settings: "type[DataclassInstance]") -> frozenset[str]:
    """The environment variables that a function needs: its fields, in upper case, all required."""
    return frozenset(field.name.upper() for field in fields(settings))


def read[T: DataclassInstance](settings: type[T], environment: Mapping[str, str]) -> T:
    """The settings. Raises ValueError that names each variable missing or not a whole number."""
    values: dict[str, Any] = {}
    wrong = []
    for field in fields(settings):
        name = field.name.upper()
        text = environment.get(name, "")
        if not text:
            wrong.append(f"{name} is missing")
        elif field.type is not int:
            values[field.name] = text
        elif text.isascii() and text.isdigit():
            values[field.name] = int(text)
        else:
            wrong.append(f"{name} is not a whole number")
    if wrong:
        raise ValueError("; ".join(wrong))
    return settings(**values)


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """The HTTP edge: where rows go, and what an agent may leave out."""

    offline_tx_table: str
    wallet_ledger_table: str
    currency: str
    default_region: str
    open_days: int


@dataclass(frozen=True, slots=True)
class IngestBusSettings:
    """The bus edge: where requests from the bus go."""

    tx_queue_url: str
    refund_queue_url: str
    delivery_failures_url: str
    currency: str
    default_region: str


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The relay: which table a stream belongs to, and where each thing goes."""

    offline_tx_table: str
    wallet_ledger_table: str
    dead_letters_table: str
    tx_queue_url: str
    failed_tx_queue_url: str
    event_bus_name: str
    delivery_failures_url: str


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The sweep: its table, and the limits that keep it from becoming a storm."""

    offline_tx_table: str
    tx_queue_url: str
    sweep_backlog_max: int
    sweep_rows_max: int


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Reconcile: its tables and queues, and how long a group may be retried."""

    offline_tx_table: str
    wallet_ledger_table: str
    tx_queue_url: str
    delivery_failures_url: str
    retention_days: int
    latency_budget_ms: int
    receives_max: int


@dataclass(frozen=True, slots=True)
class RefundSettings:
    """Refund: its tables and queues, and how long a phone's refunds may be retried."""

    offline_tx_table: str
    wallet_ledger_table: str
    refund_queue_url: str
    delivery_failures_url: str
    retention_days: int
    latency_budget_ms: int
    receives_max: int


@dataclass(frozen=True, slots=True)
class TriageSettings:
    """Triage: where letters are kept, what it reads, and for how long finished letters stay."""

    dead_letters_table: str
    offline_tx_table: str
    wallet_ledger_table: str
    letter_retention_days: int


@dataclass(frozen=True, slots=True)
class TriageDeskSettings:
    """Triage's desk: as triage, and the queues that a redrive sends to."""

    dead_letters_table: str
    offline_tx_table: str
    wallet_ledger_table: str
    letter_retention_days: int
    tx_queue_url: str
    refund_queue_url: str
    inbox_queue_url: str
