"""The bar of time: where the seconds of a training step go, on each device. Letters: `minitrain.costs.roofline`."""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs import zero
from minitrain.costs.composition import Shape, model_parameters
from minitrain.costs.composition_work import step_flops
from minitrain.costs.fabric import DEFAULT, Fabric, pieces
from minitrain.costs.roofline import Machine, utilization


class Reached(NamedTuple):
    """What training reaches of a GPU's data sheet.

    The default is that of the course's bars: products and attention reach half of the peak, and no other work of the
    GPU takes time. `fitted` is that of the planner.

    Attributes:
        products: The part of the peak that products reach.
        core: The part of it that a fused kernel of attention reaches, which leaves out the half that is masked, and
            computes scores again in backward. None: as any product, with nothing left out.
        moved: Bytes that norms, activations and sums move in a layer, forward and backward, for each element of the
            residual stream in 16 bits. With them, loss and optimizer take time, too.
        contended: The part of hidden messages' time by which they slow down what hides them.
    """

    products: float = 0.5
    core: float | None = None
    moved: float = 0.0
    contended: float = 0.0


HALF = Reached()
# Six constants, fitted on published runs (`minitrain.planning.full.published`). By the first letter of the GPU: what
# products and attention's core reach of the peak. For all: bytes for each layer and element of the residual stream, and
# the part of hidden messages' time that is lost after all.
REACHED = {"A": (0.82, 0.32), "H": (0.75, 0.185)}
MOVED, CONTENDED = 400.0, 0.5
ADAM = 30  # bytes that AdamW moves for each parameter: 4 states read and 3 written in float32, and the new weight
LOSS = 20  # bytes that the loss moves for each logit: written and read some five times in float32


def fitted(machine: Machine, products: float | None = None) -> Reached:
    """What published trainings reached of such a GPU, or, of one that none of them used, what they reached of H100s."""
    usual, core = REACHED.get(machine.name[:1], REACHED["H"])
    return Reached(products or usual, core, MOVED, CONTENDED)


class Bar(NamedTuple):
    """Seconds of a step on each device.

    Attributes:
        compute: Computing the model's products.
        hidden: Communication while something is computed.
        exposed: Communication while nothing is computed.
        again: Computing something a second time.
        idle: A pipeline's rank waiting for its neighbors.
    """

    compute: float
    hidden: float
    exposed: float
    again: float = 0.0
    idle: float = 0.0

    @property
    def step(self) -> float:
        """Seconds from one step to the next."""
        return self.compute + self.again + self.idle + self.exposed

    def days(self, steps: float) -> float:
        """Days for this many steps."""
        return steps * self.step / 86400

    def mfu(self, flops: float, peak: float) -> float:
        """With the model's operations of a step on one device."""
        return utilization(flops, self.step, 1, peak)


def overlap(*sent: tuple[float, float]) -> tuple[float, float]:
    """Seconds of communication that are hidden, and those that are exposed: what does not fit behind computing.

    `sent`: of each kind of message its seconds, and those of the computing that can hide it, 0 where a rank just waits.
    """
    hidden = sum(min(pair) for pair in sent)
    return hidden, sum(seconds for seconds, _ in sent) - hidden


def data_parallel_bar(
    shape: Shape,
    machine: Machine,
    ranks: int,
    step_tokens: int,
    fabric: Fabric = DEFAULT,
    reached: float = 0.5,
    item: int = 2,
) -> Bar:
    """The bar of data parallelism: gradients hide behind backward, which is two thirds of a step.

    `step_tokens`: of all ranks together; `reached`: the part of the machine's peak that products reach.

    Raises:
        ValueError: There are no ranks, or `reached` is no part of the peak.
    """
    if ranks < 1 or not 0 < reached <= 1:
        raise ValueError(f"ranks={ranks} must be at least 1, and reached={reached} more than 0 and at most 1")
    flops = step_flops(1, shape) * step_tokens / shape.positions / ranks
    parameters, compute = model_parameters(shape), flops / (reached * machine.flops)
    sent = (ranks - 1) / ranks * zero.volume(0, parameters) * item / fabric.ring(machine, ranks)
    sent += 2 * pieces(parameters, ranks, shape.layers) * fabric.wait(ranks)
    return Bar(compute, *overlap((sent, 2 / 3 * compute)))
