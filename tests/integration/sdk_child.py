"""An app on an agent's device, to be killed at any moment (test_sdk_kill.py).

`python sdk_child.py OUTBOX URL TOKEN`. Each line read, `SEED NUMBER`, is a round: it forks that
many apps, which is quicker than to start Python, and writes `dead` when all of them are. An app
never ends by itself. It writes what one may rely on: a key once `submit` has returned it.
"""

import os
import random
import signal
import ssl
import sys
import time
import traceback

import httpx

from wakala_agent import Backoff, Outbox, Pace, Syncer

LIFE_S = 60
"""No app outlives a test that is gone."""

CONTEXT = ssl.create_default_context()
PACE = Pace(timeout_s=5, requests_per_s=1_000, asks_max=3, backoff=Backoff(0.001, 0.004))


def say(*words: object) -> None:
    """One line, whole: also from two apps at once, and from one that is about to be killed."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def live(path: str, url: str, token: str, seed: str, slot: int) -> None:
    """Submit and sync until the end."""
    chance = random.Random(f"{seed} {slot}")
    outbox = Outbox(path, "AG-001")
    transport = httpx.HTTPTransport(verify=CONTEXT)
    syncer = Syncer(outbox, url, lambda: token, pace=PACE, transport=transport)
    while True:
        say("doing", slot, "submit")
        for _ in range(chance.randint(1, 4)):
            phone, amount = f"07123456{slot}{chance.randint(0, 3)}", chance.randint(1, 10**6)
            say("stored", outbox.submit(phone, amount), phone, amount)
        say("doing", slot, "sync")
        if (syncer.sync().problem or "").startswith("another sync"):
            time.sleep(0.002)
        if chance.random() < 0.2:
            say("doing", slot, "prune")
            outbox.prune(older_than_days=0)


def fork(path: str, url: str, token: str, seed: str, slot: int) -> int:
    """A new app's process."""
    app = os.fork()
    if app == 0:
        signal.alarm(LIFE_S)
        try:
            live(path, url, token, seed, slot)
        except BaseException:
            say("failed", slot, repr(traceback.format_exc()))
            signal.pause()
    return app


def main() -> None:
    """Round after round."""
    path, url, token = sys.argv[1:]
    for line in sys.stdin:
        seed, number = line.split()
        apps = [fork(path, url, token, seed, slot) for slot in range(int(number))]
        say("born", *apps)
        for app in apps:
            os.waitpid(app, 0)
        say("dead")


if __name__ == "__main__":
    main()
