"""Writes, alone and in transactions: each looks at its condition, and then is made or is not."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.cloud import expressions, tables, values
from tests.simulation.cloud.dynamodb.requests import (
    TRANSACTION_BYTES_MAX,
    WRITTEN,
    consumed,
    consumed_by_table,
    one_each,
    placeholders,
)
from tests.simulation.cloud.dynamodb.updates import updated
from tests.simulation.cloud.errors import AwsError, Json, Unsupported, invalid
from tests.simulation.cloud.expressions import Parsed
from tests.simulation.cloud.tables import Key, Row, Table

if TYPE_CHECKING:
    from tests.simulation.cloud.dynamodb.service import DynamoDB

TOKEN_MS = 600_000
"""How long a transaction is known by its token."""
CONDITION_FAILED = "The conditional request failed"


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was asked for, alone or in a transaction, and whether its condition held.

    `action` is Put, Update, Delete or ConditionCheck; both texts are as they were sent, and
    `asked` is the whole of it. A transaction may fail for another of its items.
    """

    operation: str
    table: str
    action: str
    condition: str | None
    update: str | None
    outcome: bool
    asked: Json


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A write before it is made: `new` is the item that it leaves behind."""

    action: str
    table: Table
    key: Key
    old: Row | None
    new: Row | None
    holds: bool
    asked: Json

    @property
    def size(self) -> int:
        """Bytes that count for its write units."""
        return max(row.size if row else 0 for row in (self.old, self.new))

    def commit(self) -> float:
        """Make it; the write units of the indexes."""
        if self.action == "ConditionCheck":
            return 0.0
        return self.table.write(self.key, self.new)


class Writes:
    """The operations that write."""

    def __init__(self, service: "DynamoDB") -> None:
        self._service = service

    def one(self, operation: str, action: str, body: Json) -> Json:
        """PutItem, UpdateItem or DeleteItem, whose action is Put, Update or Delete."""
        wanted = body.get("ReturnValues", "NONE")
        if wanted not in {"NONE", "ALL_OLD"} | ({"ALL_NEW"} if action == "Update" else set()):
            raise Unsupported(f"ReturnValues {wanted}")
        if body.get("ReturnItemCollectionMetrics", "NONE") != "NONE":
            raise Unsupported("ReturnItemCollectionMetrics")
        prepared = self._prepare(operation, action, body)
        if not prepared.holds:
            raise AwsError(
                "ConditionalCheckFailedException", CONDITION_FAILED, **_kept(prepared, body)
            )
        units = tables.write_units(prepared.size) + prepared.commit()
        answer = consumed(body, prepared.table.name, units)
        shown = prepared.new if wanted == "ALL_NEW" else prepared.old
        if wanted != "NONE" and shown is not None:
            answer["Attributes"] = shown.item
        return answer

    def together(self, body: Json) -> Json:
        """TransactWriteItems: all of it or nothing."""
        asked = one_each(body["TransactItems"], WRITTEN, "TransactItems")
        token = body.get("ClientRequestToken")
        known = self._known(token, body)
        if known:
            return consumed_by_table(body, [])
        prepared: list[_Prepared] = []
        reasons: list[Json] = []
        places = set()
        for action, each in asked:
            ready = self._prepare_in_transaction(action, each)
            if isinstance(ready, AwsError):
                reasons.append({"Code": "ValidationError", "Message": ready.message})
                continue
            place = (ready.table.name, ready.key)
            if place in places:
                raise invalid("Transaction request cannot include multiple operations on one item")
            places.add(place)
            prepared.append(ready)
            reasons.append({"Code": "None"} if ready.holds else _reason(ready, each))
        if any(reason["Code"] != "None" for reason in reasons):
            raise _cancelled(reasons)
        if sum(each.size for each in prepared) > TRANSACTION_BYTES_MAX:
            raise invalid("The total size of the items in the transaction is above 4 MB")
        units_of = []
        for write in prepared:
            units = 2 * tables.write_units(write.size) + 2 * write.commit()
            units_of.append((write.table.name, units))
        if token is not None:
            self._service.tokens[token] = (self._service.now_ms(), body)
        return consumed_by_table(body, units_of)

    def _known(self, token: str | None, body: Json) -> bool:
        """Whether this very transaction was committed within the last ten minutes."""
        horizon_ms = self._service.now_ms() - TOKEN_MS
        while self._service.tokens:
            oldest = next(iter(self._service.tokens))
            if self._service.tokens[oldest][0] > horizon_ms:
                break
            del self._service.tokens[oldest]
        if token is None or token not in self._service.tokens:
            return False
        if self._service.tokens[token][1] != body:
            raise AwsError(
                "IdempotentParameterMismatchException",
                "The parameters of a request with the same token are not the same",
            )
        return True

    def _prepare_in_transaction(self, action: str, asked: Json) -> "_Prepared | AwsError":
        """What is wrong with the item and not with the request becomes a reason."""
        try:
            return self._prepare("TransactWriteItems", action, asked)
        except _ItemError as error:
            return error

    def _prepare(self, operation: str, action: str, asked: Json) -> _Prepared:
        table = self._service.table(asked["TableName"])
        condition, update = self._parsed(operation, action, asked)
        parsed: list[Parsed[Any]] = [each for each in (condition, update) if each is not None]
        given = placeholders(asked, parsed, strict=self._service.is_strict)
        with _item_errors(operation):
            item = values.canonical_item(asked["Item"]) if action == "Put" else {}
            key = table.read_item(item) if action == "Put" else table.read_key(asked["Key"])
            new = table.new_row(item) if action == "Put" else None
        old = table.row(key)
        item_now = old.item if old else {}
        holds = condition is None or condition.body.holds(item_now, given)
        self._tell(operation, action, asked, holds)
        if not holds or action == "ConditionCheck":
            return _Prepared(action, table, key, old, old, holds, asked)
        with _item_errors(operation):
            if action == "Update":
                base = item_now or values.canonical_item(asked["Key"])
                made = updated(base, table, update, given, is_new=old is None)
                new = old if old is not None and made == old.item else table.new_row(made)
        return _Prepared(action, table, key, old, new, holds, asked)

    def _parsed(
        self, operation: str, action: str, asked: Json
    ) -> tuple[Parsed[expressions.Condition] | None, Parsed[expressions.Update] | None]:
        condition: Parsed[expressions.Condition] | None = None
        update: Parsed[expressions.Update] | None = None
        if "ConditionExpression" in asked:
            condition = expressions.condition(asked["ConditionExpression"], "ConditionExpression")
        elif action == "ConditionCheck" and self._service.is_strict:
            raise invalid("The ConditionExpression of a ConditionCheck must be specified")
        if "UpdateExpression" in asked:
            update = expressions.update(asked["UpdateExpression"])
        elif action == "Update" and operation == "TransactWriteItems":
            raise invalid("The UpdateExpression of an Update must be specified")
        return condition, update

    def _tell(self, operation: str, action: str, asked: Json, holds: bool) -> None:
        if self._service.observers:
            write = Write(
                operation,
                asked["TableName"],
                action,
                asked.get("ConditionExpression"),
                asked.get("UpdateExpression"),
                holds,
                asked,
            )
            for each in self._service.observers:
                each(write)


class _ItemError(AwsError):
    """What is wrong with one item of a transaction."""


class _item_errors:  # noqa: N801 # reads as the statement that it stands in for
    """In a transaction, refusals of an item are told from those of the request."""

    def __init__(self, operation: str) -> None:
        self._apart = operation == "TransactWriteItems"

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if self._apart and isinstance(error, AwsError):
            raise _ItemError(error.code, error.message) from error


def _kept(prepared: _Prepared, asked: Json) -> Json:
    """The item that a failed condition shows to who asks for it."""
    wanted = asked.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return {"Item": prepared.old.item} if wanted and prepared.old is not None else {}


def _reason(prepared: _Prepared, asked: Json) -> Json:
    shown = _kept(prepared, asked)
    return {"Code": "ConditionalCheckFailed", "Message": CONDITION_FAILED} | shown


def _cancelled(reasons: list[Json]) -> AwsError:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return AwsError(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        reasons=reasons,
    )
