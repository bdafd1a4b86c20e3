"""Between boto3 and the network: what a client sends is answered in this process.

botocore has then serialised the parameters; its own retries are not run.
"""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.simulation.cloud.dynamodb.requests import items_in
from tests.simulation.cloud.errors import AwsError, Json
from tests.simulation.cloud.values import item_as_python

type Answer = Callable[[str, str, Json], Json]
"""Told the service (dynamodb, sqs or events), the operation and its body; raises `AwsError`."""


class Hook:
    """Stands behind any number of clients; `answer` may be replaced at any time."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def attach(self, client: Any) -> None:
        """From now on nothing that this client sends leaves the process."""
        service = client.meta.service_model.service_name
        convert = _dynamodb_as_python if service == "dynamodb" else _as_it_is

        def answered(model: Any, params: Json, **_: Any) -> tuple[Any, Json]:
            try:
                parsed = convert(self.answer(service, model.name, json.loads(params["body"])))
            except AwsError as error:
                return _refused(error, convert)
            parsed["ResponseMetadata"] = {"HTTPStatusCode": 200, "RetryAttempts": 0}
            return _OK, parsed

        # What no answer depends on is a tenth of a call's time.
        client._user_agent_creator = SimpleNamespace(to_string=lambda: "simulated")
        client.meta.events.register("before-call", answered)


_OK = SimpleNamespace(status_code=200, headers={})


def _refused(error: AwsError, convert: Callable[[Json], Json]) -> tuple[Any, Json]:
    parsed = convert(dict(error.members))
    parsed["Error"] = {"Code": error.code, "Message": error.message}
    parsed["ResponseMetadata"] = {
        "HTTPStatusCode": error.status,
        "RetryAttempts": error.retries,
    }
    return SimpleNamespace(status_code=error.status, headers={}), parsed


def _as_it_is(answer: Json) -> Json:
    return answer


def _dynamodb_as_python(answer: Json) -> Json:
    """A copy whose items are the caller's own."""
    made = dict(answer)
    if "Items" in made:
        made["Items"] = [item_as_python(item) for item in made["Items"]]
    responses = made.get("Responses")
    if isinstance(responses, dict):
        made["Responses"] = {
            table: [item_as_python(item) for item in items] for table, items in responses.items()
        }
    for name in ("Responses", "CancellationReasons"):
        if isinstance(made.get(name), list):
            made[name] = [dict(each) for each in made[name]]
    for holder, name in items_in(made):
        holder[name] = item_as_python(holder[name])
    return made
