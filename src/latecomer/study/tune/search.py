"""Which settings of a method are tried, and with which budget.

    lr=0.001:0.3:log,epochs=1|2|5,server_lr

is a range, some values, and a setting that is tried from a tenth to ten times of what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import SettingError, UnknownName
from ...method import Method
from ...runs.experiment import Experiment
from ...runs.settings import Settings
from ...settings import check_ranges, complete, flag, setting, settings_of

SEARCHED = {
    "apfl": "lr,mix=0.1:0.9",
    "clusteredfl": "lr,eps1,eps2",
    "ditto": "lr,lambda_prox",
    "fedprox": "lr,mu",
    "fedu": "lr,mu",
    "flowdup": "lr,server_lr,lambda_reg",
    "knnper": "lr",
    "odpflhn": "lr,server_lr,encoder_lr",
    "pfedme": "lr,inner_lr,lambda_prox",
}
"""What is searched unless somebody says otherwise; of all other methods, their learning rates."""
BESIDES = ("cohort", "clip_update", "lr_schedule")
"""Settings of a run that can be searched with a method's own; no other can, as trials share their data and budget."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The budget: the same for every method that is compared."""

    search: str = setting(
        "",
        "what is tried: lr=0.001:0.3:log,epochs=1|2|5,server_lr is a range, some values, and from a tenth to ten times "
        "of what it is; empty: the method's learning rates, and what its paper tunes",
    )
    trials: int = setting(16, "settings that are tried", low=1)
    tune_rounds: int = setting(0, "rounds of a trial; 0: as --rounds", low=0)
    tune_seed: int = setting(1000, "first seed of the trials, none of those that are reported", low=0, high=10**9)
    tune_seeds: int = setting(1, "how many seeds a trial has", low=1)
    validators: float = setting(
        0.1,
        "share of the clients that do not train and whose validation scores choose; 0: members' scores do",
        low=0,
        high=0.99,
    )
    pack: int = setting(8, "trials that are begun together and share exchanges", low=1)
    prune: bool = setting(True, "end trials below the median after a quarter and after half of the rounds")

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def settings(self) -> dict[str, Any]:
        """What of the settings of a run is otherwise in a trial."""
        own = {"seed": self.tune_seed, "seeds": self.tune_seeds, "validators": self.validators}
        return own | ({"rounds": self.tune_rounds} if self.tune_rounds else {}) | {"watch_unseen": False}


@dataclass(frozen=True)
class Range:
    """Numbers from one to another, whole ones if these are."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}" + ":log" * self.log

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    def rounded(self, value: float) -> float:
        """With four digits, which a person can read, and which tell as much."""
        return value if self.whole else min(max(float(f"{value:.4g}"), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """Some values, as they would be written on a command line."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return "|".join(self.values)

    def __contains__(self, value: object) -> bool:
        return value in self.values


Space = Mapping[str, Range | Choice]
"""What is tried of every setting."""


def space(given: str | Mapping[str, Any], experiment: Experiment, kind: type[Method]) -> Space:
    """What is searched, checked: `given`, as a text or a table, or else what is usual for the method."""
    known = [*settings_of(kind), *BESIDES]
    if not given:
        rates = ",".join(name for name in settings_of(kind) if name == "lr" or name.endswith("_lr"))
        given = SEARCHED.get(experiment.settings.method, rates)
    if not isinstance(given, str | Mapping):
        raise SettingError(f"A search is a table of settings and what is tried of them; got {given!r}.")
    parts = _split(given) if isinstance(given, str) else dict(given)
    if not parts:
        raise SettingError(f"There is nothing to search of {kind.__name__}; --search names settings and their values.")
    found: dict[str, Range | Choice] = {}
    for spelt, wanted in parts.items():
        name = spelt.replace("-", "_")
        if name not in known:
            raise UnknownName("setting to search", spelt, known)
        owner = kind if name in settings_of(kind) else Settings
        usual = experiment.own[name] if owner is kind else getattr(experiment.settings, name)
        found[name] = _around(name, usual, owner) if wanted == "" else _tried(name, wanted, owner)
    return found


def _split(text: str) -> dict[str, str]:
    """By setting, from a text; a setting that stands alone has nothing."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        name, equals, wanted = (word.strip() for word in part.partition("="))
        if not name or bool(equals) != bool(wanted):
            raise SettingError(f"--search takes settings such as lr=0.001:0.3:log, with commas between; got {part!r}.")
        if name in parts:
            raise SettingError(f"--search has {name} twice.")
        parts[name] = wanted
    return parts


def _around(name: str, usual: Any, owner: Any) -> Range:
    """From a tenth to ten times of what a setting is, as far as it may go."""
    if not isinstance(usual, float) or usual <= 0:
        raise SettingError(f"--search needs values for {name}, as {flag(name)} is {usual}: {name}=0.1:1, say.")
    limits = settings_of(owner)[name].metadata
    low, high = max(usual / 10, limits["low"] or 0), min(usual * 10, limits["high"] or usual * 10)
    return Range(float(f"{low:.4g}"), float(f"{high:.4g}"), log=True)


def _tried(name: str, wanted: Any, owner: Any) -> Range | Choice:
    """A range or some values, of a text or, in a file, of a list or a single value."""
    if isinstance(wanted, str) and ":" in wanted:
        return _range(name, wanted, owner)
    values = wanted.split("|") if isinstance(wanted, str) else wanted if isinstance(wanted, list) else [wanted]
    words = [str(value).strip() for value in values]
    for word in words:
        complete(owner, {name: word})
    if not words or len(set(words)) < len(words):
        raise SettingError(f"--search of {name} must be values that differ, such as 1|2|5; got {wanted!r}.")
    return Choice(tuple(words))


def _range(name: str, text: str, owner: Any) -> Range:
    low, high, *rest = (word.strip() for word in text.split(":"))
    ends: Sequence[Any] = [complete(owner, {name: word})[name] for word in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        raise SettingError(f"--search of {name} must be some of its values, a|b|c, as it is no number; got {text!r}.")
    if rest not in ([], ["log"]):
        raise SettingError(f"--search of {name} must be low:high or low:high:log; got {text!r}.")
    if not ends[0] < ends[1]:
        raise SettingError(f"--search of {name} must go from a smaller number to a larger one; got {text!r}.")
    if rest and ends[0] <= 0:
        raise SettingError(f"--search of {name} must begin above 0, as it is by its logarithm; got {text!r}.")
    return Range(ends[0], ends[1], log=bool(rest))
