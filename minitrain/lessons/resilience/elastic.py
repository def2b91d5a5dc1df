"""The lesson of `minitrain.resilience.elastic`: a rank joins a training and another leaves, and no bit changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, broadcast, rank_and_size
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience import training
from minitrain.lessons.rows import Rows
from minitrain.resilience.elastic import Rendezvous
from minitrain.resilience.ordered_sum import ordered_sum, share
from minitrain.watch.board import Board

MICRO_BATCHES, STEPS, EVERY = 12, 7, 3  # steps from checkpoint to checkpoint, where changes are restarts
JOINS, LEAVES = 2, 5  # the steps before which the last rank joins, and before which another leaves
GONE = 1  # in the middle, so that the ranks after it get other numbers
PATIENCE = 20.0  # seconds for a rendezvous, however busy the machine is


def demo(world: World) -> list[Claim]:
    """Lets a rank join a running training and another leave; the table compares it with a training on one device."""
    rows = Rows("derived")
    losses = "losses that differ from one device's while a rank joins and one leaves, ordered sums"
    ways = {"in place": "T", "by a restart of all": "T + Σ (change mod every)"}
    steps = "steps that rank 0 computes in all, where a change is dealt with {}"
    if world.size == 1:
        rows.needs(2, losses, "0")
        for way, formula in ways.items():
            rows.needs(2, steps.format(way), formula)
        return rows.claims()
    alone = Member(world.device)
    alone.train(STEPS)
    for way, formula in ways.items():
        with world.timed(f"a training with two changes, {way}"):
            member = take_part(world, restarts=way != "in place")
        wrong = sum(loss != alone.losses[step][1] for step, loss in member.losses)
        rows.add(losses, "0", 0, wrong, "losses", case=way, how="compared")
        again = costs.steps_with_crashes(STEPS, EVERY, [JOINS, LEAVES]) if way != "in place" else STEPS
        rows.add(steps.format(way), formula, again, gather_objects(len(member.losses))[0], "steps")
    return rows.claims()


class Member:
    """A rank's part in a training, or one device's. It trains in float32, with momentum.

    Attributes:
        done: Steps that are in the weights and in the momentum.
        losses: Each with the number of its step, as often as it was computed.
        ranks: This rank's number in each generation.
    """

    def __init__(self, device: torch.device, meeting: Rendezvous | None = None, groups: Sequence[Any] = ()):
        self.device, self.meeting, self.groups = device, meeting, groups
        self.group: Group = None
        self.done, self.weights = 0, training.weights(device)
        self.momentum = torch.zeros_like(self.weights)
        self.saved = self.done, self.weights, self.momentum
        self.losses, self.ranks = list[tuple[int, float]](), list[int]()

    def join(self, number: int, restarts: bool) -> None:
        """Be a member of a generation, with the state of its rank 0."""
        assert self.meeting
        if restarts:
            self.done, self.weights, self.momentum = self.saved
        generation, self.group = self.meeting.join(self.done), self.groups[number]
        self.ranks.append(generation.rank)
        assert self.group is not None
        source = dist.get_group_rank(self.group, int(generation.members[0]))
        state = torch.tensor([self.done], device=self.device), self.weights.clone(), self.momentum.clone()
        for tensor in state:
            # Newcomers need it; so would a member that lost the last step to a rank's death.
            broadcast(tensor, source, self.group).wait()
        self.saved = self.done, self.weights, self.momentum = int(state[0]), *state[1:]

    def train(self, until: int) -> None:
        """Train until so many steps are done, or a newcomer waits."""
        while self.done < until and not (self.meeting and self.meeting.newcomers(self.group, self.device)):
            rank, ranks = rank_and_size(self.group) if self.meeting else (0, 1)
            each_loss = (training.loss_of(self.weights, self.done, each) for each in range(MICRO_BATCHES))
            self.losses.append((self.done, float(sum(each_loss))))
            found = training.gradients(self.weights, self.done, share(MICRO_BATCHES, rank, ranks))
            total = ordered_sum(found, self.group) if self.meeting else training.in_order(found)
            self.momentum = training.MOMENTUM * self.momentum + total / MICRO_BATCHES
            self.weights = self.weights - training.LR * self.momentum
            self.done += 1
            if self.done % EVERY == 0:
                self.saved = self.done, self.weights, self.momentum


def take_part(world: World, restarts: bool = False) -> Member:
    """Train as this rank does: the last one joins when two steps are done, and rank 1 leaves after five.

    Groups are made by all ranks, as NCCL wants it, since the world of a demo must live on. `elastic.form` makes a world
    in place of the one before; `tests/resilience/test_elastic.py` does so, and kills a rank.

    Args:
        world: All ranks.
        restarts: Go back to the newest checkpoint at each change, as a restart of all processes would.
    """
    everyone = list(range(world.size))
    there = [everyone[:-1], everyone, [rank for rank in everyone if rank != GONE]]  # in each generation
    groups = [new_group(members) for members in there]
    keeper, address = Board.keep(world.local_size == world.size) if world.rank == 0 else (None, None)
    store = dist.TCPStore(*gather_objects(address)[0], is_master=False, wait_for_workers=False)
    meeting = Rendezvous(store, f"{world.rank:05}", world.size - 1, world.size, last_call=0.02, patience=PATIENCE)
    member = Member(world.device, meeting, groups)
    if world.rank < world.size - 1:
        member.join(0, restarts)
        member.train(JOINS)
        if world.rank == 0:
            store.set("joins", "")
            meeting.came(0, world.size, PATIENCE)
        member.train(STEPS)  # a newcomer waits: not a step more
    else:
        meeting.read("joins")
    # The newcomer is known to come, however busy the machine is.
    meeting.least = world.size
    member.join(1, restarts)
    member.train(LEAVES)
    if world.rank != GONE:
        meeting.least = world.size - 1
        member.join(2, restarts)
        member.train(STEPS)
    gather_objects(None)  # no rank needs the store any more
    del keeper
    return member
