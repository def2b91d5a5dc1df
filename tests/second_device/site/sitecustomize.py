"""Python reads this file when it starts: the second device has to be there before torch is imported."""

import os

if os.environ.get("SECOND_DEVICE"):
    import importlib.util

    _path = os.path.join(os.path.dirname(__file__), "..", "loaded.py")
    _spec = importlib.util.spec_from_file_location("second_device", os.path.abspath(_path))
    _module = importlib.util.module_from_spec(_spec)
    __import__("sys").modules["second_device"] = _module
    _spec.loader.exec_module(_module)
