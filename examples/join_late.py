"""A client that was never seen gets its own model: a server is trained, loaded from its folder, and meets it.

The command line has the same: latecomer run, latecomer personalise, latecomer predict.
"""

from tempfile import TemporaryDirectory

import latecomer
from latecomer.runs.run import Run


def main(rounds=200):
    with TemporaryDirectory() as folder:
        settings = {"clients": 40, "unseen": 0.1, "rounds": rounds, "steps": 5, "lr": 0.05, "server_lr": 0.002}
        result = Run.begin(latecomer.Experiment.parse("pefll", {**settings, "out": folder, "name": "server"})).go()

        everybody = latecomer.federate(
            "digits", clients=40, unseen=0.1
        )  # whom the server trained with; the last is late
        mine, new = (everybody.rows(split)[39].long() for split in ("train", "test"))
        x, y = everybody.examples.x.numpy(), everybody.examples.y.numpy()

        server = latecomer.load(f"{folder}/server")
        model = server.personalise(x[mine], y[mine])  # nothing is trained: one pass
        print(f"{model.summary()}; {model.score(x[new], y[new]):.1f} % of {len(new)} examples that came later")
    return result


if __name__ == "__main__":
    main()
