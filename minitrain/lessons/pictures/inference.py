"""The picture of the chapter inference."""

from __future__ import annotations

from minitrain.costs import inference as costs
from minitrain.costs import roofline
from minitrain.lessons.pictures.panels import Figure, panels


def throughput() -> Figure:
    """Tokens per second over the batch, for 6.7 billion parameters on an H100, by theory."""
    shape, machine = roofline.SEVEN_BILLION, roofline.MACHINES["H100"]
    figure, (axes,) = panels(7, 3)
    batches = [2**i for i in range(11)]
    for kv_heads, tokens, color in ((32, 2048, "#D55E00"), (32, 256, "#E69F00"), (8, 2048, "#0072B2")):
        size = costs.gpt_parameters(shape.layers, shape.hidden, 128 * kv_heads, shape.vocabulary)
        model = costs.Model(shape.layers, shape.hidden, shape.heads, kv_heads, size)
        most = costs.tokens_that_fit(machine.size - 2 * size, shape.layers, kv_heads, 128) // tokens
        rates = [b / costs.seconds(costs.decode(model, b, tokens), machine) for b in batches]
        label, fits = f"{kv_heads} key and value heads, {tokens:,} tokens", sum(b <= most for b in batches)
        axes.loglog(batches[:fits], rates[:fits], color=color, marker="o", ms=3, label=label)
        axes.loglog(batches[fits - 1 :], rates[fits - 1 :], color=color, ls=":", lw=1)
    full = costs.full_batch(machine)
    axes.axvline(full, color="#999999", lw=1)
    axes.annotate("products take as long as\nreading the weights", (0.9 * full, 300), fontsize=8, ha="right")
    axes.set(xlabel="sequences written at once (dotted: the cache does not fit)", ylabel="tokens per second")
    axes.legend(frameon=False, fontsize=8)
    return figure
