"""Mistakes in the chapter of sequence parallel."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
