"""Mistakes in the chapter of pipeline parallel."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
