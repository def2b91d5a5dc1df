"""Python runs this when it starts. Where the second device is wanted, it is loaded together with torch, just before."""

import os
import sys
from importlib.machinery import PathFinder


class BeforeTorch(PathFinder):
    """Finds torch, and loads the device around it."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """torch's own spec, whose loader loads the device, too."""
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        import second_device

        spec = super().find_spec(name, path, target)
        if spec is not None and spec.submodule_search_locations:
            load = spec.loader.exec_module

            def load_both(module):
                second_device.before_torch(spec.submodule_search_locations[0])
                load(module)
                second_device.after_torch()

            spec.loader.exec_module = load_both
        return spec


if os.environ.get("SECOND_DEVICE"):
    sys.meta_path.insert(0, BeforeTorch)
