"""DynamoDB: `service` answers calls, and looks them up in `reads` and `writes`."""

from tests.simulation.cloud.dynamodb.service import DynamoDB
from tests.simulation.cloud.dynamodb.writes import Write

__all__ = ["DynamoDB", "Write"]
