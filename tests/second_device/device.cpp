// Devices, streams, events and random numbers: what torch's core, autograd and torch.accelerator ask for.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <sstream>
#include <vector>

namespace second_device {

// -- which devices ------------------------------------------------------------------------------------------

static std::atomic<pid_t> asked_in{0};
static thread_local DeviceIndex current = 0;        // each thread begins with GPU 0, as with CUDA
static thread_local bool has_chosen = false;        // whether this thread has chosen its GPU
static std::atomic<DeviceIndex> process_device{0};  // what the process has chosen last

static std::string uuid_of(int gpu) {
  char text[37];
  snprintf(text, sizeof text, "5ec00d00-0000-4000-8000-%012d", gpu);
  return text;
}

// The machine's GPUs that CUDA_VISIBLE_DEVICES names, by number or UUID, up to the first that is none.
static std::vector<int> named() {
  const char* count = getenv("SECOND_DEVICE_GPUS");
  const char* names = getenv("CUDA_VISIBLE_DEVICES");
  std::map<std::string, int> known;
  std::vector<int> found;
  for (int gpu = 0; gpu < (count ? atoi(count) : 1); ++gpu) {
    known[std::to_string(gpu)] = known["GPU-" + uuid_of(gpu)] = gpu;
    if (!names) found.push_back(gpu);
  }
  std::istringstream list(names ? names : "");
  for (std::string name; std::getline(list, name, ',') && known.count(name);) found.push_back(known[name]);
  return found;
}

// What they are once a process has asked: from then on they stay, and it must not be forked.
static const std::vector<int>& visible() {
  static const std::vector<int> all = [] {
    asked_in = getpid();
    return named();
  }();
  return all;
}

DeviceIndex gpus() { return DeviceIndex(visible().size()); }
std::string uuid(DeviceIndex device) { return uuid_of(visible().at(device)); }
DeviceIndex current_device() { return current; }
DeviceIndex or_current(DeviceIndex device) { return device < 0 ? current : device; }
bool asked() { return asked_in != 0; }
bool in_bad_fork() { return asked() && asked_in != getpid(); }

void set_device(DeviceIndex device) {
  has_chosen = true;
  process_device = current = touched(device);
}

DeviceIndex touched(DeviceIndex device) {
  TORCH_CHECK(device < gpus(), "CUDA error: invalid device ordinal ", int(device));
  TORCH_CHECK(!in_bad_fork(), "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                              "you must use the 'spawn' start method");
  // A thread that forgets its GPU opens a context on GPU 0, half a gigabyte for each rank.
  if (device == 0 && process_device > 0 && !has_chosen)
    note("a thread that has not called torch.cuda.set_device uses GPU 0, " + where());
  return device;
}

// -- notes --------------------------------------------------------------------------------------------------

static std::mutex notes_mutex;
static std::map<std::string, int64_t> noted;

void note(const std::string& what) {
  std::lock_guard<std::mutex> lock(notes_mutex);
  if (++noted[what] > 1) return;
  // At once, since ranks may be killed. The file belongs to all processes; a short line is appended in one piece.
  if (const char* file = getenv("SECOND_DEVICE_NOTES")) std::ofstream(file, std::ios::app) << what + "\n";
}

std::map<std::string, int64_t> notes() {
  std::lock_guard<std::mutex> lock(notes_mutex);
  return noted;
}

std::string where() {
  if (!Py_IsInitialized()) return "";
  pybind11::gil_scoped_acquire gil;
  auto frame = pybind11::reinterpret_borrow<pybind11::object>((PyObject*)PyEval_GetFrame());
  while (frame && !frame.is_none()) {
    auto file = frame.attr("f_code").attr("co_filename").cast<std::string>();
    bool ours = file.find("/second_device/site/") != std::string::npos;
    bool library = file.find("/torch/") != std::string::npos || file.find("/lib/python") != std::string::npos;
    // minitrain's own messages are never the place that is looked for.
    if (!ours && !library && file.find("/minitrain/comm/") == std::string::npos && file[0] != '<') {
      auto from = file.rfind("/minitrain/");
      return (from == std::string::npos ? file : file.substr(from + 1)) + ":" +
             std::to_string(frame.attr("f_lineno").cast<int>());
    }
    frame = frame.attr("f_back");
  }
  return "";
}

// -- the guard: current device, streams and events ----------------------------------------------------------

struct Event {
  Clock clock;
  std::chrono::steady_clock::time_point time;
};

static c10::Stream as_stream(StreamKey stream) {
  return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, stream.first}, stream.second);
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  DeviceIndex deviceCount() const noexcept override { return gpus(); }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = or_current(device.index()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < gpus(), "CUDA error: invalid device ordinal ", int(device.index()));
    uncheckedSetDevice(device);
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return as_stream(current_stream(or_current(device.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return as_stream({or_current(device.index()), 0}); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return as_stream(new_stream(touched(or_current(device.index()))));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return as_stream(exchange_stream(key(stream))); }
  bool queryStream(const c10::Stream& stream) const override { return synchronizeStream(stream), true; }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(key(stream)); }
  void synchronizeDevice(DeviceIndex) const override { synchronize_all(); }

  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {second_device::record(key(stream)), std::chrono::steady_clock::now()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait(key(stream), static_cast<Event*>(event)->clock);
  }
  bool queryEvent(void* event) const override { return synchronizeEvent(event), true; }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits(static_cast<Event*>(event)->clock);
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    auto time = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(time).count();
  }
};

// -- random numbers -----------------------------------------------------------------------------------------

// A CPU's generator with another seed: the same seed gives other numbers than on the CPU, as on a GPU.
struct GpuGenerator final : public c10::GeneratorImpl {
  static constexpr uint64_t SALT = 0x5bd1e995;
  at::Generator numbers;

  explicit GpuGenerator(DeviceIndex device)
      : GeneratorImpl({c10::kCUDA, device}, c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        numbers(at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom() ^ SALT)) {}
  static c10::DeviceType device_type() { return c10::kCUDA; }
  void set_current_seed(uint64_t seed) override { numbers.set_current_seed(seed ^ SALT); }
  uint64_t current_seed() const override { return numbers.current_seed() ^ SALT; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return current_seed();
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the second device's generators have no offset"); }
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override {
    auto impl = c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state));
    numbers.set_state(Tensor::wrap_tensor_impl(impl));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return numbers.get_state().getIntrusivePtr(); }
  GpuGenerator* clone_impl() const override {
    auto copy = new GpuGenerator(device().index());
    copy->numbers = numbers.clone();
    return copy;
  }
};

at::Generator inner(const at::Generator& generator) {
  TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  return static_cast<GpuGenerator*>(generator.unsafeGetGeneratorImpl())->numbers;
}

static const at::Generator& default_generator_of(DeviceIndex device) {
  static const std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex gpu = 0; gpu < gpus(); ++gpu) {
      made.push_back(at::make_generator<GpuGenerator>(gpu));
      made.back().set_current_seed(c10::default_rng_seed_val);
    }
    return made;
  }();
  return all.at(or_current(device));
}
at::Generator default_generator(DeviceIndex device) { return default_generator_of(device); }

// -- the hooks, which torch asks for once, while it is imported ---------------------------------------------

struct CUDAHooks final : public at::CUDAHooksInterface {  // the registry goes by this name
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpus() > 0; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return gpus(); }
  DeviceIndex deviceCount() const override { return gpus(); }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { set_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  void deviceSynchronize(DeviceIndex) const override { synchronize_all(); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator_of(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<GpuGenerator>(or_current(device));
  }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kCUDA, current}; }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator(); }
};

// -- what torch.cuda's Python calls (see site/second_device/cuda.py) ----------------------------------------

static void set_stream(DeviceIndex device, c10::StreamId id) {
  if (device != current) current = touched(device);
  exchange_stream({device, id});
}

static void bind(pybind11::module& module) {
  namespace py = pybind11;
  c10::SetAllocator(c10::kCUDA, &allocator(), 100);
  module.def("gpus", [] { return int(gpus()); });
  module.def("gpus_named", [] { return int(named().size()); });
  module.def("uuid", [](int device) { return uuid(DeviceIndex(device)); });
  module.def("current_device", [] { return int(current); });
  module.def("set_device", [](int device) { set_device(DeviceIndex(device)); });
  module.def("exchange_device", [](int device) { return int(device < 0 ? -1 : std::exchange(current, device)); });
  module.def("asked", &asked);
  module.def("in_bad_fork", &in_bad_fork);
  module.def("default_generator", [](int device) { return default_generator(DeviceIndex(device)); });
  module.def("current_stream", [](int device) { return current_stream(DeviceIndex(device)).second; });
  module.def("set_stream", [](int device, int64_t id) { set_stream(DeviceIndex(device), id); });
  module.def("synchronize", &synchronize_all, py::call_guard<py::gil_scoped_release>());
  module.def("note", [](const std::string& what) { note(what + ", " + where()); });
  module.def("notes", &notes);
}

}  // namespace second_device

namespace at {
using second_device::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
namespace c10::impl {
using second_device::Guard;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}  // namespace c10::impl

void bind_kernels(pybind11::module&);
void bind_memory(pybind11::module&);
void bind_nccl(pybind11::module&);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  second_device::bind(module);
  bind_kernels(module);
  bind_memory(module);
  bind_nccl(module);
}
