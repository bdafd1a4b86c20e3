"""A stack as a replay sees it: an API that accepts, rows that settle, books, logs, metrics."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from wakala.stack import Stack
from wakala.transactions import Answer, Document
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.transactions import OfflineTransaction, Request, Status, accept

OUTPUTS = {
    "OfflineTxTable": "wakala-tx",
    "WalletLedgerTable": "wakala-books",
    "DeadLettersTable": "wakala-letters",
    "FailedTxQueueUrl": "failed",
    "TxDlqUrl": "tx-dlq",
    "RefundDlqUrl": "refund-dlq",
    "DeliveryFailuresUrl": "failures",
    "TriageDeskFunctionName": "desk",
}
NOW_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Session:
    """Clients by the name of their service."""

    clients: Mapping[str, Any]

    def client(self, service: str, config: object) -> Any:
        return self.clients[service]


def stack_of(*, on_aws: bool = False, **clients: Any) -> Stack:
    """A stack with these clients, and no others."""
    named = {name.replace("_", "-"): client for name, client in clients.items()}
    return Stack(
        name="wakala",
        region="us-east-1",
        endpoint_url=None if on_aws else "http://127.0.0.1:1",
        session=Session(named),
        outputs=OUTPUTS,
        parameters={"Stage": "test", "Currency": "KES", "DefaultRegion": "KE"},
    )


@dataclass
class Bank:
    """API and table in one: a transaction is queued when it is taken, and settled when looked at.

    `fate` says what a look makes of a row. `answers` may say what the API says of a key instead.
    """

    fate: Callable[[OfflineTransaction], OfflineTransaction]
    answers: Mapping[str, Callable[[Document], Answer]] = field(default_factory=dict)
    rows: dict[tuple[str, str], OfflineTransaction] = field(default_factory=dict)
    batches: list[list[str]] = field(default_factory=list)
    refunded: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, document: Document) -> Answer:
        with self._lock:
            key = document["idempotencyKey"]
            if key in self.answers:
                return self.answers[key](document)
            id_ = (document["agentId"], key)
            is_known = id_ in self.rows
            if not is_known:
                self.rows[id_] = accepted(document)
            body = {"idempotencyKey": key, "status": "queued"}
            return Answer(document, 200 if is_known else 202, body, is_known, 1.0)

    def submit_all(self, documents: Sequence[Document]) -> list[Answer]:
        self.batches.append([each["idempotencyKey"] for each in documents])
        return [self.submit(each) for each in documents]

    def refund(self, wanted: Document) -> Answer:
        with self._lock:
            id_ = (wanted["agentId"], wanted["idempotencyKey"])
            row = self.rows[id_]
            assert row.status is Status.SYNCED
            self.rows[id_] = replace(row, status=Status.REFUNDED, refunded_minor=row.amount_minor)
            self.refunded.append(wanted["idempotencyKey"])
            return Answer(wanted, 202, {"idempotencyKey": id_[1], "status": "refunded"}, False, 1.0)

    def batch_get_item(self, RequestItems: Any) -> Any:  # noqa: N803
        with self._lock:
            keys = RequestItems["wakala-tx"]["Keys"]
            ids = [(key["agentId"]["S"], key["idempotencyKey"]["S"]) for key in keys]
            assert len({*ids}) == len(ids) <= 100, "DynamoDB takes no such list of keys"
            for id_ in ids:
                if self.rows[id_].status is Status.QUEUED:
                    self.rows[id_] = self.fate(self.rows[id_])
            found = [items.offline_tx_item(self.rows[id_]) for id_ in ids]
            return {"Responses": {"wakala-tx": found}}


def accepted(document: Document) -> OfflineTransaction:
    """The row of a request."""
    asked = Request(
        AgentId(document["agentId"]),
        IdempotencyKey(document["idempotencyKey"]),
        Phone(document["phone"]),
        document["amount"],
        Currency("KES"),
    )
    return accept(asked, NOW_MS, 7)


def settled(row: OfflineTransaction) -> OfflineTransaction:
    """The row once its debit is posted."""
    return replace(row, status=Status.SYNCED, next_sweep_at_ms=None)


@dataclass
class Logs:
    """Log groups; a page holds `page` lines, and says that there is another if `tells_next`."""

    lines: Mapping[str, Sequence[tuple[int, str]]]
    page: int = 10_000
    tells_next: bool = False
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def filter_log_events(self, **request: Any) -> Any:
        self.asked.append(dict(request))
        group = request["logGroupName"].rpartition("/")[2].removeprefix("wakala-")
        found = [
            {"timestamp": at_ms, "message": text}
            for at_ms, text in self.lines.get(group, ())
            if at_ms >= request["startTime"]
        ]
        start = int(request.get("nextToken", "0"))
        answer: dict[str, Any] = {"events": found[start : start + self.page]}
        if self.tells_next and start + self.page < len(found):
            answer["nextToken"] = str(start + self.page)
        return answer


@dataclass
class Time:
    """A clock that only sleeping moves."""

    now_s: float = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def apis_of(bank: Bank, agents: Sequence[str]) -> Any:
    """The bank as the app of each agent."""
    return cast("Any", dict.fromkeys(agents, bank))
