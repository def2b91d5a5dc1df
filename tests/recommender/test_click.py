"""The clicks: skewed as said, the same for all who ask; AUC against counting pairs; a model that learns the truth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.recommender.click import Clicks, auc


def counted(scores, labels):
    """AUC by its definition: a loop over all pairs of different impressions."""
    right = pairs = 0.0
    for i, (score, label) in enumerate(zip(scores, labels, strict=True)):
        for j, (other, its_label) in enumerate(zip(scores, labels, strict=True)):
            if i != j:
                weight = label * (1 - its_label)
                pairs += weight
                right += weight * (1.0 if score > other else 0.5 if score == other else 0.0)
    return right / pairs


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from((0.0, 1.0, 0.25, 0.5))), min_size=2, max_size=12))
def test_auc_counts_pairs(impressions):
    scores, labels = zip(*impressions, strict=True)
    if sum(a * (1 - b) for i, a in enumerate(labels) for j, b in enumerate(labels) if i != j) == 0:
        with pytest.raises(ValueError, match="auc needs a click and a non-click"):
            auc(torch.tensor(scores).float(), torch.tensor(labels))
        return
    found = auc(torch.tensor(scores).float(), torch.tensor(labels))
    assert found == pytest.approx(counted(scores, labels), abs=1e-12)


def test_ids_follow_zipf_and_labels_the_truth():
    data = Clicks(ids=50, skew=1.2)
    size = 20_000
    batch = data.batch(0, size)
    for column in batch.ids.values():
        counts = column.unique(return_counts=True)[1].sort(descending=True).values
        expected = size * data.frequencies[:5]
        assert ((data.numbers(column).bincount()[:5] - expected).abs() < 5 * expected.sqrt()).all()
        assert ((counts[:5] - expected).abs() < 5 * expected.sqrt()).all()  # five standard deviations
        assert column.abs().max() > 2**62, "keys come from all of the 64 bits"
    spread = (batch.truth * (1 - batch.truth)).sum().sqrt()
    assert abs(batch.labels.sum() - batch.truth.sum()) < 5 * spread


def test_a_step_has_one_batch_however_many_share_it():
    data = Clicks(features=2, ids=20)
    whole, again = data.batch(3, 10), Clicks(features=2, ids=20).batch(3, 10)
    assert torch.equal(whole.labels, again.labels) and not torch.equal(whole.dense, data.batch(4, 10).dense)
    parts = [whole.part(worker, 3) for worker in range(3)]
    for name in data.names:
        assert torch.equal(torch.cat([part.ids[name] for part in parts]), whole.ids[name])
    assert torch.equal(torch.cat([part.truth for part in parts]), whole.truth)
