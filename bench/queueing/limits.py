"""What AWS publishes as limits, with the page that says so and the day it was read.

Quotas are the defaults of an account in us-east-1; other Regions have less (SQS, EventBridge), and
most can be raised by asking. Limits of one partition, one group and one transaction cannot.
"""

from dataclasses import dataclass

READ_ON = "2026-11-29"
_DOCS = "https://docs.aws.amazon.com"
_DYNAMODB = f"{_DOCS}/amazondynamodb/latest/developerguide"
_LAMBDA = f"{_DOCS}/lambda/latest/dg"
_SQS = f"{_DOCS}/AWSSimpleQueueService/latest/SQSDeveloperGuide"


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that AWS gives. `can_grow`: whether one can ask for more."""

    what: str
    value: float
    unit: str
    page: str
    can_grow: bool


API_REQUESTS = Limit(
    "requests to all APIs of an account",
    10_000,
    "a second",
    f"{_DOCS}/apigateway/latest/developerguide/limits.html",
    can_grow=True,
)
LAMBDA_CONCURRENCY = Limit(
    "instances of all functions at once",
    1_000,
    "(new accounts begin lower)",
    f"{_LAMBDA}/gettingstarted-limits.html",
    can_grow=True,
)
LAMBDA_SCALING = Limit(
    "new instances of one function",
    1_000,
    "in ten seconds",
    f"{_LAMBDA}/scaling-behavior.html",
    can_grow=False,
)
LAMBDA_VCPU_MB = Limit(
    "memory that comes with one processor",
    1_769,
    "MB",
    f"{_LAMBDA}/configuration-memory.html",
    can_grow=False,
)
MAPPING_CONCURRENCY = Limit(
    "batches of a queue in work at once, for one mapping",
    1_000,
    "(and no more than groups with messages)",
    f"{_LAMBDA}/services-sqs-scaling.html",
    can_grow=False,
)
STREAM_FACTOR = Limit(
    "batches of one stream shard in work at once",
    10,
    "",
    f"{_LAMBDA}/services-ddb-params.html",
    can_grow=False,
)
PARTITION_WRITES = Limit(
    "write units of one partition, and so of one item",
    1_000,
    "a second",
    f"{_DYNAMODB}/bp-partition-key-design.html",
    can_grow=False,
)
PARTITION_READS = Limit(
    "read units of one partition, and so of one item",
    3_000,
    "a second",
    f"{_DYNAMODB}/bp-partition-key-design.html",
    can_grow=False,
)
NEW_TABLE_WRITES = Limit(
    "write units of a new table or index, on demand",
    4_000,
    "a second; then twice the last peak of 30 minutes",
    f"{_DYNAMODB}/warm-throughput-scenarios.html",
    can_grow=True,
)
TABLE_WRITES = Limit(
    "write units of a table, or of one index, on demand",
    40_000,
    "a second",
    f"{_DYNAMODB}/ServiceQuotas.html",
    can_grow=True,
)
FIFO_CALLS = Limit(
    "calls of one kind to a FIFO queue, in high-throughput mode",
    70_000,
    "a second",
    f"{_SQS}/quotas-messages.html",
    can_grow=True,
)
FIFO_PARTITION_CALLS = Limit(
    "calls of one kind to one partition of it, and so to one group",
    300,
    "a second, ten messages each",
    f"{_SQS}/troubleshooting-fifo-throttling-issues.html",
    can_grow=False,
)
FIFO_LOOKED_AT = Limit(
    "messages at its head among which a FIFO queue looks for free groups",
    120_000,
    "",
    f"{_SQS}/avoid-backlog-with-the-same-message-group-id.html",
    can_grow=False,
)
FIFO_BATCH = Limit(
    "messages of one call, and of one batch of a FIFO queue",
    10,
    "",
    f"{_SQS}/quotas-messages.html",
    can_grow=False,
)
PUT_EVENTS = Limit(
    "calls of PutEvents",
    10_000,
    "a second",
    f"{_DOCS}/eventbridge/latest/userguide/eb-quota.html",
    can_grow=True,
)

LIMITS = [each for each in dict(globals()).values() if isinstance(each, Limit)]
