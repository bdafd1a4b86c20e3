"""Where the promises of the ports are asked for: in memory, and on an engine's tables."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from tests.engine import Aws
from tests.fakes.memory import (
    FakeAcceptedTransactions,
    FakeDeadLetters,
    FakeLedger,
    FakeOpenTransactions,
    FakeRefundBooks,
    FakeRefundDesk,
    FakeSubjects,
    Store,
)
from tests.fakes.promises import refund_totals
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.aws.refunds import DynamoRefundBooks, DynamoRefundDesk
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions, DynamoOpenTransactions
from wallet_ledger.domain.ids import AgentId, EntryId, IdempotencyKey, Phone
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction
from wallet_ledger.ports import (
    AcceptedTransactions,
    DeadLetters,
    Ledger,
    OpenTransactions,
    RefundBooks,
    RefundDesk,
    Subjects,
)


class Place(Protocol):
    """The ports on tables of their own, and a look behind them."""

    def accepted(self) -> AcceptedTransactions:
        """The port under test."""

    def open_transactions(self) -> OpenTransactions:
        """The port under test."""

    def ledger(self, *, retention_days: int = 0) -> Ledger:
        """The port under test."""

    def refund_books(self, *, retention_days: int = 0) -> RefundBooks:
        """The port under test."""

    def refund_desk(self) -> RefundDesk:
        """The port under test."""

    def dead_letters(self, *, retention_days: int = 0) -> DeadLetters:
        """The port under test."""

    def subjects(self) -> Subjects:
        """The port under test."""

    def letter_purges(self, letter_id: str) -> set[int | None]:
        """When retention lets a letter go, and each part of its record."""

    def spoil_letter(self, letter_id: str) -> None:
        """A later version has written to it what this one does not know."""

    def purge_letter(self, letter_id: str) -> None:
        """Retention has let the letter go, and its record not yet."""

    def put_row(self, row: OfflineTransaction) -> None:
        """Whatever state a row is in."""

    def purge_at_s(self, agent_id: AgentId, key: IdempotencyKey) -> int | None:
        """When retention lets the row go."""

    def purge(self, agent_id: AgentId, key: IdempotencyKey) -> None:
        """Retention has let the row go."""

    def entries(self, phone: Phone) -> Sequence[Entry]:
        """All entries of a wallet, by their id."""

    def refund_totals(self, phone: Phone) -> Mapping[EntryId, int]:
        """What was given back of each debit of a wallet, minor units by the total's id."""

    def everything(self) -> Any:
        """All that is stored, to be compared."""


class InMemory:
    """The fakes."""

    def __init__(self) -> None:
        self._store = Store()

    def accepted(self) -> AcceptedTransactions:
        return FakeAcceptedTransactions(self._store)

    def open_transactions(self) -> OpenTransactions:
        return FakeOpenTransactions(self._store)

    def ledger(self, *, retention_days: int = 0) -> Ledger:
        return FakeLedger(self._store, retention_days=retention_days)

    def refund_books(self, *, retention_days: int = 0) -> RefundBooks:
        return FakeRefundBooks(self._store, retention_days=retention_days)

    def refund_desk(self) -> RefundDesk:
        return FakeRefundDesk(self._store)

    def dead_letters(self, *, retention_days: int = 0) -> DeadLetters:
        return FakeDeadLetters(self._store, retention_days=retention_days)

    def subjects(self) -> Subjects:
        return FakeSubjects(self._store)

    def letter_purges(self, letter_id: str) -> set[int | None]:
        assert letter_id in self._store.records
        return {self._store.letter_purge_at_s.get(letter_id)}

    def spoil_letter(self, letter_id: str) -> None:
        self._store.spoilt.add(letter_id)

    def purge_letter(self, letter_id: str) -> None:
        del self._store.letters[letter_id]

    def put_row(self, row: OfflineTransaction) -> None:
        self._store.rows[row.agent_id, row.idempotency_key] = row

    def purge_at_s(self, agent_id: AgentId, key: IdempotencyKey) -> int | None:
        return self._store.purge_at_s.get((agent_id, key))

    def purge(self, agent_id: AgentId, key: IdempotencyKey) -> None:
        del self._store.rows[agent_id, key]

    def entries(self, phone: Phone) -> Sequence[Entry]:
        found = [entry for (owner, _), entry in self._store.entries.items() if owner == phone]
        return sorted(found, key=lambda entry: entry.entry_id)

    def refund_totals(self, phone: Phone) -> Mapping[EntryId, int]:
        return self._store.refund_totals(phone)

    def everything(self) -> Any:
        store = self._store
        kept = (store.rows, store.wallets, store.entries, store.refunded, store.purge_at_s)
        letters = (store.letters, store.records, store.budgets, store.letter_purge_at_s)
        return [dict(each) for each in (*kept, *letters)]


class OnEngine:
    """The adapters on tables of the template's shape."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._client = aws.dynamodb
        self._tables = aws.tables()

    @cached_property
    def _letters_table(self) -> str:
        """Made for those who ask for it."""
        return self._aws.dead_letters()

    def accepted(self) -> AcceptedTransactions:
        return DynamoAcceptedTransactions(self._client, table=self._tables.offline_tx)

    def open_transactions(self) -> OpenTransactions:
        return DynamoOpenTransactions(self._client, table=self._tables.offline_tx)

    def ledger(self, *, retention_days: int = 0) -> Ledger:
        return DynamoLedger(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
            retention_days=retention_days,
        )

    def refund_books(self, *, retention_days: int = 0) -> RefundBooks:
        return DynamoRefundBooks(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
            retention_days=retention_days,
        )

    def refund_desk(self) -> RefundDesk:
        return DynamoRefundDesk(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
        )

    def dead_letters(self, *, retention_days: int = 0) -> DeadLetters:
        return DynamoDeadLetters(
            self._client,
            table=self._letters_table,
            offline_tx_table=self._tables.offline_tx,
            retention_days=retention_days,
        )

    def subjects(self) -> Subjects:
        return DynamoSubjects(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
        )

    def letter_purges(self, letter_id: str) -> set[int | None]:
        pages = self._client.get_paginator("scan").paginate(TableName=self._letters_table)
        found = [
            item
            for page in pages
            for item in page["Items"]
            if item["id"]["S"].split("#")[:2] in (["letter", letter_id], ["record", letter_id])
        ]
        assert len(found) > 1
        return {int(each["purgeAt"]["N"]) if "purgeAt" in each else None for each in found}

    def spoil_letter(self, letter_id: str) -> None:
        self._client.update_item(
            TableName=self._letters_table,
            Key=items.letter_key(letter_id),
            UpdateExpression="SET failure = :later",
            ExpressionAttributeValues={":later": {"S": "of_tomorrow"}},
        )

    def purge_letter(self, letter_id: str) -> None:
        self._client.delete_item(TableName=self._letters_table, Key=items.letter_key(letter_id))

    def put_row(self, row: OfflineTransaction) -> None:
        self._client.put_item(TableName=self._tables.offline_tx, Item=items.offline_tx_item(row))

    def purge_at_s(self, agent_id: AgentId, key: IdempotencyKey) -> int | None:
        answer = self._client.get_item(
            TableName=self._tables.offline_tx, Key=items.offline_tx_key(agent_id, key)
        )
        return int(answer["Item"]["purgeAt"]["N"]) if "purgeAt" in answer["Item"] else None

    def purge(self, agent_id: AgentId, key: IdempotencyKey) -> None:
        self._client.delete_item(
            TableName=self._tables.offline_tx, Key=items.offline_tx_key(agent_id, key)
        )

    def entries(self, phone: Phone) -> Sequence[Entry]:
        found = self._items(phone)
        return [items.read_entry(item) for item in found if items.entry_kind(item["txId"]["S"])]

    def refund_totals(self, phone: Phone) -> Mapping[EntryId, int]:
        return refund_totals(self._items(phone))

    def _items(self, phone: Phone) -> Sequence[Mapping[str, Any]]:
        answer = self._client.query(
            TableName=self._tables.wallet_ledger,
            KeyConditionExpression="phone = :phone",
            ExpressionAttributeValues={":phone": {"S": phone}},
        )
        return answer["Items"]

    def everything(self) -> Any:
        tables = [self._tables.offline_tx, self._tables.wallet_ledger]
        tables += [self._letters_table] if "_letters_table" in vars(self) else []
        return [sorted(self._client.scan(TableName=table)["Items"], key=repr) for table in tables]
