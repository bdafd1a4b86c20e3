"""DynamoDB, as its documentation has it, for the operations that our code calls.

Every call is one step: nobody sees half of it. What DynamoDB knows and this does not is refused
with `Unsupported`. No call is throttled, and no two conflict: faults are the simulator's to add.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.cloud import tables
from tests.simulation.cloud.dynamodb.reads import Reads
from tests.simulation.cloud.dynamodb.requests import MEMBERS, only
from tests.simulation.cloud.dynamodb.writes import Write, Writes
from tests.simulation.cloud.errors import AwsError, Json, Unsupported
from tests.simulation.cloud.tables import Table


class DynamoDB:
    """The service: its tables, and one `call`.

    `lag` is told the table and the index of each read that need not be consistent, and says how
    many of the table's latest commits it does not see; without it every read is up to date.
    `observers` are told each write when its condition has been looked at. `rewrite` may change an
    operation's body before it is run; names and values that nothing uses any more then pass, and so
    does a ConditionCheck without a condition.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.tables: dict[str, Table] = {}
        self.observers: list[Callable[[Write], None]] = []
        self.lag: Callable[[str, str | None], int] | None = None
        self.rewrite: Callable[[str, Json], Json] | None = None
        self.now_ms = now_ms
        self.numbers = itertools.count(1)
        self.tokens: dict[str, tuple[int, Json]] = {}
        """Of transactions that were committed: when, and what they asked."""
        reads, writes = Reads(self), Writes(self)
        self._operations: dict[str, Callable[[Json], Json]] = {
            "CreateTable": self._create_table,
            "GetItem": reads.one,
            "PutItem": partial(writes.one, "PutItem", "Put"),
            "UpdateItem": partial(writes.one, "UpdateItem", "Update"),
            "DeleteItem": partial(writes.one, "DeleteItem", "Delete"),
            "Query": reads.query,
            "Scan": reads.scan,
            "BatchGetItem": reads.several,
            "TransactGetItems": reads.together,
            "TransactWriteItems": writes.together,
        }

    def create_table(self, **members: Any) -> Table:
        """As boto3 takes it, and `TimeToLiveSpecification` as CloudFormation does."""
        table = tables.declared(members, self.now_ms, lambda: next(self.numbers))
        if table.name in self.tables:
            raise AwsError("ResourceInUseException", f"Table already exists: {table.name}")
        self.tables[table.name] = table
        return table

    def call(self, operation: str, body: Json) -> Json:
        """The JSON of the answer, whose items are not to be changed. Raises `AwsError`."""
        if self.rewrite is not None:
            body = self.rewrite(operation, body)
        members = MEMBERS.get(operation)
        if members is None:
            raise Unsupported(operation)
        only(body, members, operation)
        return self._operations[operation](body)

    def delete_expired(self, now_s: int) -> int:
        """What time to live lets go of in every table, as the service does it; how many items."""
        return sum(table.delete_expired(now_s) for table in self.tables.values())

    def _create_table(self, body: Json) -> Json:
        table = self.create_table(**body)
        return {"TableDescription": {"TableName": table.name, "TableStatus": "ACTIVE"}}

    @property
    def is_strict(self) -> bool:
        """Whether names and values that nothing uses are refused."""
        return self.rewrite is None

    def table(self, name: str) -> Table:
        """The table of a name, or of an ARN."""
        table = self.tables.get(name.rsplit("/", 1)[-1])
        if table is None:
            raise AwsError("ResourceNotFoundException", "Requested resource not found")
        return table
