"""Makes the API reference from docstrings: `make docs` calls this, and it writes build/docs."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import latecomer
from latecomer import data

BESIDE = ("data", "errors", "learn", "methods", "nets.models", "runs.host", "runs.run", "settings")
"""What is public beside the door: where examples and documentation send people."""


def main(folder: Path) -> None:
    import pdoc  # here, because a test reads the list above where there is no pdoc

    for door in (latecomer, data):  # names load when first used, and pdoc looks only at what is loaded
        for name in door.__all__:
            setattr(door, name, getattr(door, name))
    warnings.filterwarnings("error", ".*does not resolve")  # a public name that leads nowhere
    pdoc.render.configure(docformat="markdown", footer_text=f"latecomer {latecomer.__version__}", search=True)
    pdoc.pdoc("latecomer", *(f"latecomer.{name}" for name in BESIDE), output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
