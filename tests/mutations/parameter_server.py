"""Mistakes in the chapter of parameter server."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
