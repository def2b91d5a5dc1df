"""The axes of a layout: a rank's place along each is its number in that axis's group."""

import torch.distributed as dist

from minitrain.composition.layout import make_axes
from minitrain.composition.settings import Layout

LAYOUTS = (Layout(dp=4), Layout(dp=4, ep=2), Layout(dp=4, ep=4), Layout(dp=2, cp=2), Layout(pp=2, tp=2, microbatches=2))


def places(world):
    for layout in LAYOUTS:
        axes = make_axes(layout)
        groups = {name: getattr(axes, name) for name in ("pp", "dp", "cp", "tp", "experts", "replicas")}
        groups["dp·cp"] = axes.dp_cp
        assert axes.place == {name: dist.get_rank(group) for name, group in groups.items()}, layout
        axes.close()


def test_a_place_is_the_rank_in_its_group(ranks):
    ranks(4).run(places)
