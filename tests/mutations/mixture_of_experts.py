"""Mistakes in the chapter of mixture of experts."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
