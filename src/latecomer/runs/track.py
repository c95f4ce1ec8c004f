"""A run in a tracker's eyes: what metrics.jsonl and ledger.jsonl say, for TensorBoard or MLflow to draw.

A tracker is told, never asked: nothing of a run depends on it. One that cannot begin is a sentence before the training;
one that fails later is a note, once, and the training goes on without it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..errors import LatecomerError, RunError, need
from .files import Replacing, reading
from .folder import Folder
from .settings import Settings

LOG = logging.getLogger(__name__)
Scores = dict[str, float]
MEAN = "mean"


class Tracker(Protocol):
    """Somebody who keeps the scores of runs."""

    def open(self, folder: Folder, tables: Mapping[str, Any], owners: Sequence[str]) -> int:
        """Begin, or go on with what the folder says; returns the round after which nothing is known yet."""

    def log(self, step: int, at: float, scores: Mapping[str, Scores]) -> None:
        """Scores after a round, by owner: seeds, and their mean where there are several. `at`: seconds of the epoch."""

    def close(self, ending: str, step: int, result: Mapping[str, Any] | None) -> None:
        """The run is FINISHED, KILLED (stopped, to go on later) or FAILED."""


class Tracked:
    """A run's tracker, whose failures cost the run nothing."""

    def __init__(self, tracker: Tracker | None = None) -> None:
        self.tracker, self.known, self.step, self.began = tracker, 0, 0, 0.0
        self.sent: dict[int, dict[str, int]] = {}  # by seed: all that the ledger says so far
        self.result: Mapping[str, Any] | None = None

    @contextmanager
    def following(self, folder: Folder) -> Iterator[None]:
        """While a run is at work in its folder. What its logs say already is told first."""
        ending = "FAILED"
        self._tell(lambda tracker: self._open(tracker, folder))
        try:
            yield
            ending = "KILLED" if self.result is None else "FINISHED"
        finally:
            self._tell(lambda tracker: tracker.close(ending, self.step, self.result))

    def exchanged(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Lines of the ledger."""
        for line in lines if self.tracker is not None else ():
            so_far = self.sent.setdefault(line["seed"], dict.fromkeys(("down", "up", "asked", "answered"), 0))
            for key in so_far:
                so_far[key] += line[key]

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """A line of the metrics, after the ledger's up to its round."""
        self.step = metrics["round"]
        if self.step > self.known:
            at = self.began + (metrics["seconds"] or 0.0)
            self._tell(lambda tracker: tracker.log(self.step, at, by_owner(metrics, self.sent)))

    def finished(self, result: Mapping[str, Any]) -> None:
        self.result = result

    def _open(self, tracker: Tracker, folder: Folder) -> None:
        tables = tomllib.loads(folder.settings)
        run, self.began = tables["run"], datetime.fromisoformat(tables["about"]["started"]).timestamp()
        seeds = [f"seed-{run['seed'] + k}" for k in range(run["seeds"])]
        self.known = tracker.open(folder, tables, seeds if len(seeds) == 1 else [MEAN, *seeds])
        exchanges = _lines(folder.path / "ledger.jsonl")
        later = next(exchanges, None)
        for metrics in _lines(folder.path / "metrics.jsonl"):
            while later is not None and later["round"] < metrics["round"]:
                self.exchanged([later])
                later = next(exchanges, None)
            self.evaluated(metrics)
        self.exchanged([*([later] if later is not None else []), *exchanges])

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        if self.tracker is None:
            return
        try:
            what(self.tracker)
        except Exception as error:  # other people's packages, servers and disks: a training is dearer than any
            name, self.tracker = type(self.tracker).__name__, None
            LOG.warning(f"{name} failed and is told no more; the training goes on: {_short(error)}")


def tracked(settings: Settings) -> Tracked:
    """What `--track` asks for, tried as far as it can be without a run folder."""
    if settings.track == "none":
        return Tracked()
    try:
        return Tracked(MLflow(Path(settings.out)) if settings.track == "mlflow" else TensorBoard())
    except LatecomerError:
        raise
    except Exception as error:  # as above, but nothing is lost yet
        raise RunError(f"--track {settings.track} cannot begin: {_short(error)}; --track none goes without.") from error


def by_owner(metrics: Mapping[str, Any], sent: Mapping[int, Mapping[str, int]]) -> dict[str, Scores]:
    """All numbers of a line of metrics, and what was sent until then, for every seed and on average."""
    several: dict[str, Scores] = {}
    for run in metrics["runs"]:
        scores = numbers({key: part for key, part in run.items() if key not in ("seed", "state")})
        if so_far := sent.get(run["seed"]):
            scores |= {f"bytes/{way}": float(so_far[way]) for way in ("down", "up")}
            scores["answered"] = so_far["answered"] / so_far["asked"] if so_far["asked"] else 1.0
        several[f"seed-{run['seed']}"] = scores
    own = list(several.values())
    everywhere = [name for name in own[0] if all(name in scores for scores in own)]
    mean = {name: sum(scores[name] for scores in own) / len(own) for name in everywhere}
    return several if len(own) == 1 else {MEAN: mean, **several}


def numbers(values: Mapping[str, Any], prefix: str = "") -> Scores:
    """The finite numbers of a nested table, by path: seen/accuracy."""
    found: Scores = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[prefix + key] = float(value)
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with reading(path.parent), path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _short(error: Exception) -> str:
    words = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split())) or type(error).__name__  # without passwords
    return words.rstrip(".") if len(words) <= 300 else f"{words[:300]} ..."


# TensorBoard


class TensorBoard:
    """Event files in the run's folder `tensorboard`, a folder for every seed and one for their mean.

    A run that goes on writes them anew from its logs: no round stands there twice.
    """

    def __init__(self) -> None:
        need("tensorboard", "track")
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text import metadata
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary, self.writer = event_pb2, summary_pb2.Summary, RecordWriter
        self.tensor, self.string, self.text = tensor_pb2.TensorProto, types_pb2.DT_STRING, metadata
        self.files: dict[str, Any] = {}

    def open(self, folder: Folder, tables: Mapping[str, Any], owners: Sequence[str]) -> int:
        place = folder.path / "tensorboard"
        for path in (place, *(place / owner for owner in owners)):
            path.mkdir(exist_ok=True)
            if path.is_symlink():
                raise RunError(f"{path} is not a folder of the run's own; remove it")
        for owner in owners:
            for old in (place / owner).glob("events.out.tfevents.*"):
                old.unlink()
            name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{time.time_ns() % 10**9:09d}"
            self.files[owner] = self.writer((place / owner / name).open("xb"))
            self._write(owner, 0, time.time(), file_version="brain.Event:2")
            # for one that watches: rounds of the file that was removed count no more
            start = self.event.SessionLog(status=self.event.SessionLog.START)
            self._write(owner, 0, time.time(), session_log=start)
        for table in ("run", "method", "about"):
            self._say(owners[0], table, 0, tables[table])
        return -1

    def log(self, step: int, at: float, scores: Mapping[str, Scores]) -> None:
        for owner, own in scores.items():
            values = [self.summary.Value(tag=tag, simple_value=value) for tag, value in own.items()]
            self._write(owner, step, at, summary=self.summary(value=values))
            self.files[owner].flush()

    def close(self, ending: str, step: int, result: Mapping[str, Any] | None) -> None:
        owner, files = next(iter(self.files)), self.files
        if result is not None:
            values = [
                self.summary.Value(tag=f"result/{tag}", simple_value=value) for tag, value in numbers(result).items()
            ]
            self._write(owner, step, time.time(), summary=self.summary(value=values))
            self._say(owner, "result", step, result)
        for file in files.values():
            file.close()

    def _write(self, owner: str, step: int, at: float, **content: Any) -> None:
        self.files[owner].write(self.event.Event(wall_time=at, step=step, **content).SerializeToString())

    def _say(self, owner: str, tag: str, step: int, table: Mapping[str, Any]) -> None:
        """A table of names and values, which TensorBoard reads as Markdown."""
        rows = [f"    {name} = {json.dumps(value)}" for name, value in table.items()]
        words = self.tensor(dtype=self.string, string_val=["\n".join(rows).encode()])
        shown = self.text.create_summary_metadata(display_name=tag, description="")
        value = self.summary.Value(tag=f"{tag}/text_summary", metadata=shown, tensor=words)
        self._write(owner, step, time.time(), summary=self.summary(value=[value]))


# MLflow


class MLflow:
    """A run of the experiment `latecomer`, or $MLFLOW_EXPERIMENT_NAME, in $MLFLOW_TRACKING_URI, or mlflow.db beside the
    run folders.

    The file mlflow.txt of a run folder has its id, and whoever goes on adds rounds that are not there: the rest cannot
    be taken back, and was the same.
    """

    def __init__(self, out: Path) -> None:
        need("mlflow", "track")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(out / 'mlflow.db').absolute()}"
        if "sql" in urlsplit(uri).scheme:
            need("sqlalchemy", "track")
            need("alembic", "track")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            out.mkdir(parents=True, exist_ok=True)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.metric, self.param, self.client = Metric, Param, MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "latecomer"
        found = self.client.get_experiment_by_name(name)
        local = uri.startswith("sqlite:")  # else MLflow would put it into whatever folder this process is in
        place = (out / "mlflow").absolute().as_uri() if local else None
        self.experiment = found.experiment_id if found else self.client.create_experiment(name, artifact_location=place)
        self.run = ""

    def open(self, folder: Folder, tables: Mapping[str, Any], owners: Sequence[str]) -> int:
        about = tables["about"]
        tags = {f"latecomer.{key}": str(value) for key, value in about.items() if key != "splits"}
        tags |= {"latecomer.folder": str(folder.path.absolute()), "latecomer.splits": " ".join(about["splits"])}
        tags |= {"mlflow.source.name": "latecomer", "mlflow.source.git.commit": about["commit"]}
        if (known := self._begun(folder, tags)) is not None:
            return known
        self.run = self.client.create_run(self.experiment, tags=tags, run_name=folder.path.name).info.run_id
        with Replacing(folder.path / "mlflow.txt") as target:
            target.write_text(self.run + "\n", encoding="utf-8")
        settings = {**tables["run"], **tables["method"]}
        params = [self.param(key, str(value)[:6000]) for key, value in settings.items()]
        for k in range(0, len(params), 100):
            self.client.log_batch(self.run, params=params[k : k + 100])
        return -1

    def _begun(self, folder: Folder, tags: Mapping[str, str]) -> int | None:
        """Go on with the run that the folder names, if it is there and is of this folder; its last round."""
        path = folder.path / "mlflow.txt"
        if not path.is_file():
            return None
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(path.read_text(encoding="utf-8").strip())
        except MlflowException:  # another store than it began in
            return None
        same = ("latecomer.started", "latecomer.splits")
        if any(run.data.tags.get(key) != tags[key] for key in same):
            return None
        self.run = run.info.run_id
        self.client.update_run(self.run, status="RUNNING")
        return max((one.step for one in self.client.get_metric_history(self.run, "answered")), default=-1)

    def log(self, step: int, at: float, scores: Mapping[str, Scores]) -> None:
        first = next(iter(scores))  # the mean, or the only seed, goes without a prefix
        for owner, own in reversed(list(scores.items())):  # it comes last: a round that it has is there as a whole
            prefix = "" if owner == first else f"{owner}/"
            self._log({prefix + name: value for name, value in own.items()}, step, at)

    def _log(self, values: Scores, step: int, at: float) -> None:
        metrics = [self.metric(name, value, int(1000 * at), step) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def close(self, ending: str, step: int, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            self._log({f"result/{name}": value for name, value in numbers(result).items()}, step, time.time())
        self.client.set_terminated(self.run, status=ending)
