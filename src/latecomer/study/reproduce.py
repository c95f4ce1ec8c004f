"""Reproduce a recipe: run what is missing, go on with what was interrupted, and set ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, LatecomerError, RunError
from ..runs.settings import HOST
from . import jobs
from .compare import Difference, interval, paired, same_clients, spread, unpaired
from .finished import GROUPS, MEANS, Finished
from .leaders import best_simple, leaders
from .recipe import Cell, Claim, Recipe
from .recipe_file import folder_name

if TYPE_CHECKING:
    from ..runs.run import Run

Train = Callable[["Run", str], bool]
"""Trains a run, with a label for its progress; returns whether it was finished."""


@dataclass(frozen=True)
class Measured:
    """A cell, done: what the table shows of it."""

    row: str
    column: str
    scores: dict[str, tuple[float, float]]  # by metric: mean and spread over seeds
    paper: dict[str, tuple[float, float]]  # likewise, NaN where it has none
    gain: dict[str, Difference | None]  # over the best simple row, client by client
    run: Finished = field(repr=False)

    def difference(self, metric: str) -> float:
        """How much ours is above the paper's."""
        return self.scores[metric][0] - self.paper[metric][0]


@dataclass(frozen=True)
class Checked:
    """A claim, and what our runs say of it."""

    claim: Claim
    difference: Difference

    @property
    def verdict(self) -> str:
        """Whether it holds, does not, or cannot be told."""
        if not self.difference.told:
            return "cannot be told"
        return "holds" if self.difference.mean > 0 else "does not hold"


@dataclass(frozen=True)
class Table:
    """All that there is of a recipe."""

    recipe: Recipe
    quick: bool
    cells: list[Measured]
    claims: list[Checked]
    simplest: dict[str, str]  # by column, the row that others are compared with
    leaders: list[str]  # sentences about who is first on latecomers
    missing: list[str]  # sentences about cells that could not be had

    def of(self, cells: Sequence[Cell]) -> Table:
        """The part of it that is about some cells."""
        keys = {cell.key for cell in cells}
        measured = [cell for cell in self.cells if (cell.row, cell.column) in keys]
        claims = [one for one in self.claims if {one.claim.more, one.claim.less} <= keys]
        leaders = self.leaders if len(measured) == len(self.cells) else []  # they are of all
        return replace(self, cells=measured, claims=claims, leaders=leaders)


def place(recipe: Recipe, quick: bool, out: Path) -> Path:
    """Where what comes of a recipe is."""
    return out / folder_name(recipe.name, quick)


def runs_at(recipe: Recipe, quick: bool, out: Path) -> Path:
    """Where the runs of a recipe are, which may be those of another one."""
    return out / folder_name(recipe.runs, quick)


def run_missing(
    recipe: Recipe, cells: Sequence[Cell], quick: bool, out: Path, train: Train, place_of: Mapping[str, Any]
) -> list[str]:
    """Train the runs that are not there; a sentence for every one that cannot be, and the others go on.

    Stopped by a user, it ends at once: KeyboardInterrupt, with a sentence.

    `place_of` are settings of where a run happens, its device say.
    """
    missed, lacking = list[str](), dict[str, list[str]]()
    for cell in cells:
        label, data = cell.label, str(cell.settings.get("data", ""))
        if data in lacking and not finished(runs_at(recipe, quick, out) / cell.name):
            lacking[data].append(label)  # looking for them once more could take minutes, where a network is asked
            continue
        try:
            if (run := begun(recipe, cell, quick, out, place_of)) is not None and not train(run, label):
                raise KeyboardInterrupt(jobs.INTERRUPTED)
        except LatecomerError as error:
            missed.append(f"{label}: {error}")
            if data and isinstance(error, DataError) and _absence(data):
                lacking[data] = []
    return [*missed, *(f"{', '.join(some)}: likewise without {data}." for data, some in lacking.items() if some)]


def _absence(data: str) -> str:
    """Why there is no such data set at all, so that no run can have it; empty: there is."""
    from ..data import load

    try:
        load(data)
    except DataError as error:
        return str(error)
    return ""


def begun(recipe: Recipe, cell: Cell, quick: bool, out: Path, place_of: Mapping[str, Any]) -> Run | None:
    """The run of a cell, new or as it was left; None: it is finished."""
    from ..runs import host
    from ..runs.run import Run

    folder = runs_at(recipe, quick, out)
    path = folder / cell.name
    if finished(path):
        return None
    if path.exists():
        check_same(recipe, cell, path)
        return Run.resume(path, host.prepare)
    experiment = cell.experiment(**place_of, out=str(folder), name=cell.name)
    host.prepare(experiment.settings)
    return Run.begin(experiment)


def finished(path: Path) -> bool:
    return (path / "result.json").is_file()


def check_same(recipe: Recipe, cell: Cell, path: Path) -> None:
    """A sentence where the run that is there has other settings than the recipe's cell: it is of an earlier version."""
    from ..runs.experiment import Experiment
    from ..runs.folder import Folder

    there = Experiment.read(Folder.open(path).settings, path / "settings.toml")
    before, now = ({**asdict(one.settings), **one.own} for one in (there, cell.experiment()))
    if changed := sorted(key for key in now if key not in HOST and before.get(key) != now[key]):
        raise RunError(
            f"{path} was run with another {', '.join(changed)} than {recipe.name} has now; move it away, or give --out."
        )


def side_by_side(
    recipe: Recipe, cells: Sequence[Cell], quick: bool, out: Path, at_once: int, end: float, words: Sequence[str]
) -> list[str]:
    """As `run_missing`, in so many processes at once, which write to logs beside their runs, until `end`.

    `words` are those of the command line that runs a cell: what the recipe was called, and settings.
    """
    folder = runs_at(recipe, quick, out)
    left = [cell for cell in cells if not finished(folder / cell.name)]
    wanted = {str(cell.settings.get("data", "")) for cell in left} - {""}
    absent = {data: why for data in wanted if (why := _absence(data))}
    missed, works = [], []
    for cell in sorted(left, key=_work, reverse=True):  # a long run that is begun last would be waited for alone
        label, data = cell.label, str(cell.settings.get("data", ""))
        if data in absent:
            missed.append(f"{label}: {absent[data]}")
            absent[data] = f"likewise without {data}."
            continue
        command = ["reproduce", words[0], f"--only={label}", *words[1:], "--runs-only"]
        works.append(jobs.Job(label, command, folder / f"{cell.name}.log"))
    return [*missed, *jobs.side_by_side(works, at_once, end)]


def _work(cell: Cell) -> float:
    """How many steps clients do in a run, about: enough to tell long ones from short ones."""
    try:
        experiment = cell.experiment()
    except LatecomerError:  # it fails at once, with a sentence
        return 0.0
    s = experiment.settings
    return float(s.rounds * s.seeds * (s.cohort or s.clients or 1000) * experiment.own.get("steps", 10))


def gather(recipe: Recipe, quick: bool, out: Path, missing: Sequence[str] = ()) -> Table:
    """What the finished runs of a recipe come to, but for those that were run with other settings than it has now."""
    folder, runs, gaps = runs_at(recipe, quick, out), dict[tuple[str, str], Finished](), list(missing)
    for cell in recipe.cells(quick):
        if finished(path := folder / cell.name):
            try:
                check_same(recipe, cell, path)
                runs[cell.key] = Finished.read(path)
            except LatecomerError as error:
                gaps.append(f"{cell.label}: {error}")
    simplest = {
        column: row for column in recipe.columns if (row := best_simple(recipe.simple, column, runs)) is not None
    }
    measured = [
        _measured(recipe, key, run, runs.get((simplest.get(key[1], ""), key[1])), quick) for key, run in runs.items()
    ]
    gaps += unlike_searched(recipe, runs, quick)
    claims = [claim for claim in recipe.claims(quick) if {claim.more, claim.less} <= runs.keys()]
    checked = [Checked(claim, _difference(runs[claim.more], runs[claim.less], claim.metric)) for claim in claims]
    return Table(recipe, quick, measured, checked, simplest, leaders(recipe.metrics, simplest, runs), gaps)


def unlike_searched(recipe: Recipe, there: Collection[tuple[str, str]], quick: bool) -> list[str]:
    """A sentence, where searches found settings of some runs in a column, and there are others that wait for theirs."""
    said = []
    for column in recipe.columns:
        cells = [cell for cell in recipe.cells(quick) if cell.column == column and cell.key in there]
        found = {cell.label: recipe.was_searched(cell, quick) for cell in cells}
        if {True, False} <= {*found.values()}:
            waiting = ", ".join(name for name, searched in found.items() if searched is False)
            said.append(
                f"The comparison is not fair yet: settings of {waiting} were not searched, those of others were."
            )
    return said


def _measured(recipe: Recipe, key: tuple[str, str], run: Finished, simple: Finished | None, quick: bool) -> Measured:
    nothing = (math.nan, math.nan)
    return Measured(
        *key,
        scores={metric: spread(run.measure(metric)) for metric in recipe.metrics},
        paper={metric: nothing if quick else recipe.paper_says(*key, metric) for metric in recipe.metrics},
        gain={
            metric: None if simple is None or simple is run else _difference(run, simple, metric)
            for metric in recipe.metrics
        },
        run=run,
    )


def _difference(run: Finished, to: Finished, metric: str) -> Difference:
    """Pair by pair where both have the same clients and the score is a mean of them, else seed by seed."""
    group, _, column = metric.partition(".")
    if same_clients(run, to) and group in GROUPS and column in MEANS:
        return paired(run, to, group, column)
    a, b = run.measure(metric), to.measure(metric)
    if same_clients(run, to) and len(a) == len(b):
        return interval([x - y for x, y in zip(a, b, strict=True)], "seeds")
    return unpaired(a, b)
