"""A kiosk: it records payments as they come, and a thread brings them to the server.

    python kiosk.py < payments.txt      # a line each: phone amount

AGENT and PASSWORD sign in at COGNITO (https://cognito-idp.<region>.amazonaws.com) as a user of
the app client CLIENT; API is the API's address with its stage. The README has the commands that
set them.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

import httpx

from wakala_agent import LimitExceeded, Limits, Outbox, StorageFull, Syncer, Transaction

LIMITS = Limits(amount_max=7_000_000, stored_total_max=50_000_000)
"""What this shop may lose with the device. Minor units."""


class SignIn:
    """ID tokens: the password once, from then on what Cognito gave to refresh them with."""

    def __init__(self, url: str, client_id: str, agent_id: str, password: str) -> None:
        self._url = url
        self._client_id = client_id
        self._password = {"USERNAME": agent_id, "PASSWORD": password}
        self._refresh: dict[str, str] = {}

    def __call__(self) -> str:
        """A fresh token; the syncer calls it at first, and whenever the last one has lapsed."""
        if self._refresh:
            answer = self._ask("REFRESH_TOKEN_AUTH", self._refresh)
            if answer.is_success:
                return _id_token(answer)
        answer = self._ask("USER_PASSWORD_AUTH", self._password)
        answer.raise_for_status()
        self._refresh = {"REFRESH_TOKEN": answer.json()["AuthenticationResult"]["RefreshToken"]}
        return _id_token(answer)

    def _ask(self, flow: str, parameters: dict[str, str]) -> httpx.Response:
        return httpx.post(
            self._url,
            json={"AuthFlow": flow, "ClientId": self._client_id, "AuthParameters": parameters},
            headers={
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": "AWSCognitoIdentityProviderService.InitiateAuth",
            },
            timeout=10,
        )


def _id_token(answer: httpx.Response) -> str:
    document: Any = answer.json()
    token: str = document["AuthenticationResult"]["IdToken"]
    return token


def serve(lines: Iterable[str], outbox: Outbox, syncer: Syncer) -> None:
    """Record a payment a line; print what becomes of each as soon as it is heard."""
    outbox.on_change(_show)
    for line in lines:
        _record(line, outbox)
        syncer.wake()  # an app does so when the system tells it that the network is back


def _record(line: str, outbox: Outbox) -> None:
    phone, _, amount = line.strip().rpartition(" ")
    try:
        outbox.submit(phone, int(amount))
    except (ValueError, LimitExceeded, StorageFull) as error:
        print("not recorded:", error)


def _show(changed: Transaction) -> None:
    why = changed.reason or (changed.error or {}).get("code") or ""
    print(changed.idempotency_key, changed.state.value, why)


if __name__ == "__main__":
    with Outbox("outbox.db", os.environ["AGENT"], limits=LIMITS) as box:
        sign_in = SignIn(
            os.environ["COGNITO"], os.environ["CLIENT"], box.agent_id, os.environ["PASSWORD"]
        )
        syncer = Syncer(box, os.environ["API"], sign_in)
        syncer.start()
        serve(sys.stdin, box, syncer)
        syncer.stop()  # what is not sent by now is sent when the kiosk opens again
        print("only on this device, by currency:", box.at_risk())
