"""All that the template declares of tables, queues, rules and a bus, empty, in this process."""

from collections.abc import Callable
from typing import Any

from tests.simulation import functions
from tests.simulation.cloud.bus import Delivery, EventBridge
from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.cloud.sqs import Sqs
from tests.template import RESOURCES


class Stage:
    """The account on which a history is played."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        deliver: Callable[[Delivery], None],
        shuffle: Callable[[list[Any]], None],
    ) -> None:
        self.dynamodb = DynamoDB(now_ms)
        self.sqs = Sqs(now_ms)
        self.sqs.shuffle = shuffle
        self.events = EventBridge(now_ms, deliver)
        for name, resource in RESOURCES.items():
            self._make(name, resource["Type"], resource.get("Properties", {}))
        for name, resource in RESOURCES.items():
            policy = resource.get("Properties", {}).get("RedrivePolicy")
            if resource["Type"] == "AWS::SQS::Queue" and policy:
                [target, _] = policy["deadLetterTargetArn"]["Fn::GetAtt"]
                dead = self.sqs.queues[functions.physical(target)]
                queue = self.sqs.queues[functions.physical(name)]
                queue.redrive = (dead.arn, int(policy["maxReceiveCount"]))

    def answer(self, service: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a call is answered with. Raises `AwsError`."""
        match service:
            case "dynamodb":
                return self.dynamodb.call(operation, body)
            case "sqs":
                return self.sqs.call(operation, body)
            case "events":
                return self.events.call(operation, body)
            case _:
                raise AssertionError(service)

    def _make(self, name: str, kind: str, declared: dict[str, Any]) -> None:
        match kind:
            case "AWS::DynamoDB::Table":
                wanted = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes")
                members = {each: declared[each] for each in wanted if each in declared}
                stream = {**declared["StreamSpecification"], "StreamEnabled": True}
                self.dynamodb.create_table(
                    TableName=functions.physical(name),
                    BillingMode="PAY_PER_REQUEST",
                    StreamSpecification=stream,
                    **members,
                    **({"TimeToLiveSpecification": declared["TimeToLiveSpecification"]}
                       if "TimeToLiveSpecification" in declared else {}),
                )
            case "AWS::SQS::Queue":
                left_out = ("QueueName", "RedrivePolicy", "SqsManagedSseEnabled")
                attributes = {k: str(v) for k, v in declared.items() if k not in left_out}
                self.sqs.create_queue(functions.physical(name), attributes)
            case "AWS::Events::EventBus":
                self.events.create_bus(functions.physical(name))
            case "AWS::Events::Rule":
                self._rule(name, declared)
            case _:
                pass

    def _rule(self, name: str, declared: dict[str, Any]) -> None:
        import json

        bus = functions.physical("EventBus")
        pattern = json.dumps(declared["EventPattern"])
        self.events.call(
            "PutRule", {"Name": name, "EventBusName": bus, "EventPattern": pattern}
        )
        targets = [
            {"Id": each["Id"], "Arn": functions.arn_of(each["Arn"]),
             "DeadLetterConfig": {"Arn": functions.arn_of(each["DeadLetterConfig"]["Arn"])}}
            for each in declared["Targets"]
        ]
        self.events.call("PutTargets", {"Rule": name, "EventBusName": bus, "Targets": targets})
