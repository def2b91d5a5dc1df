"""What every small form promises of a user's model: it trains as on one device, or is refused, and is never another.

A table for each kind of form: its rows are the forms, its columns what a user may bring. `=` says that gradients and
parameters are one device's, `R` that every rank raises an AssertionError.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Linear, Sequential, Tanh

from minitrain.comm import axes
from minitrain.comm.messages import rank_and_size
from minitrain.context_parallel import all_gather as gathering
from minitrain.context_parallel import online_softmax, ring_attention, ulysses, zigzag
from minitrain.craft.engine import Engine
from minitrain.data_parallel import accumulation, bucketed, diloco, hierarchical_sgd, local_sgd, naive, overlapped
from minitrain.mixture_of_experts import bias_balanced, expert_choice, gshard, node_limited, noisy_top_k, switch
from minitrain.mixture_of_experts.expert_parallel import ExpertParallel
from minitrain.mixture_of_experts.layer import MoELayer
from minitrain.models import gpt as reference_gpt
from minitrain.models.config import GPTConfig
from minitrain.optimizers import adafactor, adam8bit, lamb, lars, muon, sm3
from minitrain.pipeline_parallel import gpipe, no_stashing, one_f_one_b, pipedream, two_buffered, vertical_sync
from minitrain.recomputation import activation_offload, checkpoint, every_kth
from minitrain.sequence_parallel import linear as sequence
from minitrain.tensor_parallel import attention as heads
from minitrain.tensor_parallel import cross_entropy, linear, vocab_parallel
from minitrain.zero import hybrid, offload, parameter_offload, partitioned_checkpoints, stage1, stage2, stage3
from tests.zero.small import expected_shards, shards_of

STEPS, ROWS, WIDTH = 2, 2, 5
LOW = torch.bfloat16


def outcome(attempt: Callable[..., None], *arguments: Any) -> str:
    """`=` if it compares without a complaint, `R` if it is refused; a wrong number is an error of the test."""
    try:
        attempt(*arguments)
    except AssertionError as error:
        if isinstance(error.__cause__ or error, Other):
            raise
        return "R"
    return "="


class Other(AssertionError):
    """Neither one device's numbers nor refused."""


def same(found: Any, expected: Any, bound: float = 1e-12) -> None:
    """Within some roundings."""
    try:
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    except AssertionError as error:
        raise Other(str(error)) from None


def table(text: str) -> list[Any]:
    """A case of pytest for each row, with the outcome of each column."""
    head, *rows = (line.split() for line in text.strip().splitlines())
    return [pytest.param(name, dict(zip(head, found, strict=True)), id=name) for name, *found in rows]


# ---- models that a user may bring ----


def plain(model: Sequential) -> None: ...


def few(model: Sequential) -> None:
    """Fewer elements than ranks, in a block of their own."""
    model.append(nn.Linear(1, 1, False))


def tied(model: Sequential) -> None:
    """Within a block."""
    model[1].append(nn.Linear(WIDTH, WIDTH))
    model[1][-1].weight = model[1][0].weight


def shared(model: Sequential) -> None:
    """By two blocks."""
    model[1][0].weight = model[0][0].weight


def frozen(model: Sequential) -> None:
    model[1][0].bias.requires_grad_(False)


def frozen_block(model: Sequential) -> None:
    model[0].requires_grad_(False)


def unused(model: Sequential) -> None:
    model[1].register_parameter("unused", nn.Parameter(torch.ones(3)))


class To(nn.Module):
    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def two_dtypes(model: Sequential) -> None:
    model[1] = Sequential(Linear(WIDTH, WIDTH), To(torch.float32), Linear(WIDTH, WIDTH), To(torch.float64))


def buffers(model: Sequential) -> None:
    model[1].append(nn.BatchNorm1d(WIDTH))


def bits16(model: Sequential) -> None: ...


ROUNDING: dict[Any, float] = {two_dtypes: 1e-6, bits16: 0.05}
MODELS = (plain, few, tied, shared, frozen, frozen_block, unused, two_dtypes, buffers, bits16)


def made(case: Callable[[Sequential], None]) -> Sequential:
    """Blocks of 30, 30 and 5 elements, which 3 does not divide all together, and what the case adds."""
    torch.manual_seed(0)
    model = Sequential(
        Sequential(Linear(WIDTH, WIDTH), Tanh()), Sequential(Linear(WIDTH, WIDTH), Tanh()), Linear(WIDTH, 1, False)
    )
    case(model)
    model = model.to(LOW if case is bits16 else torch.float64)
    if case is two_dtypes:
        model[1][2].float()
    return model


def batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """With momentum, and with a decay that shows what should have been left alone."""
    return torch.optim.SGD(parameters, **OPTIONS)


OPTIONS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


def one_device(model: nn.Module, ranks: int, dtype: torch.dtype) -> nn.Module:
    """The same steps with the whole batch."""
    optimizer = optimizer_of(model.parameters())
    for step in range(STEPS):
        for rank in range(ranks):
            (model(batch(rank, step, dtype)).square().mean() / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# ---- data parallelism, ZeRO, and what sends less ----


def averaged(form: Callable[..., Any], module: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """A rung of data parallelism."""
    model = form(module)
    optimizer = optimizer_of(module.parameters())
    for x in batches:
        model(x).square().mean().backward()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


def accumulated(module: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    model = overlapped.DataParallel(module, None, 1e-4)
    optimizer = optimizer_of(module.parameters())
    for x in batches:
        accumulation.accumulate(model, x.split(1), lambda model, part: model(part).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


def divided(stage: Any, module: Any, batches: list[Tensor], *groups: Any) -> list[Tensor]:
    """A stage of ZeRO; this rank's shards."""
    model = stage(module, torch.optim.SGD, *groups, **OPTIONS)
    for x in batches:
        model(x).square().mean().backward()
        if hasattr(model, "synchronize"):
            model.synchronize()
        model.step()
        model.zero_grad()
    return shards_of(model)


def seldom(form: Callable[..., Any], module: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """With a round of one step it is data parallelism, because SGD is linear in the gradient."""
    model = form(module)
    optimizer = optimizer_of(module.parameters())
    for x in batches:
        model(x).square().mean().backward()
        if hasattr(model, "synchronize"):
            model.synchronize()
        optimizer.step()
        model.after_step()
        optimizer.zero_grad()
    return list(module.parameters())


def engine(module: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    model = Engine(module, optimizer_of(module.parameters()), clip=1e9)
    for x in batches:
        model.backward(model(x).square().mean())
        model.step()
    return list(module.parameters())


def nodes() -> tuple[Any, Any]:
    """Nodes of one rank each: this rank's own group, and all."""
    mesh = axes(node=rank_and_size()[1], local=1)
    return mesh.get_group("local"), mesh.get_group("node")


def outer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


REPLICATED: dict[str, Callable[..., list[Tensor]]] = {
    "naive": partial(averaged, naive.NaiveDataParallel),
    "bucketed": partial(averaged, partial(bucketed.BucketedDataParallel, bucket_megabytes=1e-4)),
    "overlapped": partial(averaged, partial(overlapped.DataParallel, bucket_megabytes=1e-4)),
    "accumulation": accumulated,
    "local_sgd": partial(seldom, partial(local_sgd.LocalSGD, every=1)),
    "diloco": partial(seldom, partial(diloco.DiLoCo, every=1, make_outer=outer)),
    "hierarchical": lambda *a: seldom(lambda m: hierarchical_sgd.HierarchicalSGD(m, 1, *nodes()), *a),
    "engine": engine,
}
SHARDED: dict[str, Any] = {
    "zero1": stage1.Zero1,
    "zero2": stage2.Zero2,
    "zero3": stage3.Zero3,
    "offload": offload.ZeroOffload,
    "parameter_offload": parameter_offload.ParameterOffload,
    "hybrid": hybrid.HybridZero3,
}


def trains(world, name: str) -> dict[str, str]:
    """The outcome of each model."""

    def attempt(case):
        module, dtype, bound = made(case), LOW if case is bits16 else torch.float64, ROUNDING.get(case, 1e-12)
        reference = one_device(copy.deepcopy(module), world.size, dtype)
        batches = [batch(world.rank, step, dtype) for step in range(STEPS)]
        if name in REPLICATED:
            same(REPLICATED[name](module, batches), list(reference.parameters()), bound)
        else:
            groups = nodes() if name == "hybrid" else ()
            found = divided(SHARDED[name], module, batches, *groups)
            values = {key: parameter.detach() for key, parameter in reference.named_parameters()}
            same(found, expected_shards(SHARDED[name], values, *groups[:1]), bound)

    return {case.__name__: outcome(attempt, case) for case in MODELS}


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize(
    "name, expected",
    table("""
                   plain few tied shared frozen frozen_block unused two_dtypes buffers bits16
naive                =    =   =     =      R         R          R        =        R       =
bucketed             =    =   =     =      R         R          R        R        R       =
overlapped           =    =   =     =      R         R          R        R        R       =
accumulation         =    =   =     =      R         R          R        R        R       =
zero1                =    =   =     =      R         R          R        R        R       =
zero2                =    =   =     =      R         R          R        =        R       =
offload              =    =   =     =      R         R          R        =        R       =
zero3                =    =   R     R      R         R          R        R        R       =
parameter_offload    =    =   R     R      R         R          R        R        R       =
hybrid               =    =   R     R      R         R          R        R        R       =
local_sgd            =    =   =     =      =         =          =        =        R       =
diloco               =    =   =     =      =         =          =        =        R       =
hierarchical         =    =   =     =      =         =          R        =        R       =
engine               =    =   =     =      =         =          R        =        R       =
"""),
)
def test_a_model_over_ranks(ranks, size, name, expected):
    assert ranks(size).run(trains, name) == [expected] * size


MIXING = (torch.optim.Adafactor, torch.optim.Muon, adafactor.Adafactor, adam8bit.Adam8bit)
MIXING = (*MIXING, lamb.LAMB, lars.LARS, muon.Muon, sm3.SM3)


def mixes(world):
    for name in SHARDED:
        groups = nodes() if name == "hybrid" else ()
        for kind in MIXING:
            with pytest.raises((AssertionError, ValueError), match="mixes|Muon"):
                SHARDED[name](made(plain), kind, *groups, lr=0.1)


def test_an_optimizer_that_needs_whole_tensors_is_refused_by_zero(ranks):
    ranks(3).run(mixes)


# ---- tensor and sequence parallelism ----


def piece(whole: Tensor, parameter: Tensor) -> Tensor:
    """What this rank has of one device's gradient."""
    dim = vars(parameter).get("tensor_parallel_dim")
    if dim is None:
        return whole
    rank, ranks = rank_and_size()
    padding = whole.new_zeros(*whole.shape[:dim], -whole.shape[dim] % ranks, *whole.shape[dim + 1 :])
    return torch.cat([whole, padding], dim).chunk(ranks, dim)[rank]


def compare(ours: nn.Module, whole: nn.Module, output: Tensor, expected: Tensor, low: bool, own: Any = ...) -> None:
    """Outputs, which gradients there are, and these; `own`: what this rank has of the output."""
    bound = 0.05 if low else 1e-12
    same(output.detach(), expected[own].detach(), bound)
    for each in (output, expected):
        (each.square().sum() / expected.numel()).backward()
    for mine, its in zip(ours.parameters(), whole.parameters(), strict=True):
        if mine.requires_grad != its.requires_grad or (mine.grad is None) != (its.grad is None):
            raise Other("another parameter is trained")
        if its.grad is not None:
            same(mine.grad, piece(its.grad, mine), bound)


def config(**choices: Any) -> GPTConfig:
    sizes = {"vocabulary": 17, "positions": 6, "layers": 1, "hidden": 6, "heads": 3}
    return GPTConfig(**{**sizes, **choices})


Layers = tuple[nn.Module, Callable[[], nn.Module]]  # one device's, and what makes this rank's of it


def linears(case: str) -> Layers:
    width = 7 if case == "odd" else 12
    whole = Sequential(Linear(6, width), Tanh(), Linear(width, 5))
    return whole, lambda: Sequential(
        linear.ColumnParallelLinear.from_linear(whole[0]), Tanh(), linear.RowParallelLinear.from_linear(whole[2])
    )


def attentions(case: str) -> Layers:
    choices: dict[str, Any] = {"odd": {"heads": 2}, "dropout": {"dropout": 0.5}, "keys": {"kv_heads": 1}}
    whole = reference_gpt.Attention(config(**choices.get(case, {})))
    return whole, lambda: heads.ParallelAttention(whole)


def mlps(case: str) -> Layers:
    whole: Any = reference_gpt.MLP(config())
    if case == "odd":
        whole.up, whole.down = Linear(6, 7), Linear(7, 6)
    if case == "gated":
        whole.gate = Linear(6, 24)
    return whole, lambda: heads.ParallelMLP(whole)


def from_sequence(case: str) -> Layers:
    width = 7 if case == "odd" else 12
    whole = Sequential(Linear(6, width), Tanh(), Linear(width, 5))

    def ours() -> nn.Module:
        torch.manual_seed(0)  # the weights are drawn in the same order
        made = Sequential(sequence.ColumnFromSequence(6, width), Tanh(), sequence.RowToSequence(width, 5))
        for mine, its in zip(made.parameters(), whole.parameters(), strict=True):
            mine.requires_grad_(its.requires_grad)
        return made.to(whole[0].weight.dtype)

    return whole, ours


PARALLEL = {"linear": linears, "attention": attentions, "mlp": mlps, "sequence": from_sequence}


def parallel(world, name: str, cases: list[str]) -> dict[str, str]:
    def attempt(case):
        torch.manual_seed(0)
        whole, make = PARALLEL[name](case)
        whole.to(LOW if case == "bits16" else torch.float64)
        first, *_, last = whole.parameters()
        first.requires_grad_(case != "frozen"), last.requires_grad_(case != "frozen")
        ours, x, tokens = make(), torch.randn(2, 6, 6, dtype=first.dtype), slice(None)
        if name == "sequence":
            tokens = slice(6 // world.size * world.rank, 6 // world.size * (world.rank + 1))
        compare(ours, whole, ours(x[:, tokens]), whole(x), case == "bits16", (slice(None), tokens))

    return {case: outcome(attempt, case) for case in cases}


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize(
    "name, expected",
    table("""
           plain frozen bits16 odd dropout keys gated
linear       =     =      =     R     =      =    =
attention    =     =      =     R     R      R    =
mlp          =     =      =     R     =      =    R
sequence     =     =      =     R     =      =    =
"""),
)
def test_a_layer_over_ranks(ranks, size, name, expected):
    expected = expected | ({"odd": "="} if size == 1 else {})  # one rank divides everything
    assert ranks(size).run(parallel, name, list(expected)) == [expected] * size


VOCABULARY = {
    "plain": "=",
    "tied": "=",
    "frozen": "=",
    "bits16": "R",  # the loss adds in float32 or more
    "padding_idx": "R",
    "max_norm": "R",
    "scale_grad_by_freq": "R",
    "sparse": "R",
    "beyond": "R",
    "negative": "R",
    "ignored": "R",
}


def vocabulary(world) -> dict[str, str]:
    """Embedding, head and loss: 17 tokens, which no other number of ranks divides."""

    def attempt(case):
        torch.manual_seed(0)
        option: Any = {case: 3 if case == "padding_idx" else 1} if hasattr(nn.Embedding(1, 1), case) else {}
        whole = Sequential(nn.Embedding(17, 6, **option), Linear(6, 17, False))
        whole.to(LOW if case == "bits16" else torch.float64)
        if case == "tied":
            whole[1].weight = whole[0].weight
        whole[0].weight.requires_grad_(case != "frozen")
        tokens, targets = torch.randint(17, (2, 2, 6)).unbind()
        tokens[0, 0] = {"beyond": 17, "negative": -1}.get(case, 16)
        targets[0, 0] = -100 if case == "ignored" else 16
        embedding, head = (
            vocab_parallel.VocabParallelEmbedding.from_embedding(whole[0]),
            vocab_parallel.VocabParallelHead.from_linear(whole[1]),
        )
        if case == "tied":
            head.weight = embedding.weight
        loss = cross_entropy.vocab_parallel_cross_entropy(head(embedding(tokens)), targets)
        expected = F.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
        compare(Sequential(embedding, head), whole, loss, expected, case == "bits16")

    return {case: outcome(attempt, case) for case in VOCABULARY}


@pytest.mark.parametrize("size", (1, 3))
def test_a_vocabulary_over_ranks(ranks, size):
    assert ranks(size).run(vocabulary) == [VOCABULARY] * size


# ---- context parallelism ----

ATTENTION: dict[str, Any] = {
    "online": lambda q, k, v, seq: online_softmax.attention(q, k, v, 5),
    "ring": ring_attention.ring_attention,
    "zigzag": zigzag.zigzag_attention,
    "ulysses": lambda q, k, v, seq: ulysses.attention(q, k, v),
    "gather": lambda q, k, v, seq: gathering.attention(q, k, v),
}


def attends(world, name: str, cases: list[str]) -> dict[str, str]:
    def attempt(case):
        torch.manual_seed(0)
        seq = {"odd": 13, "short": 2}.get(case, 12)
        counts = {"heads": (4, 4), "keys": (6, 2)}.get(case, (6, 6))
        whole = [torch.randn(2, n, seq, 4, dtype=torch.float64) for n in (*counts, counts[1])]
        whole = [x.to(LOW if case == "bits16" else x.dtype).requires_grad_() for x in whole]
        held = torch.arange(seq).chunk(world.size)[world.rank] if name in ("ulysses", "gather") else torch.arange(seq)
        if name == "ring":
            held = ring_attention.positions(seq, world.size)[world.rank]
        if name == "zigzag":
            held = torch.cat(zigzag.held(seq, world.size)[world.rank])
        mine = [x.detach()[:, :, held].requires_grad_() for x in whole]
        output = ATTENTION[name](*mine, seq)
        expected = F.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
        output.square().sum().backward(), expected.square().sum().backward()
        bound = 0.1 if case == "bits16" else 1e-12
        same(output.detach(), expected[:, :, held].detach(), bound)
        same([x.grad for x in mine], [x.grad[:, :, held] for x in whole], bound)

    return {case: outcome(attempt, case) for case in cases}


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize(
    "name, expected",
    table("""
         plain odd short heads keys bits16
ring       =    =    R     =    R      R
zigzag     =    =    R     =    R      R
ulysses    =    -    -     R    =      =
gather     =    -    -     =    =      =
"""),
)
def test_attention_over_ranks(ranks, size, name, expected):
    """Sequences that ranks don't divide are for `ring` and `zigzag` only (-)."""
    expected = {case: promised for case, promised in expected.items() if promised != "-"}
    if size == 1:
        expected |= {case: "=" for case in ("short", "heads") if case in expected}
    assert ranks(size).run(attends, name, list(expected)) == [expected] * size


def test_attention_in_blocks():
    expected = {"plain": "=", "odd": "=", "keys": "R", "bits16": "R"}
    assert attends(SimpleNamespace(size=1, rank=0), "online", list(expected)) == expected


# ---- mixtures of experts ----


@pytest.mark.parametrize(
    "route, tokens",
    [
        (switch.route, 1),  # ⌊1.25 · 1/8⌋ places
        (gshard.route, 2),  # ⌊2 · 2/8⌋
        (expert_choice.route, 3),  # ⌊2 · 3/8⌋
        (partial(noisy_top_k.route, noise_weight=torch.ones(8, 4), choices=0), 1),
        (partial(bias_balanced.route, bias=torch.zeros(8), choices=0), 1),
        (partial(node_limited.route, bias=torch.zeros(8), choices=0, nodes=2, limit=1), 1),
    ],
    ids=("switch", "gshard", "expert_choice", "noisy_top_k", "bias_balanced", "node_limited"),
)
def test_a_router_that_would_drop_every_token_is_refused(route, tokens):
    with pytest.raises(
        AssertionError, match="without slots|at least one token|each expert once|runner-up|best expert|hold k experts"
    ):
        route(torch.randn(tokens, 4), torch.randn(8, 4))


EXPERTS = {
    "plain": "=",
    "frozen": "R",  # an expert
    "router": "R",  # is frozen
    "tied": "R",  # two experts
    "unused": "=",  # experts without tokens have gradients of zeros, here as on one device
    "buffers": "R",
    "biased": "R",  # the router
    "bits16": "=",
    "odd": "R",  # 4 experts
}


def experts(world) -> dict[str, str]:
    def attempt(case):
        torch.manual_seed(0)
        layers = [Sequential(Linear(4, 5), Tanh(), Linear(5, 4)) for _ in range(4 if case == "odd" else 6)]
        if case == "frozen":
            layers[0].requires_grad_(False)
        if case == "tied":
            layers[1][0].weight = layers[0][0].weight
        if case == "buffers":
            layers[0].append(nn.BatchNorm1d(4))
        router = Linear(4, len(layers), case == "biased").requires_grad_(case != "router")
        capacity = len(layers) if case == "unused" else 1.25
        layer = MoELayer(router, layers, partial(switch.route, capacity_factor=capacity))
        layer.to(LOW if case == "bits16" else torch.float64)
        whole = copy.deepcopy(layer)
        ours = ExpertParallel(layer)
        x = torch.randn(world.size, 2, 6, 4).to(router.weight.dtype)
        if case == "unused":
            x[:] = x[0, 0, 0]  # all tokens choose one expert
        for part in x:
            ((whole(part).square().mean() + whole.auxiliary_loss) / world.size).backward()
        (ours(x[world.rank]).square().mean() + layer.auxiliary_loss).backward()
        ours.synchronize()
        first = ours.local * world.rank
        mine = [*whole.router.parameters(), *whole.experts[first : first + ours.local].parameters()]
        same([p.grad for p in layer.parameters()], [p.grad for p in mine], 0.05 if case == "bits16" else 1e-12)

    return {case: outcome(attempt, case) for case in EXPERTS}


@pytest.mark.parametrize("size", (1, 3))
def test_experts_over_ranks(ranks, size):
    assert ranks(size).run(experts) == [EXPERTS | ({"odd": "="} if size == 1 else {})] * size


# ---- pipelines ----

SCHEDULES: dict[str, Any] = {"gpipe": gpipe, "one_f_one_b": one_f_one_b}
WITHOUT_FLUSH: dict[str, Any] = {
    "no_stashing": no_stashing.train,
    "pipedream": pipedream.train,
    "vertical_sync": vertical_sync.train,
    "two_buffered": partial(two_buffered.train, k=4),
}


def pipeline(world, name: str, cases: list[str]) -> dict[str, str]:
    def attempt(case):
        torch.manual_seed(0)
        whole: Any = Sequential(*(Sequential(Linear(WIDTH, WIDTH), Tanh()) for _ in range(world.size)))
        if case == "first":
            whole[0].requires_grad_(False)
        if case == "frozen":
            whole.requires_grad_(False)
        if case == "tied":
            whole[-1].append(whole[-1][0])
        if case == "unused":
            whole[0].register_parameter("unused", nn.Parameter(torch.ones(3)))
        if case == "buffers":
            whole[0].append(nn.BatchNorm1d(WIDTH))
        whole.to(dtype := LOW if case == "bits16" else torch.float64)
        stage = copy.deepcopy(whole[world.rank])
        inputs = [batch(0, number, dtype) for number in range(0 if case == "none" else 4)]
        if case == "unequal":
            inputs[0] = inputs[0][:1]
        template, loss = torch.empty(ROWS, WIDTH, dtype=dtype), F.mse_loss
        if name in WITHOUT_FLUSH:
            versions = {0: dict(stage.named_parameters())}
            WITHOUT_FLUSH[name](stage, versions, inputs, inputs, loss, template, lr=0.1)
            return
        SCHEDULES[name].step(stage, inputs, inputs, loss, template)
        for x in inputs:
            expected = loss(whole(x), x) / len(inputs)
            if expected.requires_grad:
                expected.backward()
        found = [(p.requires_grad, p.grad) for p in stage.parameters()]
        same(
            found, [(p.requires_grad, p.grad) for p in whole[world.rank].parameters()], 0.05 if dtype == LOW else 1e-12
        )

    return {case: outcome(attempt, case) for case in cases}


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize(
    "name, expected",
    table("""
               plain first frozen tied unused buffers bits16 unequal none
gpipe            =     =     -     =     =       =      =       R      R
one_f_one_b      =     =     -     =     =       =      =       R      R
no_stashing      =     -     R     -     -       -      =       -      -
pipedream        =     -     R     =     -       =      =       -      -
vertical_sync    =     -     R     =     -       =      =       -      -
two_buffered     =     -     R     =     -       =      =       R      R
"""),
)
def test_a_pipeline(ranks, size, name, expected):
    """Without a flush a step is another one than on one device: `=` says that it runs (tests/pipeline_parallel)."""
    expected = {case: promised for case, promised in expected.items() if promised != "-"}
    assert ranks(size).run(pipeline, name, list(expected)) == [expected] * size


# ---- recomputation ----

RECOMPUTING: dict[str, Callable[[Sequential, Tensor], Tensor]] = {
    "checkpoint": lambda model, x: (checkpoint.recompute(model), model(x))[1],
    "every_kth": lambda model, x: every_kth.run_in_segments(model, x, 2),
    "partitioned": lambda model, x: (partitioned_checkpoints.partition(model), model(x))[1],
    "offload": lambda model, x: (activation_offload.Offload(model), model(x))[1],
}


def dropout(model: Sequential) -> None:
    model[1].append(nn.Dropout(0.5))


def autocast(model: Sequential) -> None: ...


def recomputes(world, name: str) -> dict[str, str]:
    def attempt(case):
        module = made(case)
        if case is autocast:
            module.float()  # which it rounds, and float64 not
        reference, x = copy.deepcopy(module), torch.randn(ROWS, WIDTH).to(module[0][0].weight.dtype)
        found = []
        for model, run in ((reference, Sequential.forward), (module, RECOMPUTING[name])):
            torch.manual_seed(1)
            mine = x.clone().requires_grad_()
            with torch.autocast("cpu", LOW) if case is autocast else nullcontext():
                y = run(model, mine)
            y.float().square().mean().backward()
            after = torch.rand(1)  # whatever is drawn next
            found.append([y.detach(), mine.grad, after, *(p.grad for p in model.parameters()), *model.buffers()])
        same(found[1], found[0], 0.0)

    return {case.__name__: outcome(attempt, case) for case in (*MODELS, dropout, autocast)}


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize(
    "name, expected",
    table("""
            plain few tied shared frozen frozen_block unused two_dtypes buffers bits16 dropout autocast
checkpoint    =    =   =     =      =         =          =        =        R       =      =       =
every_kth     =    =   =     =      =         =          =        =        R       =      =       =
partitioned   =    =   =     =      =         =          =        =        R       =      R       R
offload       =    =   =     =      =         =          =        =        =       =      =       =
"""),
)
def test_what_is_computed_again(ranks, size, name, expected):
    assert ranks(size).run(recomputes, name) == [expected] * size
