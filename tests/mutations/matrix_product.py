"""Mistakes in the chapter of matrix product."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
