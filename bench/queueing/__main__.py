"""`make scale`: where Wakala's first bottleneck is, by the utilisation law and by simulation."""

import sys

from cyclopts import App

from bench.engine import started
from bench.queueing import page
from wakala.output import out

app = App(name="bench.queueing", help=__doc__, version_flags=())


@app.default
def main(*, measure: bool = False) -> None:
    """Print the tables of docs/scale.md, and write them and its picture.

    Parameters
    ----------
    measure
        Time each step on a local engine first.
    """
    if measure:
        from bench.queueing import measure as measuring

        measuring.write()
    made = page.tables()
    page.write(made, page.picture())
    for name, table in made.items():
        if name != "limits":
            out.print(table, soft_wrap=True, markup=False)
    out.print(page.read_on())


if __name__ == "__main__":
    sys.exit(started(app, sys.argv[1:]))
