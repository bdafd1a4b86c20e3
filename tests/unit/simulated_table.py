"""A table of the simulator's DynamoDB, for the tests of what the contract suites do not reach."""

from typing import Any

from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.cloud.errors import AwsError
from tests.simulation.cloud.tables import Table

START_MS = 1_760_000_000_000
KEY = {"p": {"S": "P"}, "s": {"N": "1"}}


class Store:
    """A table `T`, its index `ByPlace` (on `ip` and `is`, projecting `kept`), and a held clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.service = DynamoDB(lambda: self.now_ms)
        kinds = {"p": "S", "s": "N", "ip": "S", "is": "N"}
        self.table: Table = self.service.create_table(
            TableName="T",
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
            ],
            KeySchema=_keys("p", "s"),
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "ByPlace",
                    "KeySchema": _keys("ip", "is"),
                    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["kept"]},
                }
            ],
            StreamSpecification={"StreamViewType": "NEW_AND_OLD_IMAGES"},
            TimeToLiveSpecification={"AttributeName": "purgeAt", "Enabled": True},
        )

    def call(self, operation: str, **members: Any) -> Any:
        """One call on `T`."""
        named = {} if "Transact" in operation or "Batch" in operation else {"TableName": "T"}
        return self.service.call(operation, {**named, **members})

    def put(self, sort: int = 1, **attributes: Any) -> None:
        """An item of partition P."""
        self.call("PutItem", Item={"p": {"S": "P"}, "s": {"N": str(sort)}, **attributes})

    def item(self, sort: int = 1) -> Any:
        """What is there, without its key."""
        found = self.call("GetItem", Key={"p": {"S": "P"}, "s": {"N": str(sort)}}).get("Item")
        return found and {name: found[name] for name in found if name not in KEY}

    def update(self, expression: str, **members: Any) -> None:
        """An update of the item 1."""
        self.call("UpdateItem", Key=KEY, UpdateExpression=expression, **members)

    def holds(self, condition: str, values: Any = None, names: Any = None) -> bool:
        """Whether a condition holds for the item 1."""
        given = {"ExpressionAttributeValues": values} if values else {}
        given |= {"ExpressionAttributeNames": names} if names else {}
        asked = {"TableName": "T", "Key": KEY, "ConditionExpression": condition, **given}
        try:
            self.call("TransactWriteItems", TransactItems=[{"ConditionCheck": asked}])
        except AwsError as error:
            if error.code != "TransactionCanceledException":
                raise
            return False
        return True

    def keys(self, condition: str, values: Any, **members: Any) -> list[int]:
        """The sort keys that a query finds, in its order."""
        answer = self.call(
            "Query",
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            **members,
        )
        return [int(item["s"]["N"]) for item in answer["Items"]]


def _keys(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]
