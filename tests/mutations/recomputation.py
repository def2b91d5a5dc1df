"""Mistakes in the chapter of recomputation."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
