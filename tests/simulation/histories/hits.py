"""What really befell something: each fault once, however many calls and runs it spoilt."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from tests.simulation.histories.plan import Fault


@dataclass
class Hits:
    """Counts of one history. A fault that waits for something to befall is in none of them."""

    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls, by function and operation, whatever became of them."""
    _faults: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    _at_calls: Counter[tuple[Fault, str, str]] = field(default_factory=Counter)
    _spoilt: Counter[Fault] = field(default_factory=Counter)
    _met: set[Hashable] = field(default_factory=set)

    def note(self, kind: Fault, on: str, which: Hashable = None) -> None:
        """A fault befell something; `which`: a lasting one, that is counted once for all it does.

        `on` is a function; of a fault that is none's, the table, index, queue or rule.
        """
        self._spoilt[kind] += 1
        self._faults[kind, on] += self._is_new(kind, on, which)

    def note_call(self, kind: Fault, function: str, operation: str, which: Hashable) -> None:
        """The same of one call of a function."""
        self.note(kind, function, which)
        self._at_calls[kind, function, operation] += self._is_new(kind, function, operation, which)

    def had(self, kind: Fault) -> bool:
        """Whether anything was befallen by this."""
        return self._spoilt[kind] > 0

    def count(self) -> int:
        """How often anything was befallen."""
        return self._spoilt.total()

    def reached(self) -> Counter[str]:
        """By the names under which coverage knows them."""
        found: Counter[str] = Counter()
        for (kind, on), count in self._faults.items():
            found[f"fault {kind}"] += count
            found[f"struck {on}: {kind}"] += count
        for (kind, function, operation), count in self._at_calls.items():
            found[f"call {function} {operation}: {kind}"] += count
        for (function, operation), count in self.made.items():
            found[f"made {function} {operation}"] += count
        for kind, count in self._spoilt.items():
            found[f"spoilt {kind}"] += count
        return found

    def _is_new(self, *which: Hashable) -> bool:
        if which[-1] is None:
            return True
        known = which in self._met
        self._met.add(which)
        return not known
