"""The cache of a published model, operations, batches that fill a device, and a pipeline's rounds by hand."""

from __future__ import annotations

import pytest

from minitrain.costs import inference as costs
from minitrain.costs.roofline import MACHINES

# Touvron et al. 2023, "Llama 2", table 1 and §2.2, and its published configuration: 80 layers, 64 heads of 128, 8 key
# and value heads, three MLP matrices 28,672 wide, 32,000 words.
LLAMA = costs.Model(80, 8192, 64, 8, 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 32000 * 8192)


def test_llama_2_70b():
    # 4096 tokens of 8 sequences in 16 bits: with a key and value head per query head, and with 8.
    assert costs.cache_bytes(80, 64, 128, 4096, 8) == 85_899_345_920
    assert costs.cache_bytes(80, 8, 128, 4096, 8) == 10_737_418_240
    # An often quoted 40 GB is 40 GiB: without grouped heads, and with four sequences or with 8 bits.
    assert costs.cache_bytes(80, 64, 128, 4096, 4) == costs.cache_bytes(80, 64, 128, 4096, 8, 1) == 40 * 2**30
    assert costs.cache_bytes(80, 8, 128, 4096, 8, pipeline=4) == 10_737_418_240 / 4
    # The paper's 70 billion, but for the token table, which no product reads.
    assert LLAMA.parameters + 32000 * 8192 == pytest.approx(70e9, rel=0.02)


def test_latents_of_deepseek():
    # "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1, per token: 61 layers of 512 + 64 numbers, and next to it
    # Llama 3.1 405B with 126 layers and 8 key and value heads.
    assert costs.latent_cache_bytes(61, 512, 64, 1, 1) == 70_272
    assert costs.cache_bytes(126, 8, 128, 1, 1) == 516_096
    # DeepSeek-V2, table 1: as much as grouped heads would with 2.25 groups.
    assert costs.latent_cache_bytes(1, 512, 64, 4, 1) == costs.cache_bytes(1, 9, 128, 1, 1)


def test_a_step_by_hand():
    # 54 parameters of 4 bytes, and keys and values of 3 sequences of 5 tokens in a head of 2.
    found = costs.decode(costs.Model(1, 2, 1, 1, 54), batch=3, tokens=5, item=4)
    assert found == (3 * (2 * 54 + 4 * 2 * 5), 54 * 4 + 2 * 3 * 5 * 2 * 4)


@pytest.mark.parametrize("item", (1, 2, 4))
def test_in_a_full_batch_products_take_as_long_as_reading(item):
    machine, parameters = MACHINES["H100"], 7e9
    batch = costs.full_batch(machine, item)
    assert batch * 2 * parameters / machine.flops == pytest.approx(parameters * item / machine.memory)
