"""People who act on dead letters: at the desk, and on the queues themselves."""

from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.histories.asked import Broken
from tests.simulation.histories.books import Item, text
from tests.simulation.histories.queues import moved_back
from tests.simulation.histories.rows import is_open
from tests.simulation.histories.runs import Run

if TYPE_CHECKING:
    from tests.simulation.histories.world import World


LETTERS_MAX = 25
"""In one request to the desk."""


class Operators:
    """They ask triage-desk, as `wakala dead-letters` does."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._rest: list[str] | None = None

    def look(self, random: Random) -> str:
        """List, group or show; what is shown unasked is masked."""
        letters = self._letters()
        if not letters:
            return ""
        letter_id, _ = random.choice(letters)
        reveal: dict[str, Any] = {"reveal": True, **self._signed()} if random.random() < 0.3 else {}
        request = random.choice(
            (
                {"action": "list", "scope": random.choice(("open", "all"))},
                {"action": "groups"},
                {"action": "show", "letterId": letter_id, **reveal},
            )
        )

        def ended(run: Run) -> None:
            shown = str(run.result)
            if "reveal" in request or run.result is None:
                return
            for phone in self.world.actors.secrets:
                if phone in shown:
                    raise Broken("P12", f"shown without being asked for: {phone}")

        self._ask(request, ended)
        return str(request["action"])

    def redrive(self, random: Random) -> str:
        """Of letters that are open, mostly."""
        return self._act("redrive", random)

    def discard(self, random: Random) -> str:
        """Of letters that are open, mostly."""
        return self._act("discard", random)

    def move_back(self, random: Random) -> str:
        """SQS's own redrive of a whole dead-letter queue, before triage had a look."""
        pairs = (("TxDlqQueue", "TxQueue"), ("RefundDlqQueue", "RefundQueue"))
        for dead, alive in random.sample(pairs, 2):
            count = moved_back(self.world, dead, alive)
            if count:
                return f"{count} of {dead}"
        return ""

    def redrive_rest(self) -> bool:
        """In the end, each letter that is open by then, once, debits first; False: none is left.

        A refund may wait for its debit, which a letter of its own may hold.
        """
        if self._rest is None:
            still_open = [each for each in self._letters() if is_open(each[1])]
            still_open.sort(key=lambda each: ("attempt" not in each[1], each[0]))
            self._rest = [letter_id for letter_id, _ in still_open]
        chosen, self._rest = self._rest[:LETTERS_MAX], self._rest[LETTERS_MAX:]
        if not chosen:
            return False
        request = {"action": "redrive", "letterIds": chosen, "force": True, **self._signed()}
        self._ask(request, self._heard)
        return True

    def _signed(self) -> dict[str, str]:
        """Another person each time, and another reason: a letter's history must name these."""
        number = self.world.actors.number()
        return {"who": f"operator-{number}", "why": f"it was looked into: {number}"}

    def _act(self, verb: str, random: Random) -> str:
        letters = self._letters()
        still_open = [each for each in letters if is_open(each[1])]
        if still_open and random.random() < 0.85:
            letters = still_open
        if not letters:
            return ""
        chosen = random.sample(letters, min(len(letters), random.choice((1, 1, 2, 5))))
        request: dict[str, Any] = {
            "action": verb,
            "letterIds": [letter_id for letter_id, _ in chosen],
            **self._signed(),
        }
        if random.random() < 0.1:
            request["dryRun"] = True
        if random.random() < 0.1:
            request["force"] = True
        self._ask(request, self._heard)
        return f"{verb} {len(chosen)}"

    def _heard(self, run: Run) -> None:
        for each in (run.result or {}).get("results", ()):
            self.world.promises.reached[f"desk {each['outcome']}"] += 1

    def _letters(self) -> list[tuple[str, Item]]:
        letters = self.world.promises.rows.letters
        return sorted(letters.items(), key=lambda pair: (text(pair[1], "status"), pair[0]))

    def _ask(self, request: dict[str, Any], ended: Any) -> None:
        if not self.world.is_down("triage-desk"):
            self.world.invoke("triage-desk", request, ended)
