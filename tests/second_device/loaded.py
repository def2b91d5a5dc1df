"""Make a CPU build of torch believe that it has GPUs: real device type "cuda", CPU kernels. Spike for minitrain."""

import atexit, collections, contextlib, importlib.util, json, os, sys, types
import ctypes

assert "torch" not in sys.modules, "the second device must be loaded before torch"
LIBRARY = os.environ["SECOND_DEVICE"]
_lib = os.path.join(importlib.util.find_spec("torch").submodule_search_locations[0], "lib")
for _name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so"):
    if os.path.exists(os.path.join(_lib, _name)):
        ctypes.CDLL(os.path.join(_lib, _name), mode=ctypes.RTLD_GLOBAL)
# Registers the hooks of CUDA, which torch asks for once, while it is imported.
ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

spec = importlib.util.spec_from_file_location("second_device", LIBRARY)
ext = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ext)
assert ext.has_cuda(), "the hooks were asked for before"

C = torch.cuda
for _name, _value in dict(
    _cuda_getCurrentRawStream=lambda i: 0,
    _cuda_getDeviceCount=lambda: ext.device_count(),
    _cuda_getDevice=lambda: ext.current_device(),
    _cuda_setDevice=lambda i: ext.set_device(i),
    _cuda_isCurrentStreamCapturing=lambda: False,
    _cuda_synchronize=lambda: ext.flush(),
    _cuda_exchangeDevice=lambda i: (ext.current_device(), ext.set_device(i))[0],
    _cuda_maybeExchangeDevice=lambda i: (ext.current_device(), ext.set_device(i))[0] if i >= 0 else -1,
    _cuda_isInBadFork=lambda: False,
    _nccl_version=lambda: (2 << 32) | (27 << 16) | 3,
    _nccl_version_suffix=lambda: b"",
).items():
    if not hasattr(torch._C, _name):
        setattr(torch._C, _name, _value)


def index(device=None):
    if device is None:
        return ext.current_device()
    if isinstance(device, int):
        return device if device >= 0 else ext.current_device()
    device = torch.device(device)
    return ext.current_device() if device.index is None else device.index


class Stream(torch.Stream):
    def __new__(cls, device=None, priority=0, **kwargs):
        return (
            super().__new__(cls, torch.device("cuda", index(device)), priority=priority)
            if not kwargs
            else super().__new__(cls, **kwargs)
        )


class Event(torch.Event):
    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        return super().__new__(cls, torch.device("cuda"), enable_timing=enable_timing)


class stream:
    def __init__(self, s):
        self.s = s

    def __enter__(self):
        if self.s is not None:
            self.old = ext.set_stream(self.s.device.index, self.s.stream_id)

    def __exit__(self, *a):
        if self.s is not None:
            ext.set_stream(self.s.device.index, self.old)


class device:
    def __init__(self, d):
        self.i = index(d)

    def __enter__(self):
        self.old = ext.current_device()
        ext.set_device(self.i)

    def __exit__(self, *a):
        ext.set_device(self.old)


syncs = collections.Counter()


def synchronize(device=None):
    ext.flush()


Properties = collections.namedtuple(
    "Properties", "name major minor total_memory multi_processor_count L2_cache_size uuid"
)
state = {"init": False}


def lazy_init():
    state["init"] = C._initialized = True


patches = dict(
    _lazy_init=lazy_init,
    init=lazy_init,
    is_initialized=lambda: state["init"],
    is_available=lambda: ext.device_count() > 0,
    device_count=lambda: ext.device_count(),
    current_device=lambda: ext.current_device(),
    set_device=lambda d: (lazy_init(), ext.set_device(index(d)))[1],
    synchronize=synchronize,
    Stream=Stream,
    Event=Event,
    stream=stream,
    device=device,
    current_stream=lambda device=None: torch.accelerator.current_stream(torch.device("cuda", index(device))),
    default_stream=lambda device=None: Stream(stream_id=0, device_index=index(device), device_type=1),
    memory_allocated=lambda device=None: ext.allocated(index(device)),
    max_memory_allocated=lambda device=None: ext.peak(index(device)),
    memory_reserved=lambda device=None: ext.allocated(index(device)),
    max_memory_reserved=lambda device=None: ext.peak(index(device)),
    reset_peak_memory_stats=lambda device=None: ext.reset_peak(index(device)),
    empty_cache=lambda: None,
    mem_get_info=lambda device=None: (70 << 30, 80 << 30),
    get_device_name=lambda device=None: "H100 (second device)",
    get_device_capability=lambda device=None: (9, 0),
    get_device_properties=lambda device=None: Properties(
        "H100 (second device)", 9, 0, 80 << 30, 132, 50 << 20, "GPU-0"
    ),
    manual_seed=lambda s: ext.default_generator(-1).manual_seed(s),
    manual_seed_all=lambda s: [ext.default_generator(i).manual_seed(s) for i in range(ext.device_count())],
    seed=lambda: ext.default_generator(-1).seed(),
    initial_seed=lambda: ext.default_generator(-1).initial_seed(),
    get_rng_state=lambda device="cuda": ext.default_generator(index(device)).get_state(),
    set_rng_state=lambda s, device="cuda": ext.default_generator(index(device)).set_state(s),
    get_rng_state_all=lambda: [ext.default_generator(i).get_state() for i in range(ext.device_count())],
    is_bf16_supported=lambda *a, **k: True,
    _is_compiled=lambda: True,
    is_current_stream_capturing=lambda: False,
    nvtx=types.SimpleNamespace(range_push=lambda *a: None, range_pop=lambda: None),
    memory_stats=lambda device=None: {
        "allocated_bytes.all.peak": ext.peak(index(device)),
        "allocated_bytes.all.current": ext.allocated(index(device)),
    },
    _is_in_bad_fork=lambda: False,
)
for name, value in patches.items():
    setattr(C, name, value)
torch.backends.cuda.is_built = lambda: True

# Storages of type CUDA, which a CPU build does not make.
import torch.storage, torch._utils

_old_to = torch._utils._to


def _to(self, device, non_blocking=False):
    if self.device == device:
        return self
    if device.type != "cuda" and self.device.type != "cuda":
        return _old_to(self, device, non_blocking)
    new = torch.empty(self.size(), dtype=torch.uint8, device=device).untyped_storage()
    a = torch.empty(0, dtype=torch.uint8, device=new.device).set_(new)
    b = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
    a.copy_(b, non_blocking)
    return new


torch._utils._to = torch.storage._to = _to
_old_resize = torch.UntypedStorage.resize_


def _resize(self, size):
    if self.device.type != "cuda":
        return _old_resize(self, size)
    ext.resize_storage(self, size)
    return self


torch.UntypedStorage.resize_ = _resize
_old_clone = torch.UntypedStorage.clone


def _clone(self):
    if self.device.type != "cuda":
        return _old_clone(self)
    new = torch.empty(self.size(), dtype=torch.uint8, device=self.device).untyped_storage()
    torch.empty(0, dtype=torch.uint8, device=self.device).set_(new).copy_(
        torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
    )
    return new


torch.UntypedStorage.clone = _clone


# NCCL
class _Is(type):
    def __instancecheck__(cls, what):
        return isinstance(what, ext.Nccl) or type.__instancecheck__(cls, what)


class Options(dist.ProcessGroupGloo._Options if hasattr(dist, "ProcessGroupGloo") else object):
    is_high_priority_stream = False

    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self._devices = [dist.ProcessGroupGloo.create_default_device()]


class ProcessGroupNCCL(metaclass=_Is):
    Options = Options

    def __new__(cls, store, rank, size, options):
        gloo = dist.ProcessGroupGloo(store, rank, size, options._timeout)
        return_ = ext.Nccl(gloo)
        kept[id(return_)] = options
        alive.append(return_)
        return return_


kept, alive = {}, []
ext.Nccl.options = property(lambda self: kept.get(id(self)) or self.inner_options)
for where in (c10d, dist):
    where.ProcessGroupNCCL = ProcessGroupNCCL
    where.is_nccl_available = lambda: True
c10d._NCCL_AVAILABLE = True
Options.__module__ = ProcessGroupNCCL.__module__ = "second_device"

pynotes = collections.Counter()


def where():
    f = sys._getframe(2)
    while f is not None:
        n = f.f_code.co_filename
        if "minitrain/" in n and "/comm/" not in n and "/ranks/" not in n:
            return n[n.rfind("minitrain/") :] + ":" + str(f.f_lineno)
        f = f.f_back
    return "?"


_reduce = torch.Tensor.__reduce_ex__


def _noting_reduce(self, proto):
    if self.is_cuda:
        pynotes["pickled or deep-copied device tensor", where()] += 1
    return _reduce(self, proto)


torch.Tensor.__reduce_ex__ = _noting_reduce
INFORMATION = (
    "late copies to pinned memory",
    "0-dim CPU tensor with GPU tensors",
    "CPU index or values with a GPU tensor (a copy and a sync)",
)


def notes():
    noted = {**ext.notes(), **pynotes}
    return collections.Counter(
        {f"{kind}: {text}": count for (kind, text), count in noted.items() if kind not in INFORMATION}
    )


def report():
    if os.environ.get("SECOND_DEVICE_NOTES") and (noted := notes()):
        with open(os.environ["SECOND_DEVICE_NOTES"], "a") as file:
            file.write("".join(f"{text}\n" for text in noted))


atexit.register(report)
_exit = os._exit


def _reporting_exit(code):
    try:
        report()
    finally:
        _exit(code)


os._exit = _reporting_exit

# Kernels that only GPUs have, with their conditions.
_aten = torch.library.Library("aten", "IMPL", "CUDA")


def _scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    def refuse(text):
        raise RuntimeError(text + " (second device, as an H100)")

    if not (a.stride(1) == 1 and a.stride(0) >= a.shape[1]):
        refuse(f"CUBLAS_STATUS_NOT_SUPPORTED: mat_a must be row-major, got strides {a.stride()}")
    if not (b.stride(0) == 1 and b.stride(1) >= b.shape[0]):
        refuse(f"CUBLAS_STATUS_NOT_SUPPORTED: mat_b must be column-major, got strides {b.stride()}")
    if a.shape[1] % 16:
        refuse(f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: {tuple(a.shape)}")
    if b.shape[0] % 16 or b.shape[1] % 16:
        refuse(f"mat2 shape {tuple(b.shape)} must be divisible by 16")
    if a.dtype == b.dtype == torch.float8_e5m2:
        refuse("Multiplication of two Float8_e5m2 matrices is not supported")
    for s in (scale_a, scale_b):
        if not s.is_cuda or s.dtype != torch.float32:
            refuse(f"scales must be float32 on the GPU, got {s.dtype} on {s.device}")
    r = (a.cpu().float() @ b.cpu().float()) * scale_a.cpu() * scale_b.cpu()
    return r.to(out_dtype or a.dtype).to(a.device)


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type (second device)")
    if q.shape[-1] % 8 or q.shape[-1] > 256:
        raise RuntimeError("FlashAttention: head size (second device)")
    for x in (q, k, v):
        if x.stride(-1) != 1:
            raise RuntimeError("Input tensor must have contiguous last dimension (second device)")
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.cpu(), k.cpu(), v.cpu(), dropout_p, is_causal, scale=scale
    )
    empty = torch.empty(0, dtype=torch.int64, device=q.device)
    return (
        out.to(q.device),
        lse.to(q.device).float(),
        empty,
        empty,
        q.shape[2],
        k.shape[2],
        torch.empty(2, dtype=torch.int64, device=q.device),
        empty,
        torch.empty(0, dtype=q.dtype, device=q.device),
    )


def _flash_backward(grad, q, k, v, out, lse, cq, ck, mq, mk, dropout_p, is_causal, seed, offset, *, scale=None):
    for x in (q, k, v):
        if x.stride(-1) != 1:
            raise RuntimeError("Input tensor must have contiguous last dimension (second device)")
    parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad.cpu(), q.cpu(), k.cpu(), v.cpu(), out.cpu(), lse.cpu(), dropout_p, is_causal, scale=scale
    )
    return tuple(p.to(q.device) for p in parts)


_aten.impl("_scaled_mm", _scaled_mm)
_aten.impl("_scaled_dot_product_flash_attention", _flash)
_aten.impl("_scaled_dot_product_flash_attention_backward", _flash_backward)


def _math(q, k, v, bias, causal, scale):
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, bias, 0.0, causal, scale=scale)[0]


def _efficient(q, k, v, bias, lse, dropout_p=0.0, is_causal=False, *, scale=None):
    assert not dropout_p
    cpu = [None if x is None else x.cpu() for x in (q, k, v, bias)]
    out = _math(*cpu, is_causal, scale).transpose(1, 2).contiguous().transpose(1, 2)
    rows = -(-q.shape[2] // 32) * 32 if lse else 0
    return (
        out.to(q.device),
        torch.zeros(q.shape[0], q.shape[1], rows, device=q.device),
        torch.empty((), dtype=torch.int64, device=q.device),
        torch.empty((), dtype=torch.int64, device=q.device),
    )


def _efficient_backward(grad, q, k, v, bias, out, lse, seed, offset, dropout_p, mask, is_causal=False, *, scale=None):
    q, k, v, g = (x.cpu() for x in (q, k, v, grad))
    s = scale or q.shape[-1] ** -0.5
    w = q @ k.transpose(-2, -1) * s
    if bias is not None and bias.numel():
        w = w + bias.cpu()
    if is_causal:
        w = w.masked_fill(torch.ones(w.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    w = w.softmax(-1)
    dw = g @ v.transpose(-2, -1)
    dw = w * (dw - (dw * w).sum(-1, keepdim=True))
    return (
        (dw @ k * s).to(grad.device),
        (dw.transpose(-2, -1) @ q * s).to(grad.device),
        (w.transpose(-2, -1) @ g).to(grad.device),
        None,
    )


_aten.impl("_scaled_dot_product_efficient_attention", _efficient)
_aten.impl("_scaled_dot_product_efficient_attention_backward", _efficient_backward)
import torch.nn.functional as _F

_sdpa = _F.scaled_dot_product_attention


def _gpu_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if query.is_cuda and attn_mask is None and not enable_gqa:
        choice = torch.ops.aten._fused_sdp_choice(query, key, value, None, dropout_p, is_causal)
        if choice == 1:
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[0]
        if choice == 2:
            return torch.ops.aten._scaled_dot_product_efficient_attention(
                query, key, value, None, torch.is_grad_enabled(), 0.0, is_causal, scale=scale
            )[0]
    return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


_F.scaled_dot_product_attention = _gpu_sdpa

# Ranks that share GPUs: gloo, whose collectives take CUDA tensors and whose messages do not.
_register = dist.ProcessGroup._register_backend


def _register_backend(self, device, kind, backend=None):
    if device.type == "cuda" and isinstance(backend, dist.ProcessGroupGloo):
        backend = ext.Nccl(backend, True)
        alive.append(backend)
        kind = dist.ProcessGroup.BackendType.CUSTOM
    return _register(self, device, kind, backend)


dist.ProcessGroup._register_backend = _register_backend
