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


class Operators:
    """They ask triage-desk, as `wakala dead-letters` does."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def look(self, random: Random) -> str:
        """List, group or show; what is shown unasked is masked."""
        letters = self._letters()
        if not letters:
            return ""
        letter_id, _ = random.choice(letters)
        who = {"who": "ann", "why": "a customer called"}
        reveal: dict[str, Any] = {"reveal": True, **who} if random.random() < 0.3 else {}
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
            "who": "ann",
            "why": "it was looked into",
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
