"""Mistakes in the chapter of composition."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
