"""What the real handlers send in seeded histories of the whole system: the clauses of their writes.

Contract suites call adapters; here functions do, each with what the others left behind. No test can
tell by a history, so whatever clause is seen in these alone still needs a test that knows it.
"""

from types import FrameType

from tests.simulation.guards.conditions import Seen, writer_in
from tests.simulation.histories.play import play_seed
from tests.simulation.histories.processes import Call, Process
from tests.simulation.histories.runs import Run
from tests.simulation.histories.world import World

SEEDS = (*range(1, 38), 53, 96, 180)
"""Few; the last three send what is rare, such as the expiry of a row."""


def see_histories(seen: Seen) -> list[str]:
    """Play them under the eyes of `seen`; whatever broke. For a child process only."""
    call_from: list[FrameType | None] = []
    execute = World._execute

    def execute_known(self: World, run: Run, process: Process, call: Call) -> None:
        """A handler's process waits at its call, which the scheduler makes in its stead."""
        waiting = process._greenlet
        call_from[:] = [waiting.gr_frame if waiting is not None else None]
        execute(self, run, process, call)

    World._execute = execute_known  # type: ignore[method-assign]
    seen.test = ""
    seen.writer = lambda: writer_in(call_from[0] if call_from else None)
    return [f"seed {each.seed}: {each.what}" for each in map(play_seed, SEEDS) if each.failed]
