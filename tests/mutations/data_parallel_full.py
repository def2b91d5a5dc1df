"""Mistakes in data parallelism that overlaps, and in what the demos of its rungs share."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("data_parallel.overlapped", "small form: all-reduces that have started"),
    ("data_parallel.overlapped.DataParallel.arrive", "and not self.missing[len(self.started)]", "and False"),
    by_claim("data_parallel.overlapped", "full form: time of a step"),
    ("data_parallel.full.overlapped.DataParallel._arrive", "and not self._missing[turn]", "and False"),
    by_claim("data_parallel.naive", "weights that differ after 5 steps"),
    ("data_parallel.naive.NaiveDataParallel.synchronize", "/ rank_and_size(self.group)[1]", "/ 1"),
)
