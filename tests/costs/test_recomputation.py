"""The costs of recomputation against sums done by hand, and the papers' own numbers."""

from __future__ import annotations

import pytest

from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_layer_activations


def test_single_blocks_are_best_for_a_transformer_of_usual_depth():
    sizes = {"batch": 1, "seq": 1024, "hidden": 768, "heads": 12}
    layer = sum(gpt_layer_activations(**sizes).values())
    best = [costs.best_k(layers, 4 * 1024 * 768, layer) for layers in (12, 24, 48, 96)]
    assert best == [1, 1, 2, 2]
    assert [costs.best_k(layers, 1, 16) for layers in (32, 33)] == [1, 2]
    assert costs.best_k_estimate(96, 4 * 1024 * 768, layer) == pytest.approx(2.44, abs=0.01)


def test_a_large_vocabulary_has_its_peak_at_the_end_of_forward():
    sizes = {"batch": 2, "seq": 8, "hidden": 16, "layers": 5, "vocabulary": 5000}
    assert costs.gpt_peak(**sizes, heads=2) == costs.gpt_kept(**sizes)


def test_operations_are_those_of_the_papers():
    batch, seq, hidden, layers, vocabulary = 3, 2048, 12288, 96, 51200
    papers = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocabulary / (12 * hidden * layers))
    assert costs.step_flops(batch, seq, hidden, layers, vocabulary) == pytest.approx(papers)  # Narayanan et al. 2021
    # Korthikanti et al. 2022, §5, have 2.7 % for GPT-3 and 1.6 % for MT-NLG: of a forward, a third of a step.
    assert 3 * costs.selective_share(1, seq, 12288, 96, 0) == pytest.approx(0.027, abs=0.0005)
    assert 3 * costs.selective_share(1, seq, 20480, 105, 0) == pytest.approx(0.016, abs=0.0005)
    assert costs.full_share(1, seq, 12288, 96, 0) == pytest.approx(1 / 3)
