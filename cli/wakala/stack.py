"""A handle on one deployed stack, on the local engine or on AWS: its outputs and its clients."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from localstack_client.session import Session as LocalSession

from wakala import engine
from wakala.output import Problem

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cognito_idp import CognitoIdentityProviderClient
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sts import STSClient

DEFAULT_STACK = "wakala"

CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 5},
    connect_timeout=5,
    read_timeout=30,
    # On AWS, an AWS_ENDPOINT_URL that was meant for a local engine must not divert a command.
    ignore_configured_endpoint_urls=True,  # type: ignore[call-arg]  # the stubs lack it
)
# A function that is waited for says itself when its time is over: after 50 s at the latest. Until
# then the connection is silent, and whatever lies between might forget it.
FUNCTIONS_CONFIG = CONFIG.merge(Config(read_timeout=60, tcp_keepalive=True))


@dataclass(frozen=True, slots=True)
class Where:
    """Which stack a command means: the local engine's, unless a profile or a region says AWS."""

    stack: str = DEFAULT_STACK
    profile: str | None = None
    region: str | None = None

    @property
    def on_aws(self) -> bool:
        """Whether the stack is on AWS."""
        return self.profile is not None or self.region is not None


@dataclass(frozen=True)
class Stack:
    """A deployed stack. `endpoint_url` is the local engine's address, None on AWS."""

    name: str
    region: str
    endpoint_url: str | None
    session: Any = field(repr=False)
    outputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether it is on the local engine, where the caller may do everything."""
        return self.endpoint_url is not None

    @property
    def api_url(self) -> str:
        """The API's address, up to and with its stage, as this machine reaches it."""
        return reachable_api_url(self.output("ApiUrl"), self.endpoint_url)

    @property
    def currency(self) -> str:
        """The currency of an amount that names none."""
        return self.parameter("Currency")

    @property
    def default_region(self) -> str:
        """The country that a phone number with a leading 0 belongs to."""
        return self.parameter("DefaultRegion")

    def output(self, name: str) -> str:
        """An output of the stack. Problem where it has none of that name."""
        try:
            return self.outputs[name]
        except KeyError:
            raise Problem(
                f"the stack {self.name} has no output {name}: is it another stack's name?"
            ) from None

    def parameter(self, name: str) -> str:
        """What the stack was deployed with. Problem where it has no such parameter."""
        try:
            return self.parameters[name]
        except KeyError:
            raise Problem(
                f"the stack {self.name} has no parameter {name}: is it another stack's name?"
            ) from None

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        """The tables' client."""
        return cast("DynamoDBClient", self._client("dynamodb"))

    @cached_property
    def cognito(self) -> "CognitoIdentityProviderClient":
        """The agents' user pool's client."""
        return cast("CognitoIdentityProviderClient", self._client("cognito-idp"))

    @cached_property
    def events(self) -> "EventBridgeClient":
        """The bus's client."""
        return cast("EventBridgeClient", self._client("events"))

    @cached_property
    def sqs(self) -> "SQSClient":
        """The queues' client."""
        return cast("SQSClient", self._client("sqs"))

    @cached_property
    def functions(self) -> "LambdaClient":
        """The functions' client. It may invoke twice: only for what may run twice."""
        return cast("LambdaClient", self._client("lambda", FUNCTIONS_CONFIG))

    @cached_property
    def logs(self) -> "CloudWatchLogsClient":
        """The functions' logs' client."""
        return cast("CloudWatchLogsClient", self._client("logs"))

    @cached_property
    def cloudwatch(self) -> "CloudWatchClient":
        """The metrics' client."""
        return cast("CloudWatchClient", self._client("cloudwatch"))

    @cached_property
    def sts(self) -> "STSClient":
        """The client that knows who the caller is."""
        return cast("STSClient", self._client("sts"))

    @cached_property
    def cloudformation(self) -> "CloudFormationClient":
        """CloudFormation's client."""
        return cast("CloudFormationClient", self._client("cloudformation"))

    def _client(self, service: str, config: Config = CONFIG) -> object:
        return self.session.client(service, config=config)


def local_endpoint_url() -> str:
    """The engine that commands talk to: one of the caller's own, or the one that `up` started."""
    own = os.environ.get("AWS_ENDPOINT_URL")
    if own:
        return own.rstrip("/")
    started = engine.running()
    if started is None:
        raise Problem("the local engine is not running: start it with `wakala up`")
    return started.endpoint_url


def open_stack(where: Where) -> Stack:
    """The deployed stack with its outputs. Problem where it, or the engine, is not there."""
    stack = _aws(where) if where.on_aws else _local(where.stack)
    try:
        found = stack.cloudformation.describe_stacks(StackName=stack.name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" not in error.response["Error"].get("Message", ""):
            raise
        cure = "deploy it with `sam deploy`" if where.on_aws else "deploy it with `wakala up`"
        raise Problem(f"there is no stack {stack.name} in {stack.region}: {cure}") from error
    return Stack(
        name=stack.name,
        region=stack.region,
        endpoint_url=stack.endpoint_url,
        session=stack.session,
        outputs={o["OutputKey"]: o["OutputValue"] for o in found.get("Outputs", [])},
        parameters={p["ParameterKey"]: p["ParameterValue"] for p in found.get("Parameters", [])},
    )


def reachable_api_url(output: str, endpoint_url: str | None) -> str:
    """The stage's address; an engine answers for API Gateway's host name at its own."""
    if endpoint_url is None:
        return output.rstrip("/")
    parts = urlsplit(output)
    api_id = (parts.hostname or "").split(".")[0]
    if ".execute-api." not in (parts.hostname or ""):
        return output.rstrip("/")
    return f"{endpoint_url}/_aws/execute-api/{api_id}{parts.path.rstrip('/')}"


def _local(name: str) -> Stack:
    endpoint_url = local_endpoint_url()
    session = LocalSession(
        aws_access_key_id=engine.CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=engine.CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=None,
        region_name=engine.REGION,
        localstack_host=urlsplit(endpoint_url).netloc,
    )
    return Stack(name, engine.REGION, endpoint_url, session)


def _aws(where: Where) -> Stack:
    session = boto3.Session(profile_name=where.profile, region_name=where.region)
    if session.region_name is None:
        raise Problem(f"the profile {where.profile} names no region: add --region")
    return Stack(where.stack, session.region_name, None, session)
