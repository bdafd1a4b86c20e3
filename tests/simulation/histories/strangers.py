"""Messages that nobody of ours has sent, or not now: lies, copies and noise in the queues."""

import json
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.histories.asked import Content
from tests.simulation.histories.rows import content_of, fingerprint

if TYPE_CHECKING:
    from tests.simulation.histories.world import World


class Strangers:
    """Whoever redrives, copies or types into a queue by hand."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def send(self, random: Random) -> str:
        """One message of one of six kinds."""
        kinds = (self._noise, self._lie, self._copy, self._other, self._nobodys, self._junk)
        return random.choice(kinds)(random)

    def old_letter(self, random: Random) -> str:
        """A dead letter of a debit comes once more, from a backup or another hand."""
        body = self._debit(random) if random.random() < 0.9 else self._unasked(random)
        if body is None:
            return ""
        text, phone = json.dumps(body), str(body["phone"])
        failure = random.choice(("unfinished", "unfinished", "violated", "moved"))
        if failure == "moved":
            queue = self.world.delivery.queues.queue("TxDlqQueue")
            queue.send(text, group=phone, dedup_id=f"by-hand-{self.world.actors.number()}")
            return "moved by its queue"
        record = {"messageId": "old", "body": text, "attributes": {"MessageGroupId": phone}}
        letter = {"v": 1, "source": "TxQueue", "why": "Old", "failure": failure, "record": record}
        self.world.delivery.queues.send("DeliveryFailuresQueue", json.dumps(letter))
        return failure

    def _noise(self, random: Random) -> str:
        """Something that no consumer can read."""
        mark = self._mark()
        queue = random.choice(("TxQueue", "RefundQueue"))
        self._to(queue, json.dumps({"v": 1, "kind": mark}), self._phone(random))
        return f"noise to {queue}"

    def _lie(self, random: Random) -> str:
        """A debit whose amount is not that of its fingerprint."""
        body = self._debit(random)
        if body is None:
            return ""
        mark = self._mark()
        body |= {"amountMinor": body["amountMinor"] + 1, "capturedAt": mark}
        self._to("TxQueue", json.dumps(body), str(body["phone"]))
        return "a lie about an amount"

    def _copy(self, random: Random) -> str:
        """A debit's message once more, when its dedup id is long forgotten."""
        body = self._debit(random)
        if body is None:
            return ""
        self._to("TxQueue", json.dumps(body), str(body["phone"]))
        return "a copy of a debit"

    def _other(self, random: Random) -> str:
        """A debit under a key that means another one: from before that was purged, say."""
        body = self._debit(random)
        if body is None:
            return ""
        identity, phone = (body["agentId"], body["idempotencyKey"]), self._phone(random)
        content = Content(phone, random.choice((1, 2, 3)), "KES")
        body |= {"phone": phone, "amountMinor": content.amount, "currency": "KES"}
        self._to(
            "TxQueue", json.dumps(body | {"fingerprint": fingerprint(identity, content)}), phone
        )
        return "another debit under a key"

    def _nobodys(self, random: Random) -> str:
        """A well-formed debit that no row asks for."""
        body = self._unasked(random)
        self._to("TxQueue", json.dumps(body), str(body["phone"]))
        return "a debit that nobody asked for"

    def _unasked(self, random: Random) -> dict[str, Any]:
        phone = self._phone(random)
        key = f"NOBODY-{self.world.actors.number()}"
        return {
            "v": 1,
            "kind": "debit",
            "agentId": "AG-1",
            "idempotencyKey": key,
            "phone": phone,
            "amountMinor": 5,
            "currency": "KES",
            "fingerprint": _of("AG-1", key, phone, 5),
            "attempt": 1,
            "createdAt": self.world.now_ms,
        }

    def _junk(self, random: Random) -> str:
        """What neither we nor AWS send there."""
        mark = self._mark()
        self.world.delivery.queues.send("DeliveryFailuresQueue", f"hello {mark}")
        return "junk in DeliveryFailures"

    def _debit(self, random: Random) -> dict[str, Any] | None:
        """The message of some row, as the relay sends it."""
        rows = self.world.promises.rows.rows
        if not rows:
            return None
        identity = random.choice(sorted(rows))
        row = rows[identity]
        content = content_of(row)
        claim = {"capturedAt": row["capturedAt"]["S"]} if "capturedAt" in row else {}
        return claim | {
            "v": 1,
            "kind": "debit",
            "agentId": identity[0],
            "idempotencyKey": identity[1],
            "phone": content.phone,
            "amountMinor": content.amount,
            "currency": content.currency,
            "fingerprint": fingerprint(identity, content),
            "attempt": random.randint(1, int(row["attempt"]["N"])),
            "createdAt": int(row["createdAt"]["N"]),
        }

    def _to(self, queue: str, body: str, group: str) -> None:
        dedup_id = f"by-hand-{self.world.actors.number()}"
        entry = {"Id": "0", "MessageBody": body, "MessageGroupId": group}
        entry["MessageDeduplicationId"] = dedup_id
        url = self.world.delivery.queues.queue(queue).url
        self.world.ask_aws("sqs", "SendMessageBatch", {"QueueUrl": url, "Entries": [entry]})

    def _mark(self) -> str:
        mark = f"MARK-{self.world.actors.number()}"
        self.world.promises.asked.unreadable.add(mark)
        return mark

    def _phone(self, random: Random) -> str:
        return random.choice(self.world.actors.phones)


def _of(agent: str, key: str, phone: str, amount: int) -> str:
    return fingerprint((agent, key), Content(phone, amount, "KES"))
