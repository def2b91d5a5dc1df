"""Python runs this when it starts. Where the second device is wanted, it is loaded together with torch, around it."""

import os
import sys
from importlib.machinery import PathFinder


class AroundTorch(PathFinder):
    """Finds torch, and nothing else; its loader loads the device, too."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """torch's own spec, which may be asked for by those who do not import it."""
        spec = super().find_spec(name, path, target) if name == "torch" else None
        if spec is None or not spec.submodule_search_locations:
            return None
        load = spec.loader.exec_module

        def load_both(module):
            import second_device

            second_device.before_torch(spec.submodule_search_locations[0])
            load(module)
            second_device.after_torch()

        spec.loader.exec_module = load_both
        return spec


if os.environ.get("SECOND_DEVICE"):
    sys.meta_path.insert(0, AroundTorch)
