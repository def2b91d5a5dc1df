"""What the demo of `synchronous` claims about bytes and time: each link against the ring's, and who keeps how much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.memory import model_states
from minitrain.costs import parameter_server as costs
from minitrain.costs.data_parallel import Sizes
from minitrain.data_parallel import DataParallel
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.collectives.common import ALPHA, BETA
from minitrain.lessons.data_parallel.common import small_gpt
from minitrain.lessons.parameter_server.training import HIDDEN, LAYERS, OPTIMIZERS, Trained, backward
from minitrain.parameter_server.full.placement import place
from minitrain.parameter_server.full.roles import Roles, split_roles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RING, DERIVED = "Patarasuk & Yuan 2009", "derived"

# What is claimed, and its formula.
LINK = "bytes through this rank's link in a step, in and out, any k", "n(2Sₛ + wPₛ) at server s; 2S + wP at a worker"
MESSAGES = "messages that this rank sends in a step, any k", "n at a server, k at a worker, for each dtype"
BUSIEST = "bytes through the busiest server's link in a step, any k", "max over s of n(2Sₛ + wPₛ) ≈ 2nS/k"
BESIDE = "bytes through the busiest link if the workers form a ring instead", "max over r ≈ 4(n−1)/n · (S + wP)"
CROSSING = "bytes through the busiest server's link over those of a ring's, k = 1 and 2", "n²/(2k(n−1))"
MATCH = "servers with which an evenly filled link carries no more than a ring's", "⌈n²/(2(n−1))⌉"
EVEN = "bytes of parameters at the fullest server", "S/k + (1 − 1/k) · the largest tensor"
TIGHT = "the same of k + 1 equal tensors, k = 2 and 3, where the bound is reached"
BEST = "the same where largest first is farthest from the best placement, k = 2 and 3", "(4/3 − 1/(3k)) · the best"
STATES = "bytes of AdamW's states at this rank", "2Sₛ + 4Pₛ at server s; 0 at a worker"
TIME = "time of a step with one server", "(α + βS) + F + n(α + β(S + wP))"


def sizes(module: nn.Module) -> list[Sizes]:
    """The trained parameters in the form of `costs`."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in trained]


def owners(module: nn.Module, servers: int) -> list[int]:
    """The placement of the trained parameters."""
    return place([elements * item_size for elements, item_size, _ in sizes(module)], servers)


def counted(world: World, roles: Roles) -> tuple[Ledger, nn.Module]:
    """What this rank sends and receives in a step, counted message by message."""
    trained = Trained(world, roles, OPTIMIZERS["AdamW"])
    with Ledger() as ledger:
        trained.steps(1)
    return ledger, trained.module


def counted_in_ring(world: World, roles: Roles) -> int:
    """Bytes through the busiest link when the workers all-reduce their gradients around a ring instead."""
    group = new_group(list(roles.workers))
    through = 0
    if not roles.serves:
        assert isinstance(group, dist.ProcessGroup)
        model = DataParallel(small_gpt(world, 0, LAYERS, HIDDEN), Comm(group, ring))
        with Ledger() as ledger:
            backward(world, model, roles.workers.index(world.rank), 0)
            model.synchronize()
        through = ledger.sent + ledger.received
    return max(gather_objects(through))


def traffic(world: World) -> list[Claim]:
    """Claims on the bytes and messages of a step, compared with a ring's, for all ways to split the ranks.

    There are k servers and n workers, at least two if the ranks allow it. Gives the picture, too.
    """
    points: list[tuple[int, int, float, float]] = []
    world.figure(lambda: picture(points))
    links, messages, busiest, rings, ratios = ({} for _ in range(5))
    match = None
    for servers in range(1, max(world.size - 1, 2)):
        roles, workers = split_roles(servers), world.size - servers
        ledger, module = counted(world, roles)
        parameters, where = sizes(module), owners(module, servers)
        if roles.serves:
            link = costs.server_link(parameters, where, roles.servers.index(world.rank), workers)
        else:
            link = costs.worker_link(parameters, where, servers)
        through, case = ledger.sent + ledger.received, f"k = {servers}, n = {workers}"
        most = max(gather_objects(through if roles.serves else 0))
        predicted = costs.busiest_server(parameters, where, servers, workers)
        links[case] = Claim(*LINK, link.bytes, through, "B", DERIVED)
        messages[case] = Claim(*MESSAGES, link.sent.messages, ledger.messages, "messages", DERIVED)
        busiest[case] = Claim(*BUSIEST, predicted, most, "B", DERIVED)
        if workers < 2:
            break
        of_ring = counted_in_ring(world, roles)
        rings[case] = Claim(*BESIDE, costs.busiest_in_ring(parameters, workers), of_ring, "B", RING)
        if servers <= 2:  # of more servers, some keep a single tensor that is larger than their share
            ratio = costs.over_ring(workers, servers)
            ratios[case] = Claim(*CROSSING, ratio, most / of_ring, "1", DERIVED, tolerance=0.02)
        if servers == 1:
            match = Claim(*MATCH, costs.servers_to_match(workers), math.ceil(most / of_ring), "1", DERIVED)
        whole = sum(parameter.nbytes for parameter in module.parameters())
        points.append((workers, servers, most / whole, of_ring / whole))
    rows = [fold(name[0], cases) for name, cases in ((LINK, links), (MESSAGES, messages), (BUSIEST, busiest))]
    if match is None:
        return [*rows, *(Claim.needs_ranks(3, *row, DERIVED) for row in (BESIDE, CROSSING, MATCH))]
    return [*rows, fold(BESIDE[0], rings), fold(CROSSING[0], ratios), match]


def placement(world: World, roles: Roles) -> list[Claim]:
    """Claims on how evenly servers are filled: what Graham's theorems allow, and where no less would be true."""
    trained, servers = Trained(world, roles, OPTIMIZERS["AdamW"]), len(roles.servers)
    parcels = trained.server.parcels if trained.server is not None else []
    fullest = max(gather_objects(sum(p.nbytes for parcel in parcels for p in parcel.parameters.values())))
    each = [elements * item_size for elements, item_size, _ in sizes(trained.module)]
    tight, best = {}, {}
    for k in (2, 3):
        equal, graham = (
            [60] * (k + 1),
            [60 * size for size in (*range(2 * k - 1, k, -1), *range(2 * k - 1, k, -1), *[k] * 3)],
        )
        most, farthest = costs.fullest_at_most(equal, k), costs.largest_first_ratio(k) * costs.least_fullest(graham, k)
        for cases, predicted, these, source in (
            (tight, most, equal, "Graham 1966"),
            (best, farthest, graham, "Graham 1969, theorem 2"),
        ):
            loads = [
                sum(size for size, owner in zip(these, place(these, k), strict=True) if owner == server)
                for server in range(k)
            ]
            cases[f"k = {k}"] = Claim(
                "",
                BEST[1] if cases is best else EVEN[1],
                predicted,
                max(loads),
                "B",
                source,
                "compared",
                tolerance=1e-12,
            )
    return [
        Claim(*EVEN, costs.fullest_at_most(each, servers), fullest, "B", "Graham 1966", relation="<="),
        fold(TIGHT, tight),
        fold(BEST[0], best),
    ]


def states(world: World, roles: Roles) -> Claim:
    """The claim on where optimizer states are: each once, on servers."""
    trained = Trained(world, roles, OPTIMIZERS["AdamW"])
    trained.steps(1)
    predicted = held = 0
    if trained.server is not None and trained.server.optimizer is not None:
        held = model_states(trained.module, trained.server.optimizer)["optimizer states"]
        where = owners(trained.module, len(roles.servers))
        predicted = costs.adam_states(sizes(trained.module), where, roles.servers.index(world.rank))
    return Claim(*STATES, predicted, held, "B", DERIVED)


def virtual_time(world: World) -> Claim:
    """The claim on the time of a step with one server, when forward and backward take 2⁻¹⁰ virtual seconds."""
    compute = 2.0**-10
    roles = split_roles(1)
    trained = Trained(world, roles, OPTIMIZERS["AdamW"])
    with VirtualClock(ALPHA, BETA) as clock:
        if trained.server is not None:
            trained.server.serve(1)
        else:
            assert trained.worker is not None
            trained.worker.pull()
            backward(world, trained.module, roles.workers.index(world.rank), 0)
            clock.work(compute, "gradient")
            trained.worker.push()
    link = costs.worker_link(sizes(trained.module), owners(trained.module, 1), 1)
    sent, workers = link.sent.bytes, len(roles.workers)
    predicted = costs.step_time(link.received.bytes, sent, workers, ALPHA, BETA, compute)
    measured = max(gather_objects(clock.now))
    return Claim(*TIME, predicted, measured, "virtual s", DERIVED, how="virtual clock")


def picture(points: list[tuple[int, int, float, float]]) -> Figure:
    """Bytes through the busiest link over the number of workers, of servers and of a ring; dots were counted.

    Args:
        points: Workers, servers, and what the busiest server and the busiest rank of the ring carried, in S.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    workers = list(range(2, 17))
    styles = {1: ("#D55E00", "-"), 2: ("#E69F00", "--"), 4: ("#CC79A7", "-."), 8: ("#56B4E9", ":")}
    for servers, (colour, line) in styles.items():
        label = f"{servers} server{'s' * (servers > 1)}"
        axes.plot(workers, [2 * n / servers for n in workers], line, color=colour, label=label)
    axes.plot(workers, [4 * (n - 1) / n for n in workers], color="#009E73", linewidth=2.5, label="ring")
    counts = [point[0] for point in points]
    axes.plot(counts, [point[2] for point in points], "ks", markersize=6, label="counted, servers")
    axes.plot(counts, [point[3] for point in points], "k^", markersize=6, label="counted, ring")
    for n, servers, height, _ in points:
        axes.annotate(f"k = {servers}", (n, height), textcoords="offset points", xytext=(8, -10), fontsize=8)
    axes.set_xlabel("workers n")
    axes.set_ylabel("bytes through the busiest link, in S")
    axes.set_title("Who is the bottleneck")
    axes.set_ylim(0, 16)
    axes.set_xlim(1.5, 16)
    figure.legend(loc="outside right upper", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
