"""Capture: a function of trees of tensors goes in, one that does the same and may be faster comes out.

    capture = Capture.on(device)  # CUDA graphs on a GPU, tapes on a CPU
    faster = capture(function, "its name")

That is the one door (capture.py). Behind it, graphs.py and tapes.py each know a way to do a call again without the
Python that it took; trace.py writes a tape, and steady.py finds out calls that would not do the same again. The vector
engine hands exchanges in, and rounds.py whole rounds of a training. Without this folder all else runs, only slower.
"""
