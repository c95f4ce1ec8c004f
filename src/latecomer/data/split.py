"""What a federation is asked for: how the examples fall to the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import SettingError
from ..settings import check_ranges, setting

SPLITS = ("train", "val", "test")

Size = Literal["S", "M", "L"]
SIZES: tuple[str, ...] = get_args(Size)
"""What a client can afford: the model narrower than usual, as it is, or wider."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How the examples of a source fall to clients, and which of the clients train, come late and have labels."""

    partition: str = setting("classes", "how the data fall to the clients; `latecomer list partitions` names them")
    split: Literal["pefll", "pfedhn", "flowdup"] = setting(
        "pefll",
        "whose variant of the classes partition; flowdup (also iid, rotations, natural): latecomers share the test "
        "images (natural: keep their own), have no labels, and are scored on all that they have",
    )
    classes_per_client: int = setting(
        0,
        "classes partition: classes a client has; 0: 2 of up to 10, 10 of 100 (hierarchical: coarse classes; 0: 1)",
        low=0,
    )
    alpha: float = setting(0.1, "dirichlet and pachinko partitions: concentration; smaller is more uneven", above=0)
    fine_alpha: float = setting(10.0, "pachinko partition: the same for fine classes within a coarse one", above=0)
    unseen_alpha: float = setting(
        0.0, "latecomers' own alpha (pachinko, or dirichlet over classes); 0: the members'", low=0
    )
    over: Literal["clients", "classes"] = setting(
        "clients", "dirichlet partition: draw each class's shares over clients, or each client's shares over classes"
    )
    rotations: tuple[int, ...] = setting(
        (), "degrees; every client turns all its images by one of them, drawn at random", low=-360, high=360
    )
    unseen_rotations: tuple[int, ...] = setting(
        (), "degrees that latecomers draw among instead; none: as the others", low=-360, high=360
    )
    permutations: int = setting(
        0,
        "every client calls its classes by one of so many permutations, drawn at random: the same image means other "
        "things to other clients; 0 or 1: nobody does",
        low=0,
        high=10_000,
    )
    budgets: tuple[Size, ...] = setting(
        (),
        "sizes of model that clients can afford; they fall at random into equal groups, one a size; one: it is "
        "everybody's; none: all M",
    )
    examples: int = setting(0, "at most so many training examples a client; 0: all", low=0)
    validation: float = setting(0.2, "share of the training examples held out for validation", low=0, high=0.9)
    clients: int = setting(100, "all clients, latecomers included (natural partition: 0 takes all there are)", low=0)
    unseen: float = setting(
        0.0, "share of the clients that are latecomers: they take no part in training", low=0, high=0.99
    )
    unlike: float = setting(
        0.0,
        "classes partition: share of the latecomers that have classes which no other client has together",
        low=0,
        high=1,
    )
    validators: float = setting(
        0.0, "share of the clients that neither train nor come late: their scores select the round", low=0, high=0.99
    )
    labelled: float = setting(1.0, "share of the training clients that have labels", low=0, high=1)
    unseen_labelled: bool = setting(True, "whether latecomers, and validators like them, have labels")

    def __post_init__(self) -> None:
        check_ranges(self)

    def set_apart(self, clients: int) -> tuple[int, int]:
        """How many of so many clients are latecomers, and how many are validators."""
        counts, left = [], clients
        for name, share, one in (("unseen", self.unseen, "latecomer"), ("validators", self.validators, "validator")):
            counts.append(round(share * clients))
            left -= counts[-1]
            if share and not (counts[-1] and left > 0):
                none = "no member to train with" if counts[-1] else f"no {one}"
                raise SettingError(
                    f"{name} is {share}, which of {clients} clients leaves {none}; one of each kind is needed."
                )
        return counts[0], counts[1]

    @property
    def late(self) -> int:
        """How many of the clients asked for are latecomers, who are the last ones."""
        return self.set_apart(self.clients)[0]

    @property
    def stranger_count(self) -> int:
        """How many of the latecomers, the last ones, have classes that no other client has together."""
        return round(self.unlike * self.late)
