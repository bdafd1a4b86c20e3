"""Record a payment, bring it to the server, hear what became of it. Again is safe."""

import os
import time

from wakala_agent import Outbox, Syncer

outbox = Outbox("outbox.db", agent_id=os.environ["AGENT"])
receipt = outbox.submit("0712 345 678", 1500, idempotency_key="receipt-4711")
print("on the disk, no network needed:", outbox.status(receipt).state.value)

syncer = Syncer(outbox, os.environ["API"], token=lambda: os.environ["TOKEN"])
while not outbox.status(receipt).state.is_final:
    report = syncer.sync()
    if report.problem:  # no network, say: nothing is lost, run it again
        raise SystemExit(report.problem)
    time.sleep(2)
print("ended:", outbox.status(receipt).state.value)
