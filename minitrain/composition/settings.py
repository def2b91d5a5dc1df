"""The settings of a training: the model, the layout of ranks, the steps. Plain numbers, checked, without torch.

The dry run reads them where torch is not installed, the command line makes its options of them, and a checkpoint keeps
them. A layout that does not fit gets an error that lists those that do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from minitrain.composition.presets import PRESETS, Preset

ScheduleName = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]
Recompute = Literal["none", "selective", "full"]
Stage = Literal[0, 1, 2, 3]
OptimizerName = Literal["adamw", "sgd", "lamb", "lars", "adafactor", "muon"]
Decay = Literal["cosine", "constant", "linear", "wsd"]
SpikeAction = Literal["skip", "rewind", "stop"]
DtypeName = Literal["float32", "bfloat16", "float16", "float64"]
ReduceName = Literal["same", "float32", "bfloat16"]
PositionsKind = Literal["learned", "rope"]
NormName = Literal["layer", "rms"]
MLPName = Literal["gelu", "swiglu"]
BiasesName = Literal["all", "qkv", "none"]
RouterName = Literal["noisy_top_k", "gshard", "switch", "expert_choice", "top_k", "bias_balanced"]
ContextMode = Literal["ring", "zigzag", "ulysses", "gather"]


# What an optimizer needs that is more than single elements; dp, pp and ZeRO can provide it.
_WHOLE = {
    "lamb": "the norm of each whole layer",
    "lars": "the norm of each whole layer",
    "adafactor": "sums over whole rows and columns",
    "muon": "whole matrices",
}


@dataclass(frozen=True)
class Model:
    """The GPT.

    Attributes:
        preset: The model to begin with: tiny and llama-tiny train on two cores in two minutes.
        layers: Blocks; None: the preset's, as for all that has no default here.
        hidden: Width of the residual stream.
        heads: Attention heads.
        positions: Tokens in a sequence.
        vocabulary: Different tokens; None: those of prepared data, otherwise the preset's. Bytes are 256.
        dropout: Probability of dropping an element. Above 0, attention is written out, since a fused kernel would drop
            other weights in every layout; that takes more memory.
        tied: The head uses the weight of the token embedding; --tied False gives it one of its own.
        experts: Experts in place of the MLPs of some blocks; 0: none.
        router: The rule by which experts are chosen.
        positions_kind: A learned row for each position, added to tokens; or rope, which has no table and rotates
            queries and keys, so that weights can be loaded into a run with longer sequences.
        rope_base: Of rope: a larger one rotates more slowly, for longer sequences.
        rope_factor: Of rope: slows slow rotations by so much more (Llama 3.1, from 8192 positions); 1: not.
        kv_heads: Heads of keys and values, each shared by a group of queries.
        head_size: Elements of a head; hidden / heads, unless the preset has another.
        mlp: Two matrices with GELU between them; or swiglu, where a third one's product gates the first's.
        mlp_hidden: Width inside the MLP; four times hidden, unless the preset has another.
        norm: LayerNorm, or RMSNorm, which has no mean and no bias.
        norm_eps: What a norm adds to the variance.
        biases: Which products have them: all; only those of queries, keys and values; or none.
        qk_norm: RMSNorm over each head's queries and keys.
        experts_per_token: As many experts see a token, and none is dropped; unless the preset has a number, the router
            has its own. Planned and not trained so far, as the next four.
        expert_hidden: Width inside an expert; mlp_hidden, unless the preset has another.
        shared_experts: Experts that see all tokens, as one of so many times the width.
        mixture_every: Of so many blocks the last has experts; 2, unless the preset has another.
        dense_first: So many blocks at the beginning have none.
    """

    preset: Preset = "tiny"
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    dropout: float = 0.0
    tied: bool | None = None
    experts: int | None = None
    router: RouterName | None = None
    positions_kind: PositionsKind | None = None
    rope_base: float | None = None
    rope_factor: float | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    mlp: MLPName | None = None
    mlp_hidden: int | None = None
    norm: NormName | None = None
    norm_eps: float | None = None
    biases: BiasesName | None = None
    qk_norm: bool | None = None
    experts_per_token: int | None = None
    expert_hidden: int | None = None
    shared_experts: int | None = None
    mixture_every: int | None = None
    dense_first: int | None = None

    @property
    def sizes(self) -> Sizes:
        """What the model is: the preset, with what is given in its place."""
        given = {each.name: getattr(self, each.name, None) for each in fields(Sizes)}
        return Sizes(**PRESETS[self.preset] | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Sizes:
    """A model without gaps, whatever of it a preset has given. The defaults are GPT-2's.

    Attributes:
        kv_heads: Never 0 here, but as many as heads; likewise the next three.
        experts_per_token: None: the router's own number.
        router_bias: Routers add a number for each expert, by which the load is balanced.
        latent: Widths of latent attention, as `minitrain.costs.composition.Latent` says; none: the usual one.
    """

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    tied: bool = True
    kv_heads: int = 0
    head_size: int = 0
    mlp_hidden: int = 0
    expert_hidden: int = 0
    mlp: MLPName = "gelu"
    norm: NormName = "layer"
    norm_eps: float = 1e-5
    biases: BiasesName = "all"
    qk_norm: bool = False
    positions_kind: PositionsKind = "learned"
    rope_base: float = 10000.0
    rope_factor: float = 1.0
    experts: int = 0
    router: RouterName = "switch"
    experts_per_token: int | None = None
    shared_experts: int = 0
    mixture_every: int = 2
    dense_first: int = 0
    router_bias: bool = False
    latent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        widths = {"kv_heads": self.heads, "mlp_hidden": 4 * self.hidden}
        widths["head_size"] = self.hidden // self.heads if self.heads else 0
        widths["expert_hidden"] = self.mlp_hidden or widths["mlp_hidden"]
        for name, value in widths.items():
            object.__setattr__(self, name, getattr(self, name) or value)


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


@dataclass(frozen=True)
class Run:
    """The files that are written, and when.

    Attributes:
        name: The run's folder is runs/<name>; a plain name, without slashes.
        runs: The folder of all runs.
        evaluate_every: Steps between two looks at the held-out text; 0: only at the end.
        sample: Bytes of text to generate at the end.
        save_every: Steps between two checkpoints; 0: only at the end, and on SIGTERM.
        keep: How many checkpoints to keep.
        async_save: Write checkpoints while the training goes on; takes a copy of the rank's state in host memory.
        flash_every: Steps between two checkpoints in shared memory, from which --resume goes on after processes have
            died; 0: none.
        resume: Continue from the newest complete checkpoint of runs/<name>, in this or any other layout; start from the
            beginning if there is none.
        overwrite: Remove what an earlier run has left in runs/<name>.
        load: Start with the weights of this safetensors file, index or folder, with our names or Hugging Face's; with
            --resume only if there is no checkpoint yet. A folder's config.json is the model, if no preset is given.
        export: Write the weights to this safetensors file at the end.
        tensorboard: Write TensorBoard's event files too; it has to be installed.
        probes: Ask the model what this TOML file has, at each look at the held-out text: how likely it finds the end of
            a text, and which of two ends is likelier.
        fingerprints: Write a checksum of each parameter and gradient of each step, for minitrain.compare; slow.
    """

    name: str = "train"
    runs: str = "runs"
    evaluate_every: int = 200
    sample: int = 200
    save_every: int = 0
    keep: int = 2
    async_save: bool = False
    flash_every: int = 0
    resume: bool = False
    overwrite: bool = False
    load: str | None = None
    export: str | None = None
    tensorboard: bool = False
    probes: str | None = None
    fingerprints: bool = False

    @property
    def folder(self) -> Path:
        """Where the run writes.

        Raises:
            ValueError: `name` is not the name of a folder in `runs`: --overwrite would remove files elsewhere.
        """
        # Unprintable characters, such as NUL, would not be visible in the message that names the folder either.
        if self.name in ("", ".", "..") or set(self.name) & {"/", "\\"} or not self.name.isprintable():
            raise ValueError(
                f"name={self.name!r} is no name of a folder in {self.runs}; use a plain one without slashes, such as "
                "'train', and --runs for another place"
            )
        return Path(self.runs) / self.name


@dataclass(frozen=True)
class Settings:
    """All of a training."""

    model: Model = Model()
    layout: Layout = Layout()
    steps: Steps = Steps()
    run: Run = Run()


def check(model: Model, layout: Layout, steps: Steps, ranks: int | None = None) -> None:
    """Check that the layout fits the model, the batch and the ranks (None: as many as the layout takes).

    Raises:
        ValueError: Names what does not fit, and lists layouts that do.
    """
    # First, since the rest divides by these numbers.
    _check_numbers(model, layout, steps)
    found = problem(model, layout, steps, ranks)
    if found is None:
        return
    fit = [str(other) for other in fitting(model, layout, steps, ranks or layout.ranks)]
    shown = ", ".join(fit[:12]) + (f" and {len(fit) - 12} more" if len(fit) > 12 else "")
    raise ValueError(f"{found}; layouts of {ranks or layout.ranks} ranks that fit: {shown or 'none'}")


def fitting(model: Model, layout: Layout, steps: Steps, ranks: int) -> Iterator[Layout]:
    """The layouts of this many ranks that fit, all else being as in `layout`; one axis first, then two, then three.

    Context-parallel ranks are as many as in `layout`, or one: each sequence is cut only where that was asked for.
    """
    sizes = [number for number in range(1, ranks + 1) if ranks % number == 0]
    ways = [
        (dp, pp, cp, ranks // (dp * pp * cp))
        for dp, pp, cp in product(sizes, sizes, sorted({1, layout.cp}))
        if ranks % (dp * pp * cp) == 0
    ]
    for dp, pp, cp, tp in sorted(ways, key=lambda way: (sum(size > 1 for size in way), [-size for size in way])):
        ep = layout.ep if dp % layout.ep == 0 else 1
        # Without tp there is nothing that it could cut.
        sequence = layout.sequence_parallel and tp > 1
        other = replace(layout, dp=dp, pp=pp, cp=cp, tp=tp, ep=ep, sequence_parallel=sequence)
        if problem(model, other, steps, ranks) is None:
            yield other


def check_trained(model: Model) -> None:
    """Find what of a model can be planned but not trained.

    Raises:
        ValueError: Names it.
    """
    if found := untrained(model):
        raise ValueError(f"{found} can be planned, not trained so far; use --dry-run, or another model")


def untrained(model: Model) -> str | None:
    """What of a model can be planned but not trained so far; None if all can."""
    sizes = model.sizes
    if sizes.latent:
        return f"the latent attention of preset={model.preset}"
    if sizes.experts and sizes.experts_per_token and sizes.router not in ("top_k", "bias_balanced"):
        return f"experts_per_token={sizes.experts_per_token} with router={sizes.router} (top_k, bias_balanced take it)"
    return None


def problem(model: Model, layout: Layout, steps: Steps, ranks: int | None = None) -> str | None:
    """The first thing that does not fit, in words; None if all does."""
    # Only the first: what follows may be a consequence.
    return next(_problems(model, layout, steps, ranks), None)


def _problems(model: Model, layout: Layout, steps: Steps, ranks: int | None) -> Iterator[str]:
    sizes, tp, pp, dp, cp = model.sizes, layout.tp, layout.pp, layout.dp, layout.cp
    if ranks is not None and layout.ranks != ranks:
        along_cp = f" · cp={cp}" if cp > 1 else ""
        yield f"dp={dp} · pp={pp}{along_cp} · tp={tp} takes {layout.ranks} ranks, and there are {ranks}"
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
    if cp > 1:
        yield from _problems_of_context(model, layout)
    if layout.sequence_parallel and tp == 1:
        yield "sequence_parallel needs tp of 2 or more: it cuts what tensor-parallel ranks hold alike"
    # With cp, `_problems_of_context` looks at the tokens of one rank.
    if layout.sequence_parallel and cp == 1 and sizes.positions % tp:
        yield f"positions={sizes.positions} do not divide by tp={tp}, as sequence_parallel needs"
    if sizes.layers < layout.stages:
        yield f"layers={sizes.layers} are fewer than {layout.stages} stages (pp={pp}, schedule={layout.schedule})"
    if layout.schedule == "interleaved" and pp > 1 and layout.microbatches % pp:
        yield f"microbatches={layout.microbatches} do not divide by pp={pp}, as interleaved needs"
    if dp % layout.ep:
        yield f"ep={layout.ep} does not divide dp={dp}"
    if layout.ep > 1 and not sizes.experts:
        yield f"ep={layout.ep} needs experts, and the model has none"
    if sizes.experts and sizes.experts < layout.ep:
        yield f"experts={sizes.experts} are fewer than ep={layout.ep}"
    if sizes.experts and sizes.layers - sizes.dense_first < sizes.mixture_every:
        which = "second block" if sizes.mixture_every == 2 else f"block {sizes.mixture_every}"
        after = f" after dense_first={sizes.dense_first}" if sizes.dense_first else ""
        yield f"layers={sizes.layers} has no {which}{after} whose MLP experts could replace"
    if steps.batch % (dp * layout.microbatches):
        yield f"batch={steps.batch} does not divide by dp={dp} · microbatches={layout.microbatches}"
    if layout.zero >= 2 and pp > 1:
        each, m = _gradient_bytes(model, layout, steps), layout.microbatches
        yield (
            f"zero={layout.zero} with pp={pp} would reduce-scatter gradients (and in stage 3 gather parameters) for "
            f"every micro-batch of every stage: about {_size(m * each)} in a step with microbatches={m} on each rank, "
            f"where zero=1 sends {_size(each)}; use zero=1"
        )
    if steps.optimizer in _WHOLE and (layout.tp > 1 or sizes.experts):
        what = f"tp={layout.tp} divides layers" if layout.tp > 1 else f"experts={sizes.experts} lie on several ranks"
        yield f"optimizer={steps.optimizer} needs {_WHOLE[steps.optimizer]}, and {what}; use adamw, or dp, pp and zero"
    if steps.ordered_sums and (pp > 1 or cp > 1 or tp > 1):
        here = f"pp={pp} and cp={cp}" if cp > 1 else f"pp={pp} and tp={tp}"
        yield f"ordered_sums is for data parallelism alone, and here {here}; use dp, or no ordered_sums"
    if steps.ordered_sums and sizes.experts:
        yield f"ordered_sums needs one gradient for each micro-batch, and experts={sizes.experts} have others; use none"
    if steps.ordered_sums and layout.zero >= 2:
        yield f"zero={layout.zero} adds gradients over ranks in every backward, not in order; use zero=1 or 0"
    if steps.ordered_sums and layout.zero and steps.optimizer in _WHOLE:
        yield (
            f"optimizer={steps.optimizer} with zero={layout.zero} adds up numbers of shards, which differ for each dp, "
            "not in order; with ordered_sums use zero=0, or adamw or sgd"
        )
    if layout.zero >= 2 and sizes.experts:
        yield f"zero={layout.zero} shards a line over all of dp, and experts have replicas on a part of it; use zero=1"


def _gradient_bytes(model: Model, layout: Layout, steps: Steps) -> float:
    """Of the blocks that a rank has, nearly: 12Lh² parameters over its stages and tensor-parallel ranks."""
    item = 8 if steps.dtype == "float64" else 2 if steps.dtype in ("bfloat16", "float16") else 4
    return 12 * model.sizes.layers * model.sizes.hidden**2 * item / (layout.pp * layout.tp)


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _problems_of_context(model: Model, layout: Layout) -> Iterator[str]:
    """What does not fit where ranks divide each sequence."""
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


def _check_numbers(model: Model, layout: Layout, steps: Steps) -> None:
    check_whole({**vars(model), **vars(layout), **vars(steps)})
    for holder, name, kind in (
        (model, "preset", Preset),
        (model, "router", RouterName),
        (model, "positions_kind", PositionsKind),
        (model, "norm", NormName),
        (model, "mlp", MLPName),
        (model, "biases", BiasesName),
        (layout, "schedule", ScheduleName),
        (layout, "recompute", Recompute),
        (layout, "cp_mode", ContextMode),
        (steps, "optimizer", OptimizerName),
        (steps, "decay", Decay),
        (steps, "dtype", DtypeName),
        (steps, "reduce_dtype", ReduceName),
    ):
        value = getattr(holder, name)
        if value not in get_args(kind) and (value is not None or getattr(type(holder), name) is not None):
            raise ValueError(f"{name}={value!r} is unknown; use one of {get_args(kind)}")
    sizes = model.sizes
    whole = {name: value for name, value in vars(sizes).items() if type(value) is int}
    none = ("experts", "shared_experts", "dense_first")
    _at_least(1, {name: value for name, value in whole.items() if name not in none})
    _at_least(0, {name: getattr(sizes, name) for name in none})
    _at_least(1, {name: getattr(layout, name) for name in ("dp", "pp", "tp", "ep", "cp", "chunks", "microbatches")})
    _at_least(1, {"batch": steps.batch})
    rates = {"lr": steps.lr, "weight_decay": steps.weight_decay}
    counts = {"steps": steps.steps, "warmup": steps.warmup, "clip": steps.clip}
    _at_least(0, counts | rates)
    # Products of two sizes must fit into 64 bits, and a rate into the precision of the steps.
    for most, values in ((1 << 31, whole), (1e300 if steps.dtype == "float64" else 1e30, rates)):
        for name, value in values.items():
            if value > most:
                raise ValueError(f"{name}={value:g} must be at most {most:g}")
    if steps.on_spike not in (None, *get_args(SpikeAction)):
        raise ValueError(f"on_spike={steps.on_spike!r} is unknown; use one of {get_args(SpikeAction)}, or None")
    if steps.decay_steps is not None and steps.decay != "wsd":
        raise ValueError(f"decay_steps={steps.decay_steps} is for decay='wsd', and decay={steps.decay!r} has none")
    if steps.decay == "wsd" and not 0 <= steps.falling <= steps.steps - steps.warmup:
        raise ValueError(
            f"decay_steps={steps.falling} and warmup={steps.warmup} do not fit into steps={steps.steps}; use fewer"
        )
    if steps.mix and steps.data != Steps.data:
        raise ValueError(f"data={steps.data!r} is not used with mix; name it there, as name=weight:{steps.data}")
    if layout.zero not in (0, 1, 2, 3):
        raise ValueError(f"zero={layout.zero} is no stage; use 0, 1, 2 or 3")
    if steps.reduce_dtype == "float32" and steps.dtype == "float64":
        raise ValueError("reduce_dtype='float32' has fewer bits than dtype='float64'; use same")
    if steps.reduce_dtype == "bfloat16" and steps.dtype in ("float16", "float64"):
        raise ValueError(
            f"reduce_dtype='bfloat16' is for float32 and bfloat16, not for dtype={steps.dtype!r}; use same"
        )
    # Of a power of two, and of nothing else, `frexp` gives the mantissa 0.5. Others would round the gradients.
    if steps.loss_scale < 1 or math.frexp(steps.loss_scale)[0] != 0.5:
        raise ValueError(f"loss_scale={steps.loss_scale:g} must be a power of two, and at least 1; use 65536")
    _check_model(model)


def _check_model(model: Model) -> None:
    """What does not fit in a model by itself."""
    sizes = model.sizes
    if sizes.hidden % sizes.heads and sizes.head_size == sizes.hidden // sizes.heads:
        raise ValueError(f"hidden={sizes.hidden} does not divide by heads={sizes.heads}")
    if sizes.heads % sizes.kv_heads:
        raise ValueError(f"kv_heads={sizes.kv_heads} do not divide heads={sizes.heads}")
    rope = sizes.positions_kind == "rope"
    if rope and sizes.head_size % 2:
        raise ValueError(
            f"hidden={sizes.hidden} over heads={sizes.heads} makes heads of {sizes.head_size}, which "
            f"positions_kind='rope' cannot divide into pairs; use a multiple of {2 * sizes.heads} for hidden"
        )
    if not 1 < sizes.rope_base < math.inf:
        raise ValueError(f"rope_base={sizes.rope_base:g} must be above 1 and finite; 10000 is usual")
    if not 1 <= sizes.rope_factor < math.inf:
        raise ValueError(f"rope_factor={sizes.rope_factor:g} must be at least 1 and finite; Llama 3.1 has 8")
    if not 0 < sizes.norm_eps < 1:
        raise ValueError(f"norm_eps={sizes.norm_eps:g} must be above 0 and below 1; 1e-5 is usual")
    for name in ("rope_base", "rope_factor"):
        # Not of a preset: positions that take the place of its rope leave its base behind.
        if not rope and (value := getattr(model, name)) not in (None, getattr(Sizes, name)):
            raise ValueError(
                f"{name}={value:g} changes nothing with positions_kind={sizes.positions_kind!r}; "
                f"use positions_kind='rope', or leave {name} out"
            )
    if sizes.experts and not 1 <= (sizes.experts_per_token or 1) <= sizes.experts:
        raise ValueError(f"experts_per_token={sizes.experts_per_token} are more than experts={sizes.experts}")
    for name in ("experts_per_token", "expert_hidden", "shared_experts", "mixture_every", "dense_first"):
        # Not of a preset, of which `--experts 0` makes a dense model.
        if not sizes.experts and getattr(model, name):
            raise ValueError(f"{name}={getattr(model, name)} needs experts, and the model has none; add experts")
    if sizes.vocabulary < 256:
        raise ValueError(f"vocabulary={sizes.vocabulary} is less than the 256 different bytes of the data")
    if not 0 <= model.dropout < 1:
        raise ValueError(f"dropout={model.dropout} must be at least 0 and below 1")


def check_whole(values: Mapping[str, Any]) -> None:
    """Refuse whole numbers that are too large to be counted with."""
    for name, value in values.items():
        # torch counts in 64 bits.
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{name}={value} has more than 64 bits; use a smaller one")


def _at_least(least: int, values: dict[str, Any]) -> None:
    for name, value in values.items():
        # Not `value < least`, which is false for NaN.
        if not value >= least:
            raise ValueError(f"{name}={value} must be at least {least}")
