"""Mistakes in the chapter of data parallel."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
