"""Many histories: each played by its seed, on all processors; a failure shrunk to what it takes."""

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

from tests.simulation.histories.asked import Broken
from tests.simulation.histories.plan import Item, Plan, plan
from tests.simulation.histories.world import World

STEPS = 220
SHRINK_TRIES_MAX = 300


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one history. `broken`: the promise, empty where all held."""

    seed: int
    steps: int
    digest: str
    reached: Mapping[str, int] = field(repr=False)
    broken: str = ""
    what: str = ""

    @property
    def failed(self) -> bool:
        """Whether a promise did not hold."""
        return bool(self.broken)


def play(history: Plan) -> Played:
    """Play one history to its end."""
    world = World(history)
    broken, what = "", ""
    try:
        world.play()
    except Broken as error:
        broken, what = error.promise, str(error)
    except Exception as error:  # the simulator's own, or a function's: a failure like any other
        broken, what = type(error).__name__, traceback.format_exc()
    reached = Counter(world.promises.reached)
    reached.update(world.faults.hits.reached())
    return Played(history.seed, world.step, world.digest, dict(reached), broken, what)


def play_seed(seed: int, steps: int = STEPS) -> Played:
    """Play the history of a seed."""
    return play(plan(seed, steps))


def play_many(seeds: Sequence[int], steps: int, workers: int) -> Iterator[Played]:
    """In the order of the seeds; what each comes to depends on nothing but its seed."""
    if workers == 1:
        for seed in seeds:
            yield play_seed(seed, steps)
        return
    # Begun afresh, since a fork would share what pytest has open.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play_seed, seeds, [steps] * len(seeds), chunksize=5)


def shrunk(failed: Plan, promise: str) -> tuple[Plan, int]:
    """The fewest clients' actions and faults with which the same promise still breaks; the tries.

    Halves are left out first, then smaller parts, down to single ones.
    """
    items, tries, size = list(failed.items), 0, max(1, len(failed.items) // 2)
    while size and tries < SHRINK_TRIES_MAX:
        start, gone = 0, False
        while start < len(items) and tries < SHRINK_TRIES_MAX:
            fewer = items[:start] + items[start + size :]
            tries += 1
            if play(_with(failed, fewer)).broken == promise:
                items, gone = fewer, True
            else:
                start += size
        size = size if gone and size == 1 else size // 2
    return _with(failed, items), tries


def _with(history: Plan, items: Sequence[Item]) -> Plan:
    return replace(history, items=tuple(items))


def told(played: Played, steps: int) -> str:
    """What a person needs of a failure: seed, promise, the shortest history, and how to see it."""
    history = plan(played.seed, steps)
    short, tries = shrunk(history, played.broken)
    kept = [index for index, item in enumerate(history.items) if item in short.items]
    only = ",".join(map(str, kept))
    module = "tests.simulation.histories.soak"
    command = f"python -m {module} --seed {played.seed} --steps {steps} --only={only}"
    return "\n".join(
        (
            f"seed {played.seed} breaks {played.what}",
            f"shrunk in {tries} tries from {len(history.items)} to {len(short.items)} items:",
            f"  {short.theme}, RetentionDays {short.retention_days}, {short.phones} phones",
            *(f"  {item}" for item in short.items),
            f"see it: PYTHONPATH=.:services .venv/bin/{command}",
        )
    )


def trace(history: Plan) -> tuple[list[str], str]:
    """Every step of a history and every line that was logged, and what was broken in the end."""
    world = World(history, keep_trace=True)
    try:
        world.play()
    except Exception as error:  # also what is no promise: its steps are what one wants to see
        return world.journal.lines, f"{type(error).__name__}: {error}"
    return world.journal.lines, ""


def only(history: Plan, kept: Sequence[int]) -> Plan:
    """The history without the items that are not named."""
    return _with(history, [history.items[index] for index in kept])
