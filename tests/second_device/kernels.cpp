// Kernels. Nearly every operation of a GPU is computed by the CPU's kernel, on CPU tensors that share the GPU tensors'
// memory. Operations that make memory, or have to do with both memories, have kernels of their own.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cstring>
#include <set>
#include <vector>

namespace second_device {

using c10::IValue;

// -- twins --------------------------------------------------------------------------------------------------

static Tensor like(const Tensor& tensor, c10::Storage storage, c10::DispatchKey where) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(where), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

Tensor twin(const Tensor& tensor, bool owns) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  TORCH_CHECK(tensor.layout() == at::kStrided, "the second device has no sparse tensors");
  auto storage = tensor.storage();
  auto owner = owns ? new c10::Storage(storage) : nullptr;  // the memory lives as long as both
  auto release = [](void* owner) { delete static_cast<c10::Storage*>(owner); };
  c10::DataPtr memory(storage.mutable_data(), owner, release, c10::kCPU);
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), c10::GetCPUAllocator(), true);
  auto made = like(tensor, std::move(same), c10::DispatchKey::CPU);
  // 2 in `x + 2`, which leaves the type of x as it is
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// The tensors of one operation, and their twins.
class Twins {
 public:
  explicit Twins(DeviceIndex device) : device_(device) {}

  Tensor of(const Tensor& gpu) {
    if (!gpu.defined() || !gpu.is_cuda()) return gpu;
    for (auto& [known, cpu] : pairs_)
      if (known.is_same(gpu)) return cpu;
    return pairs_.emplace_back(gpu, twin(gpu)).second;
  }

  // The GPU's tensor for a result: an argument that was changed, a view of one, or what the kernel has made.
  Tensor back(const Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [gpu, cpu] : pairs_)
      if (cpu.is_same(result)) return gpu;
    for (auto& [gpu, cpu] : pairs_)
      if (cpu.storage().is_alias_of(result.storage())) return like(result, gpu.storage(), c10::DispatchKey::CUDA);
    return like(result, adopt(result.storage(), device_), c10::DispatchKey::CUDA);
  }

  // A kernel may have resized an output, `out=`.
  void settle() {
    for (auto& [gpu, cpu] : pairs_) {
      if (cpu.storage().data() != gpu.storage().data()) {
        resize(gpu.storage(), cpu.storage().nbytes());
        memcpy(gpu.storage().mutable_data(), cpu.storage().data(), cpu.storage().nbytes());
      }
      if (cpu.sizes() != gpu.sizes() || cpu.strides() != gpu.strides())
        gpu.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

 private:
  DeviceIndex device_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;
};

// Calls `change` with each tensor of an argument or a result, and gives the value with what it returns.
template <class Change>
static IValue each_tensor(const IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// -- what a GPU refuses, and when it makes the host wait ----------------------------------------------------

using Names = std::set<std::string>;
static const Names TAKE_CPU_TENSORS{"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
                                    "aten::_unsafe_index_put", "aten::_index_put_impl_", "aten::is_set_to",
                                    "aten::_foreach_copy_"};  // indices, which are copied to the GPU
static const Names PRODUCTS{"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm", "aten::baddbmm_",
                            "aten::mv", "aten::addmv", "aten::dot"};
static const Names WAIT{"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select",
                        "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave",
                        "aten::bincount"};  // their results, or their sizes, are needed on the host

static DeviceIndex place_of(const std::string& name, c10::ArrayRef<IValue> arguments) {
  DeviceIndex device = -1, wanted = -1;
  std::vector<Tensor> cpu;
  for (const auto& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().is_cuda()) wanted = or_current(argument.toDevice().index());
    each_tensor(argument, [&](const Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda()) {
        auto index = tensor.device().index();
        TORCH_CHECK(device < 0 || device == index, "Expected all tensors to be on the same device, but found cuda:",
                    int(device), " and cuda:", int(index), " in ", name);
        device = index;
      } else if (tensor.defined() && tensor.dim()) {  // a number may be anywhere
        cpu.push_back(tensor);
      }
      return tensor;
    });
  }
  device = device >= 0 ? device : or_current(wanted);
  for (auto& tensor : cpu)
    TORCH_CHECK(TAKE_CPU_TENSORS.count(name), "Expected all tensors to be on the same device, but found cuda:",
                int(device), " and cpu (", tensor.sizes(), ") in ", name);
  return device;
}

static void refuse_integers(const std::string& name, c10::ArrayRef<IValue> arguments) {
  for (const auto& argument : arguments)
    TORCH_CHECK(!argument.isTensor() || !argument.toTensor().defined() ||
                    at::isFloatingType(argument.toTensor().scalar_type()) || argument.toTensor().is_complex(),
                "\"", name, "_cuda\" not implemented for '", argument.toTensor().scalar_type(), "'");
}

// -- the kernel of all operations ---------------------------------------------------------------------------

// Kernels without an argument for a generator, such as dropout's, take the CPU's default one, which is lent a state.
class DefaultNumbers {
 public:
  DefaultNumbers(bool needed, DeviceIndex device) {
    if (!needed) return;
    gpu_ = inner(default_generator(device));
    cpu_ = at::globalContext().defaultGenerator(c10::kCPU);
    before_ = cpu_.get_state();
    cpu_.set_state(gpu_.get_state());
  }
  ~DefaultNumbers() {
    if (!cpu_.defined()) return;
    gpu_.set_state(cpu_.get_state());
    cpu_.set_state(before_);
  }

 private:
  at::Generator gpu_, cpu_;
  Tensor before_;
};

static void compute_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  auto first = stack->size() - schema.arguments().size();
  auto arguments = c10::ArrayRef<IValue>(*stack).slice(first);
  auto device = place_of(name, arguments);
  auto stream = current_stream(device);
  if (PRODUCTS.count(name)) refuse_integers(name, arguments);
  if (WAIT.count(name)) synchronize(stream);

  Twins twins(device);
  bool generator = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& value = (*stack)[first + i];
    const auto& argument = schema.arguments()[i];
    bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    bool takes_generator = argument.type()->str().find("Generator") != std::string::npos;
    if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::kCPU);
    } else if (takes_generator) {
      value = inner(value.isNone() ? default_generator(device) : value.toGenerator());
      generator = true;
    } else {
      value = each_tensor(value, [&](const Tensor& tensor) {
        use(stream, tensor, writes, name);
        return twins.of(tensor);
      });
    }
  }
  {
    DefaultNumbers numbers(!generator && op.hasTag(at::Tag::nondeterministic_seeded), device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  twins.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    (*stack)[i] = each_tensor((*stack)[i], [&](const Tensor& result) {
      auto tensor = twins.back(result);
      if (!schema.returns()[0].alias_info()) use(stream, tensor, true, name);
      return tensor;
    });
}

// -- kernels that make memory -------------------------------------------------------------------------------

using Size = c10::IntArrayRef;
template <class T>
using Maybe = std::optional<T>;
static const c10::DispatchKeySet GPU(c10::DispatchKey::CUDA);

static c10::Device chosen(Maybe<c10::Device> device, Maybe<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return {c10::kCUDA, or_current(device ? device->index() : -1)};
}

static Tensor empty(Size size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<c10::Device> device,
                    Maybe<bool> pin, Maybe<at::MemoryFormat> format) {
  c10::DeviceGuard guard(chosen(device, pin));
  return at::detail::empty_generic(size, &allocator(), GPU, c10::dtype_or_default(dtype), format);
}

static Tensor empty_strided(Size size, Size stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>,
                            Maybe<c10::Device> device, Maybe<bool> pin) {
  c10::DeviceGuard guard(chosen(device, pin));
  return at::detail::empty_strided_generic(size, stride, &allocator(), GPU, c10::dtype_or_default(dtype));
}

static std::vector<int64_t> row_major(Size size) {
  std::vector<int64_t> strides(size.size(), 1);
  for (int64_t dim = int64_t(size.size()) - 2; dim >= 0; --dim)
    strides[dim] = strides[dim + 1] * std::max<int64_t>(size[dim + 1], 1);
  return strides;
}

static const Tensor& resize_(const Tensor& self, Size size, Maybe<at::MemoryFormat>) {
  int64_t elements = c10::multiply_integers(size);
  size_t bytes = elements ? (elements + self.storage_offset()) * self.itemsize() : 0;
  if (bytes > self.storage().nbytes()) resize(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, row_major(size));
  return self;
}

static Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, Size size, Size stride) {
  TORCH_CHECK(source.device().is_cuda(), "Attempted to set the storage of a tensor on device ", self.device(),
              " to a storage on different device ", source.device());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  auto strides = stride.empty() ? row_major(size) : stride.vec();
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides, offset);
  return self;
}

static Tensor& set_nothing(Tensor& self) {
  c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

static void record_stream(Tensor& self, c10::Stream stream) { used_by(self.storage().data_ptr(), key(stream)); }

// -- copies, between GPUs and between memories --------------------------------------------------------------

static void copy_to_cpu(Tensor& to, const Tensor& from, StreamKey stream, bool non_blocking) {
  if (non_blocking && is_pinned(to.storage().data())) return copy_late(to, twin(from), stream);
  synchronize(stream);  // pageable memory: CUDA waits, whatever was asked for
  to.copy_(twin(from));
}

static void copy_from_cpu(Tensor& to, const Tensor& from, StreamKey stream, bool non_blocking) {
  bool pinned = from.numel() && is_pinned(from.storage().data());
  if (pinned) before_reading(from, stream);
  twin(to).copy_(from);
  if (!non_blocking) return synchronize(stream);
  if (pinned && from.is_contiguous()) lend(from, stream);
  if (!pinned && from.dim())
    note("a copy with non_blocking=True from memory that is not pinned, for which the host waits, " + where());
}

static Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || !self.numel()) return self;
  auto device = self.is_cuda() ? self.device().index() : source.device().index();
  auto stream = current_stream(device);
  if (self.is_cuda() && source.is_cuda() && self.device() != source.device()) {
    // As torch does it: on the source's stream, and each stream waits for the other.
    auto other = current_stream(source.device().index());
    wait(other, record(stream));
    use(other, source, false, "copy_");
    use(other, self, true, "copy_");
    wait(stream, record(other));
  } else {
    use(stream, source, false, "copy_");
    use(stream, self, true, "copy_");
  }
  if (self.is_cpu())
    copy_to_cpu(self, source, stream, non_blocking);
  else if (source.is_cpu())
    copy_from_cpu(self, source, stream, non_blocking);
  else
    twin(self).copy_(twin(source));
  return self;
}

// -- kernels written in Python, see site/second_device/kernels.py -------------------------------------------

// A tensor of a GPU for such a kernel, and the GPU's tensor of its result.
static Tensor lent_to_python(const Tensor& tensor) {
  use(current_stream(tensor.device().index()), tensor, false, "a kernel");
  return twin(tensor);
}
static Tensor made_by_python(const Tensor& tensor, int device) {
  auto made = like(tensor, adopt(tensor.storage(), DeviceIndex(device)), c10::DispatchKey::CUDA);
  use(current_stream(DeviceIndex(device)), made, true, "a kernel");
  return made;
}

static int64_t choose_attention(const Tensor& q, const Tensor&, const Tensor&, const Maybe<Tensor>& mask,
                                double dropout, bool, Maybe<double>, bool gqa) {
  enum { MATH = 0, FLASH = 1, EFFICIENT = 2 };
  auto dtype = q.scalar_type();
  bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  bool masked = mask && mask->defined();
  // Dropout is left to the form written out, whose numbers can be drawn on the CPU.
  if (dropout > 0 || !(half || dtype == at::kFloat)) return MATH;
  if (half && !masked && q.size(-1) % 8 == 0 && q.size(-1) <= 256) return FLASH;
  return gqa || masked ? MATH : EFFICIENT;
}

}  // namespace second_device

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &second_device::choose_attention)
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&second_device::compute_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  using namespace second_device;
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize_);
  library.impl("set_", &set_nothing);
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("copy_", &copy_);
  library.impl("record_stream", &record_stream);
  library.impl("is_pinned", [](const Tensor&, Maybe<c10::Device>) { return false; });
  library.impl("_fused_sdp_choice", &choose_attention);
}

void bind_kernels(pybind11::module& module) {
  module.def("twin", &second_device::lent_to_python);
  module.def("adopt", &second_device::made_by_python);
}
