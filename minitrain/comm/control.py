"""Control messages: what ranks tell each other about the data, apart from the data itself.

Shapes, checks and virtual times travel on connections of their own, with gloo between CPUs, whatever carries the
tensors; where ranks are checked, what is short comes with the note that a rank has arrived. The connections are made
beneath torch's list of process groups, so the ledger does not see them: what a lesson counts is what a training run
would send.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.groups import time_limit
from minitrain.comm.seal import LENGTH, Seal
from minitrain.watch.board import Board, BoardLost
from minitrain.watch.sites import Site, in_words, site

GATHERED = 3  # the tag of gathered values; virtual times have 0, announcements of pipelines 1, of servers 2
# Tensors whose memory does not hold their values side by side, and what can be sent instead.
GAPS, LAZY = "not contiguous", "conjugated or negated when it is read"
REMEDIES = {GAPS: "tensor.contiguous()", LAZY: "tensor.resolve_conj().resolve_neg()"}
SEALED = "gather_objects"  # the name under which values are sealed
LONGEST = 100  # calls from different lines that are remembered
FIRST = 1024  # bytes of a value that travel with its length; a longer one is sent again, whole

# group -> its control connections, and the seal of what they carry; ranks -> how many times they have been made.
_companions: dict[dist.ProcessGroup, Any] = {}
_seals: dict[Any, Seal] = {}
_counts: dict[str, int] = {}
# For the board: group -> its name, name -> how often its ranks have gathered.
_names: dict[Any, str] = {}
_gathered: dict[str, int] = {}
# group -> from where its ranks have called, since they did so from different lines.
_orders: dict[Any, list[Sequence[Site]]] = {}


def control(group: dist.ProcessGroup | None = None) -> Any:
    """The control connections of `group`, made when first asked for; every rank of `group` must ask.

    `dist.new_group` would not work. It numbers groups by those that a rank knows, so ranks that belong to different
    groups arrive at different numbers and wait for each other forever. It is a `dist.ProcessGroupGloo`, whose methods
    are missing from torch's type stubs.
    """
    group = group or dist.group.WORLD
    assert group is not None, "start a World first"
    if group not in _companions:
        # Named after the ranks and a count, which all of them share. The group's name would not work: with NCCL, torch
        # makes it from the number of groups that a rank is in, and this number may differ between ranks.
        ranks = ",".join(map(str, dist.get_process_group_ranks(group)))
        _counts[ranks] = _counts.get(ranks, 0) + 1
        store = dist.PrefixStore(f"control/{ranks}/{_counts[ranks]}", dist.distributed_c10d._get_default_store())
        _connect(group, store, group.rank(), group.size())
    return _companions[group]


def seal_of(group: dist.ProcessGroup | None = None) -> Seal:
    """The seal that the ranks of `group` share; every rank of `group` must ask, as for `control`."""
    control(group)
    return _seals[group or dist.group.WORLD]


def _connect(group: dist.ProcessGroup, store: dist.Store, rank: int, size: int) -> None:
    """Make the control connections of `group`, and agree on a secret."""
    beside = dist.ProcessGroupGloo(store, rank, size, time_limit())
    # Rank 0 tells one half over the store: that of our own ranks is a file which no other user can read.
    if rank == 0:
        store.set("secret", secrets.token_hex(LENGTH))
    # The other half goes over the connections, one message from each rank and one to each: anyone who reaches
    # torchrun's store can read what is in it.
    other = _gather_bytes(beside, secrets.token_bytes(LENGTH), LENGTH)[0]
    _companions[group], _seals[group] = beside, Seal(store.get("secret"), other)


def leave(groups: Iterable[dist.ProcessGroup]) -> None:
    """Destroy groups that are no longer needed, with their control connections; everyone's group is left alone.

    Each holds threads and sockets for as long as the program runs, and a program that makes many layouts runs out of
    them. The group that was made last ends first, on all ranks. With NCCL the end of a group waits for its other ranks,
    so two ranks that end the same two groups in different orders would wait for each other forever.
    """
    ours = set(groups) - {dist.group.WORLD}
    name_of(None)  # also those that were never used: each counts on all its ranks
    if ours and dist.get_backend() == "nccl":
        torch.cuda.synchronize()  # nothing is under way in them any more
    for group in [made for made in reversed(dist.distributed_c10d._world.pg_map) if made in ours]:
        for known in (_companions, _seals, _names, _orders):  # a group lives, with its threads, while any refers to it
            known.pop(group, None)
        dist.destroy_process_group(group)


def leave_all() -> None:
    """Destroy all groups but everyone's: for a program that goes on to something else, on all ranks."""
    leave(list(dist.distributed_c10d._world.pg_map))


def forget_control_groups() -> None:
    """Drop the control connections when their process groups are destroyed."""
    for known in (_companions, _seals, _counts, _names, _gathered, _orders):
        known.clear()


def gather_objects(value: Any, group: dist.ProcessGroup | None = None, what: str = "") -> list[Any]:
    """Every rank's `value`, in rank order, on every rank.

    Args:
        value: Anything that can be pickled.
        group: The ranks that take part; None means everyone.
        what: The call in which this rank gathers, such as "all_reduce".

    Raises:
        ValueError: On every rank alike: the ranks are not in the same call.
        Foreign: A value was sent by no rank of this run; it is not unpickled, since a pickle can run any code.
    """
    beside, seal, data = control(group), seal_of(group), pickle.dumps((what, value))
    told = _meet(group, what, data)
    if told is None or b"" in told:
        told = _gather_sealed(beside, seal, data)
    everyone = [pickle.loads(theirs) for theirs in told]
    same_call([call for call, _ in everyone])
    return [theirs for _, theirs in everyone]


def _gather_sealed(beside: Any, seal: Seal, data: bytes) -> list[bytes]:
    """Every rank's bytes, over the control connections."""
    data = seal.close(SEALED, data)
    mine = len(data).to_bytes(8, "little") + data
    boxes = _gather_bytes(beside, mine, FIRST)  # most values fit; ...
    sizes = [8 + int.from_bytes(box[:8], "little") for box in boxes]
    if max(sizes) > FIRST:
        boxes = _gather_bytes(beside, mine, max(sizes))  # ... every rank sees if one does not
    return [seal.open(SEALED, box[8:size]) for box, size in zip(boxes, sizes, strict=True)]


def any_of(flags: Sequence[bool]) -> Callable[[], list[bool]]:
    """Begin to tell all ranks of flags, and go on meanwhile; calling what it returns gives those that any rank has set.

    There are equally many flags on all ranks.
    """
    told = torch.tensor(flags, dtype=torch.uint8, device="cpu")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    # Every rank brings its flags, and all get their maximum.
    message = control().allreduce([told], options)

    def wait() -> list[bool]:
        message.wait()
        return [bool(flag) for flag in told]

    return wait


def _meet(group: dist.ProcessGroup | None, what: str, data: bytes) -> list[bytes] | None:
    """Where ranks are checked: wait until all of the group have arrived, and raise Deadlock if one never will.

    Returns:
        What each has brought along, which its note has room for: nothing if it is long. None where they are unchecked.
    """
    group = group or dist.group.WORLD
    board, ranks = Board.current, dist.get_process_group_ranks(group)
    if board is None or len(ranks) == 1:
        return None
    name, mine = f"{name_of(group)}/{len(ranks)}", data if len(data) <= FIRST else b""
    count = _gathered[name] = _gathered.get(name, 0) + 1
    with suppress(BoardLost):
        board.note(f"{name}/{count}/{board.rank}", mine.hex())
        others = {f"{name}/{count}/{rank}": rank for rank in ranks if rank != board.rank}
        notes = board.wait(others, what or "gather_objects")
        if count > 1:
            board.remove(f"{name}/{count - 1}/{board.rank}")  # all have seen it, since they have arrived again
        if notes is not None:
            told = [bytes.fromhex(note) for note in notes]
            told.insert(list(ranks).index(board.rank), mine)
            return told
    return None


def name_of(group: dist.ProcessGroup | None) -> str:
    """A name for a group that all its ranks share: the ranks, and which of the groups of these ranks it is.

    torch's own names may differ between ranks (see `control`).
    """
    for made in dist.distributed_c10d._world.pg_map:  # in the order in which they were made
        if made not in _names:
            ranks = ",".join(map(str, dist.get_process_group_ranks(made)))
            _counts[f"named {ranks}"] = _counts.get(f"named {ranks}", 0) + 1
            _names[made] = f"{ranks}#{_counts[f'named {ranks}']}"
    return _names[group or dist.group.WORLD]


def same_call(calls: Sequence[str]) -> None:
    """Raise if the ranks are not in the same call; `calls` are in their order."""
    if differ := differing([call or "another call" for call in calls]):
        raise ValueError(f"ranks are in different calls: {differ}; make the same calls in the same order on all")


def differing(values: Sequence[Any]) -> str:
    """Which ranks have which of the values, given in the order of ranks; nothing where all have the same."""
    seen: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        seen.setdefault(value, []).append(rank)
    listed = (f"{value} on rank {','.join(map(str, ranks))}" for value, ranks in seen.items())
    return ", ".join(listed) if len(seen) > 1 else ""


def _gather_bytes(beside: Any, mine: bytes, size: int) -> list[bytes]:
    """The first `size` bytes of every rank, shorter ones filled up with zeros.

    Through rank 0, in 2(n−1) messages. For short values the number of messages counts: a ring sends n(n−1).
    """
    ranks = beside.size()
    # Filled as bytes: a copy between tensors would be counted by programs that watch theirs.
    padded = bytearray(mine[:size].ljust(size, b"\0"))
    boxes = torch.frombuffer(padded * ranks, dtype=torch.uint8).view(ranks, size)
    if beside.rank() == 0:
        # One message from each other rank, and to each the values of all.
        arriving = [beside.recv([boxes[rank]], rank, GATHERED) for rank in range(1, ranks)]
        for arrival in arriving:
            arrival.wait()
        for departure in [beside.send([boxes], rank, GATHERED) for rank in range(1, ranks)]:
            departure.wait()
    else:
        # What rank 0 has gathered; posted first, so that it need not ask.
        everyone = beside.recv([boxes], 0, GATHERED)
        beside.send([torch.frombuffer(padded, dtype=torch.uint8)], 0, GATHERED).wait()
        everyone.wait()
    return [box.numpy().tobytes() for box in boxes]


def checking(check: bool | None) -> bool:
    """Whether ranks compare shapes before they send: as asked for; by default, in demos and notebooks.

    Demos and notebooks run with torch's debug level INFO (see `World.start`), benchmarks and training do not.
    """
    return dist.get_debug_level() != dist.DebugLevel.OFF if check is None else check


def agree(what: str, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks bring the same shape and dtype, contiguous, before anything is sent.

    Without it a mismatch gives wrong numbers on some ranks, or waits for a message that never comes. The ValueError, on
    every rank alike, names what differs and on which ranks.
    """
    everyone = gather_objects((description(tensor), site(tensor)), group, what)
    same_order(what, [called for _, called in everyone], group)
    compare(what, tensor, [described for described, _ in everyone])


def same_order(what: str, sites: Sequence[Site], group: dist.ProcessGroup | None) -> None:
    """Raise if ranks make the same calls in different orders.

    Ranks may well call from different lines. But where the lines of one rank turn out to be those of the others in
    another order, or their texts do, or the names of the tensors, then the calls have mixed up their tensors.
    """
    calls = _orders.setdefault(group or dist.group.WORLD, [])
    if not calls and len(set(sites)) == 1:
        return
    calls.append(sites)
    by_rank = list(zip(*calls, strict=True))
    for told in ("line", "text", "names"):
        orders = [[getattr(site, told) for site in each] for each in by_rank]
        if any(order != orders[0] for order in orders) and all(sorted(order) == sorted(orders[0]) for order in orders):
            calls.clear()
            differ = differing([", then ".join(map(in_words, each)) for each in by_rank])
            raise ValueError(f"{what}: ranks make the same calls in different orders: {differ}; use one order on all")
    if all(each == by_rank[0] for each in by_rank):
        calls.clear()
    del calls[:-LONGEST]


def description(tensor: torch.Tensor) -> tuple[tuple[int, ...], str, str]:
    """What must be equal on all ranks, shape and dtype; and the flaw of the tensor, which none may have."""
    return tuple(tensor.shape), str(tensor.dtype), _flaw(tensor)


def _flaw(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be sent as it is; nothing if it can."""
    if not tensor.is_contiguous():
        return GAPS
    return LAZY if tensor.is_conj() or tensor.is_neg() else ""


def compare(what: str, tensor: torch.Tensor, everyone: list[tuple[tuple[int, ...], str, str]]) -> None:
    """Raise as `agree` does, for descriptions that have been gathered already (a mesh gathers them along its axes)."""
    for index, name in enumerate(("shape", "dtype")):
        if differ := differing([described[index] for described in everyone]):
            raise ValueError(f"{what}: the {name} of `tensor` differs between ranks: {differ}; bring the same on all")
    for flaw, remedy in REMEDIES.items():
        if ranks := [str(rank) for rank, described in enumerate(everyone) if described[2] == flaw]:
            raise ValueError(
                f"{what}: `tensor` is {flaw} on rank {','.join(ranks)} (shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()} on this rank); send {remedy}"
            )


def contiguous(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor with gaps, of which gloo would send the wrong elements, or with other values than its memory."""
    if flaw := _flaw(tensor):
        remedy = "receive into a new tensor, and copy_ from it" if what == "receive" else f"send {REMEDIES[flaw]}"
        raise ValueError(
            f"{what}: `tensor` of shape {tuple(tensor.shape)} and strides {tensor.stride()} is {flaw}; {remedy}"
        )
