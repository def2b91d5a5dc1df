// Memory: a GPU's, counted as torch's caching allocator counts, and the host's pinned memory.
#include "device.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace second_device {

static constexpr unsigned char GARBAGE = 0xCD;  // new memory is not zero on a GPU
static constexpr size_t UNIT = 512;             // and comes in multiples of this

struct Count {
  std::atomic<int64_t> now{0}, peak{0};
  void add(int64_t bytes) {
    auto total = now += bytes;
    for (auto most = peak.load(); total > most && !peak.compare_exchange_weak(most, total);) {}
  }
};
static std::array<Count, 64> counts;

struct Block {
  void* memory;
  int64_t bytes;
  DeviceIndex device;
  c10::Storage owner;  // of memory that a CPU kernel has made
};

static void* new_memory(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, alignment, bytes) == 0, "CUDA out of memory (the second device has the host's)");
  return memset(memory, GARBAGE, bytes);
}

static void drop(void* context) {
  auto block = static_cast<Block*>(context);
  freed(block->memory);
  counts[block->device].add(-block->bytes);
  if (!block->owner) free(block->memory);
  delete block;
}

static c10::DataPtr block(void* memory, size_t bytes, DeviceIndex device, c10::Storage owner) {
  auto made = new Block{memory, int64_t((bytes + UNIT - 1) / UNIT * UNIT), device, std::move(owner)};
  counts[device].add(made->bytes);
  allocated(memory, current_stream(device));
  return {memory, made, &drop, c10::Device(c10::kCUDA, device)};
}

struct GpuAllocator final : public c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return block(bytes ? new_memory(bytes, UNIT) : nullptr, bytes, touched(current_device()), {});
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override { used_by(memory, key(stream)); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* stat : {&stats.allocated_bytes[0], &stats.reserved_bytes[0]}) {
      stat->current = counts[device].now;
      stat->peak = counts[device].peak;
    }
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { counts[device].peak = counts[device].now.load(); }
};

static std::mutex pinned_mutex;
static std::map<const char*, size_t> pinned;

struct PinnedAllocator final : public c10::Allocator {
  static void drop(void* memory) {
    {
      std::lock_guard<std::mutex> lock(pinned_mutex);
      pinned.erase(static_cast<const char*>(memory));
    }
    free(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? new_memory(bytes, 4096) : nullptr;
    std::lock_guard<std::mutex> lock(pinned_mutex);
    if (memory) pinned[static_cast<char*>(memory)] = bytes;
    return {memory, memory, &drop, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::DeviceAllocator& allocator() {
  static GpuAllocator one;
  return one;
}
c10::Allocator& pinned_allocator() {
  static PinnedAllocator one;
  return one;
}
bool is_pinned(const void* memory) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto after = pinned.upper_bound(static_cast<const char*>(memory));
  return after != pinned.begin() && (--after, memory < after->first + after->second);
}

c10::Storage adopt(const c10::Storage& cpu, DeviceIndex device) {
  auto memory = block(cpu.mutable_data(), cpu.nbytes(), device, cpu);
  return c10::Storage(c10::Storage::use_byte_size_t(), cpu.nbytes(), std::move(memory), &allocator(), true);
}

void resize(const c10::Storage& storage, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  auto memory = allocator().allocate(bytes);
  if (auto kept = std::min(bytes, storage.nbytes())) memcpy(memory.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

}  // namespace second_device

void bind_memory(pybind11::module& module) {
  using namespace second_device;
  module.def("allocated", [](int device) { return counts[device].now.load(); });
  module.def("peak", [](int device) { return counts[device].peak.load(); });
  module.def("reset_peak", [](int device) { allocator().resetPeakStats(DeviceIndex(device)); });
  module.def("resize_storage", [](pybind11::object storage, size_t bytes) {
    resize(torch::createStorage(storage.ptr()), bytes);
  });
}
