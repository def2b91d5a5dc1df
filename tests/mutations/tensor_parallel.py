"""Mistakes in the chapter of tensor parallel."""

from tests.mutations import Mutation

MUTATIONS: list[Mutation] = []
