"""The settings of a layout of ranks and of the steps, and what does not fit between them and the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from minitrain.composition.presets import Model

ScheduleName = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]
Recompute = Literal["none", "selective", "full"]
Stage = Literal[0, 1, 2, 3]
OptimizerName = Literal["adamw", "sgd", "lamb", "lars", "adafactor", "muon"]
Decay = Literal["cosine", "constant", "linear", "wsd"]
SpikeAction = Literal["skip", "rewind", "stop"]
DtypeName = Literal["float32", "bfloat16", "float16", "float64"]
ReduceName = Literal["same", "float32", "bfloat16"]
ContextMode = Literal["ring", "zigzag", "ulysses", "gather"]
# What an optimizer needs that is more than single elements; dp, pp and ZeRO can provide it.
_WHOLE = {
    "lamb": "the norm of each whole layer",
    "lars": "the norm of each whole layer",
    "adafactor": "sums over whole rows and columns",
    "muon": "whole matrices",
}


@dataclass(frozen=True)
class Layout:
    """How ranks share the work: dp · pp · cp · tp ranks.

    Attributes:
        dp: Data-parallel ranks: each has its own part of the batch.
        pp: Pipeline ranks: each has some of the layers.
        tp: Tensor-parallel ranks: each has a part of every matrix.
        ep: Expert-parallel ranks, which divide dp: each has some of the experts.
        cp: Context-parallel ranks: each has some of the tokens of every sequence, and all weights.
        cp_mode: How their attention reaches the other tokens: keys and values travel around a ring (ring), with equal
            work for all ranks (zigzag), are gathered (gather), or tokens are exchanged for heads (ulysses).
        sequence_parallel: Cut activations along the sequence where tensor parallelism leaves them whole.
        zero: Stage of ZeRO: what data-parallel ranks divide (with cp, dp · cp ranks): 0 nothing, 1 optimizer states,
            2 gradients too, 3 parameters too.
        schedule: The order of the pipeline's forwards and backwards. All ranks wait for the gradients' norm at the end
            of a step, so none is without a bubble; zb-h2 holds up to twice what zb-h1 does, and gains nothing if
            the parts of backward take equally long.
        chunks: Stages of each pipeline rank under --schedule interleaved.
        microbatches: Into how many parts each data-parallel rank cuts its part of the batch.
        recompute: What is computed again in backward instead of kept: attention's core (selective), or whole blocks.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    ep: int = 1
    cp: int = field(default=1, kw_only=True)
    cp_mode: ContextMode = field(default="zigzag", kw_only=True)
    sequence_parallel: bool = False
    zero: Stage = 0
    schedule: ScheduleName = "1f1b"
    chunks: int = 2
    microbatches: int = 1
    recompute: Recompute = "none"

    @property
    def ranks(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        if self.pp == 1:
            return 1  # no pipeline, and so no schedule
        return self.pp * {"interleaved": self.chunks, "zb-v": 2}.get(self.schedule, 1)

    def __str__(self) -> str:
        parts = [f"{axis}{size}" for axis in ("dp", "pp", "cp", "tp", "ep") if (size := getattr(self, axis)) > 1]
        return "×".join(parts) or "one device"


@dataclass(frozen=True)
class Steps:
    """The data and how to train on them; the defaults suit the preset tiny on the reference text.

    Attributes:
        data: "reference" (0.4 MB), "library" (12 MB), or a path: of a text, of lines of JSON (.jsonl, .jsonl.gz,
            .jsonl.zst), of a folder with these, or of a folder that minitrain.prepare has written.
        mix: Several sources in place of data, each as name=weight:data; weights sum to 1.
        steps: Optimizer steps of the whole run.
        batch: Sequences in a step, over all ranks.
        optimizer: adamw; sgd without momentum; lamb or lars, for large batches, whose steps depend on norms of layers;
            adafactor, which keeps sums of rows and columns; muon for the matrices of blocks, with adamw for the rest.
        lr: Learning rate at its highest. Muon's is scaled so that adamw's suits it. For lamb and adafactor it is the
            part of its own size by which a tensor moves; 0.01 is usual.
        decay: Its course after warm-up: cosine to a tenth; constant; linear to 0; or constant until its last steps
            (wsd: warm-up, stable, decay).
        decay_steps: How many steps these are under wsd; None: a tenth of all.
        warmup: Steps in which it rises from 0.
        weight_decay: Of matrices and embeddings; norms and biases have none.
        clip: Largest norm of the gradient of all parameters together; 0: not clipped.
        dtype: Of parameters and activations; bfloat16 and float16 also keep float32 master weights.
        reduce_dtype: In which gradients are added up, over micro-batches and ranks: that of their parameters (same);
            float32, which doubles the bytes of those in 16 bits; bfloat16, which halves those of float32.
        ordered_sums: Add gradients and losses in the order of micro-batches, so that any number of data-parallel ranks
            gives the bits of one device, as long as dp · microbatches stays the same. Keeps every micro-batch's
            gradient. Only for dp, without ZeRO or with ZeRO 1.
        loss_scale: What the loss is multiplied by at the beginning, so that gradients fit into float16; it is halved
            when one overflows, and doubled after 2000 steps without. A power of two; for float16 alone.
        on_spike: Where a step's loss is a spike, or no number: leave out its update (skip); go back to the last
            checkpoint, and leave out its samples (rewind); or end (stop). None: train on.
        compile: Compile each block with torch.compile.
        seed: Of initial weights, the order of samples, and dropout.
    """

    data: str = "reference"
    mix: tuple[str, ...] = ()
    steps: int = 2000
    batch: int = 16
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    decay: Decay = "cosine"
    decay_steps: int | None = None
    warmup: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0
    dtype: DtypeName = "float32"
    reduce_dtype: ReduceName = "same"
    ordered_sums: bool = False
    loss_scale: float = 65536.0
    on_spike: SpikeAction | None = None
    compile: bool = False
    seed: int = 0

    @property
    def falling(self) -> int:
        """The last steps in which the rate falls under wsd."""
        return self.steps // 10 if self.decay_steps is None else self.decay_steps


def problem(model: Model, layout: Layout, steps: Steps, ranks: int | None = None) -> str | None:
    """The first thing that does not fit, in words; None if all does.

    `ranks` is how many there are, None: as many as the layout takes.
    """
    # Only the first: what follows may be a consequence. The planner asks a million times.
    return next(_problems(model, layout, steps, ranks), None)


def _problems(model: Model, layout: Layout, steps: Steps, ranks: int | None) -> Iterator[str]:
    dp, pp, cp = layout.dp, layout.pp, layout.cp
    if ranks is not None and layout.ranks != ranks:
        along_cp = f" · cp={cp}" if cp > 1 else ""
        yield f"dp={dp} · pp={pp}{along_cp} · tp={layout.tp} takes {layout.ranks} ranks, and there are {ranks}"
    yield from _of_tensor_parallelism(model, layout)
    if cp > 1:
        yield from _of_context_parallelism(model, layout)
    if model.sizes.layers < layout.stages:
        stages = f"{layout.stages} stages (pp={pp}, schedule={layout.schedule})"
        yield f"layers={model.sizes.layers} are fewer than {stages}"
    if layout.schedule == "interleaved" and pp > 1 and layout.microbatches % pp:
        yield f"microbatches={layout.microbatches} do not divide by pp={pp}, as interleaved needs"
    yield from _of_experts(model, layout)
    if steps.batch % (dp * layout.microbatches):
        yield f"batch={steps.batch} does not divide by dp={dp} · microbatches={layout.microbatches}"
    if layout.zero >= 2:
        yield from _of_divided_gradients(model, layout, steps)
    if steps.optimizer in _WHOLE and (layout.tp > 1 or model.sizes.experts):
        tp, experts = f"tp={layout.tp} divides layers", f"experts={model.sizes.experts} lie on several ranks"
        what = tp if layout.tp > 1 else experts
        yield f"optimizer={steps.optimizer} needs {_WHOLE[steps.optimizer]}, and {what}; use adamw, or dp, pp and zero"
    if steps.ordered_sums:
        yield from _of_ordered_sums(model, layout, steps)


def _of_tensor_parallelism(model: Model, layout: Layout) -> Iterator[str]:
    sizes, tp, cp = model.sizes, layout.tp, layout.cp
    if sizes.heads % tp:
        yield f"heads={sizes.heads} do not divide by tp={tp}"
    # Where ranks are more than key heads, several copy one, and each of these takes as many queries of it.
    if sizes.kv_heads % tp and tp % sizes.kv_heads:
        yield f"kv_heads={sizes.kv_heads} do not divide by tp={tp}, nor tp by them"
    for name in ("mlp_hidden", *(["expert_hidden"] if sizes.experts else [])):
        if getattr(sizes, name) % tp:
            yield f"{name}={getattr(sizes, name)} does not divide by tp={tp}"
    if sizes.latent and (tp > 1 or cp > 1):
        yield f"tp={tp} and cp={cp}: the latent attention of preset={model.preset} is planned without them"
    if layout.sequence_parallel and tp == 1:
        yield "sequence_parallel needs tp of 2 or more: it cuts what tensor-parallel ranks hold alike"
    # With cp, `_of_context_parallelism` looks at the tokens of one rank.
    if layout.sequence_parallel and cp == 1 and sizes.positions % tp:
        yield f"positions={sizes.positions} do not divide by tp={tp}, as sequence_parallel needs"


def _of_context_parallelism(model: Model, layout: Layout) -> Iterator[str]:
    sizes, tp, cp = model.sizes, layout.tp, layout.cp
    if layout.cp_mode == "ulysses" and sizes.heads % (tp * cp):
        yield (
            f"heads={sizes.heads} do not divide by tp={tp} · cp={cp}, as cp_mode='ulysses' needs, which gives each "
            "rank some heads of all tokens; zigzag, ring and gather do without"
        )
    chunks = (2 if layout.cp_mode == "zigzag" else 1) * cp
    if sizes.positions % chunks:
        two = f"chunks, of which cp_mode='zigzag' gives each rank two (other modes need multiples of {cp})"
        what = f"2 · cp={chunks} {two}" if chunks > cp else f"cp={cp}"
        yield f"positions={sizes.positions} do not divide by {what}"
    if layout.sequence_parallel and sizes.positions // cp % tp:
        yield f"positions={sizes.positions} do not divide by cp={cp} · tp={tp}, as sequence_parallel needs"
    if sizes.experts:
        # The last two choose for each token by itself.
        why = {
            "top_k": "over which it would balance",
            "bias_balanced": "and experts' gradients are averaged over dp alone",
        }.get(sizes.router, "which changes whom it chooses")
        yield f"cp={cp} gives a router a part of each sequence, {why}"


def _of_experts(model: Model, layout: Layout) -> Iterator[str]:
    sizes, ep = model.sizes, layout.ep
    if layout.dp % ep:
        yield f"ep={ep} does not divide dp={layout.dp}"
    if not sizes.experts:
        if ep > 1:
            yield f"ep={ep} needs experts, and the model has none"
        return
    if sizes.experts < ep:
        yield f"experts={sizes.experts} are fewer than ep={ep}"
    if sizes.layers - sizes.dense_first < sizes.mixture_every:
        which = "second block" if sizes.mixture_every == 2 else f"block {sizes.mixture_every}"
        after = f" after dense_first={sizes.dense_first}" if sizes.dense_first else ""
        yield f"layers={sizes.layers} has no {which}{after} whose MLP experts could replace"


def _of_divided_gradients(model: Model, layout: Layout, steps: Steps) -> Iterator[str]:
    zero, sizes, m = layout.zero, model.sizes, layout.microbatches
    if layout.pp > 1:
        item = 8 if steps.dtype == "float64" else 2 if steps.dtype in ("bfloat16", "float16") else 4
        # Of the blocks that a rank has, nearly: 12Lh² parameters over its stages and tensor-parallel ranks.
        each = 12 * sizes.layers * sizes.hidden**2 * item / (layout.pp * layout.tp)
        yield (
            f"zero={zero} with pp={layout.pp} would reduce-scatter gradients (and in stage 3 gather parameters) for "
            f"every micro-batch of every stage: about {_size(m * each)} in a step with microbatches={m} on each rank, "
            f"where zero=1 sends {_size(each)}; use zero=1"
        )
    if sizes.experts:
        yield f"zero={zero} shards a line over all of dp, and experts have replicas on a part of it; use zero=1"


def _of_ordered_sums(model: Model, layout: Layout, steps: Steps) -> Iterator[str]:
    pp, cp, tp, zero, experts = layout.pp, layout.cp, layout.tp, layout.zero, model.sizes.experts
    if pp > 1 or cp > 1 or tp > 1:
        here = f"pp={pp} and cp={cp}" if cp > 1 else f"pp={pp} and tp={tp}"
        yield f"ordered_sums is for data parallelism alone, and here {here}; use dp, or no ordered_sums"
    if experts:
        yield f"ordered_sums needs one gradient for each micro-batch, and experts={experts} have others; use none"
    if zero >= 2:
        yield f"zero={zero} adds gradients over ranks in every backward, not in order; use zero=1 or 0"
    if zero and steps.optimizer in _WHOLE:
        yield (
            f"optimizer={steps.optimizer} with zero={zero} adds up numbers of shards, which differ for each dp, "
            "not in order; with ordered_sums use zero=0, or adamw or sgd"
        )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
