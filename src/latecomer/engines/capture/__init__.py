"""Exchanges and whole rounds that are captured once and replayed: CUDA graphs on a GPU, tapes on a CPU."""
