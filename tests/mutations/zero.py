"""Mistakes in the chapter of zero."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
