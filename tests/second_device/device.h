// What the parts of the second device tell one another.
//
// torch asks a device for four things: which devices, streams and events there are (device.cpp), memory (memory.cpp),
// a kernel for each operation (kernels.cpp), and communication (nccl.cpp). Here memory is the host's and a kernel is
// the CPU's, which runs at once. What makes the device one of its own is order.cpp: it knows what a GPU might not have
// finished yet.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <map>
#include <string>
#include <utility>

namespace second_device {

using at::Tensor;
using c10::DeviceIndex;

// device.cpp: devices
DeviceIndex gpus();  // how many this process sees
std::string uuid(DeviceIndex device);
DeviceIndex current_device();
DeviceIndex or_current(DeviceIndex device);  // -1 is the current one
void set_device(DeviceIndex device);         // as a program chooses one, for this thread
DeviceIndex touched(DeviceIndex device);     // for use: notes a thread that has forgotten to choose
bool asked();                                // whether anyone has asked for GPUs yet
bool in_bad_fork();                          // whether that was before a fork, which CUDA does not survive
at::Generator default_generator(DeviceIndex device);
at::Generator inner(const at::Generator& generator);  // the CPU's generator that makes a GPU's numbers

// device.cpp: notes, on what is no error here and wrong on a GPU
void note(const std::string& what);
std::string where();  // the line of Python, outside torch, that is running
std::map<std::string, int64_t> notes();

// order.cpp: what is known to be finished
using StreamKey = std::pair<DeviceIndex, c10::StreamId>;
using Clock = std::map<StreamKey, int64_t>;
StreamKey key(const c10::Stream& stream);
StreamKey current_stream(DeviceIndex device);
StreamKey exchange_stream(StreamKey stream);
StreamKey new_stream(DeviceIndex device);
Clock record(StreamKey stream);                  // everything on the stream up to here
void wait(StreamKey stream, const Clock& clock);  // the stream's next operations wait for it
void host_waits(const Clock& clock);
void synchronize(StreamKey stream);
void synchronize_all();
void copy_late(const Tensor& to, const Tensor& from, StreamKey stream);  // once the host has waited for the stream
void lend(const Tensor& pinned, StreamKey stream);  // must not change until the host has waited for the stream
void before_reading(const Tensor& pinned, StreamKey stream);
void use(StreamKey stream, const Tensor& tensor, bool writes, const std::string& what);
void used_by(const c10::DataPtr& memory, StreamKey stream);  // record_stream
void allocated(const void* memory, StreamKey stream);
void freed(const void* memory);

// memory.cpp
c10::DeviceAllocator& allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* memory);
c10::Storage adopt(const c10::Storage& cpu, DeviceIndex device);  // what a CPU kernel has made is the GPU's now
void resize(const c10::Storage& storage, size_t bytes);

// kernels.cpp
Tensor twin(const Tensor& tensor, bool owns = true);  // a GPU's tensor as one of the CPU, in the same memory

}  // namespace second_device
