// What is finished, and who knows it.
//
// Kernels run at once here, but on a GPU they run some time later, in the order of their stream. So each stream has a
// vector clock: how much of each other stream is finished before its own next operation. The host has one, too, which
// grows when it waits. A use of memory that another stream has written, where neither clock knows of that, is a race.
#include "device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace second_device {

struct Moment {  // in a stream's work; finished for those whose clock of the stream has come to `tick`
  StreamKey stream;
  int64_t tick;
};

static std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
static std::map<StreamKey, Clock> clocks;  // a stream's clock of itself counts what was recorded on it
static Clock host;
static thread_local std::map<DeviceIndex, c10::StreamId> current_streams;

StreamKey key(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
StreamKey current_stream(DeviceIndex device) { return {device, current_streams[device]}; }
StreamKey exchange_stream(StreamKey stream) {
  return {stream.first, std::exchange(current_streams[stream.first], stream.second)};
}
StreamKey new_stream(DeviceIndex device) {
  static std::atomic<c10::StreamId> last{0};  // 0 is the default stream
  return {device, ++last};
}

static void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, tick] : other) clock[stream] = std::max(clock[stream], tick);
}
static Moment next(StreamKey stream) { return {stream, clocks[stream][stream] + 1}; }
static bool knows(const Clock& clock, const Moment& moment) {
  auto found = clock.find(moment.stream);
  return found != clock.end() && found->second >= moment.tick;
}
static bool in_order(StreamKey stream, const Moment& moment) {
  return stream == moment.stream || knows(clocks[stream], moment) || knows(host, moment);
}

Clock record(StreamKey stream) {
  Lock lock(mutex);
  ++clocks[stream][stream];
  return clocks[stream];
}
void wait(StreamKey stream, const Clock& clock) {
  Lock lock(mutex);
  join(clocks[stream], clock);
}

// -- copies that are still under way ------------------------------------------------------------------------

struct LateCopy {
  Moment moment;
  Tensor to, from;
};
struct Lent {
  Moment moment;
  Tensor pinned, before;
  std::string where;
};
static std::vector<LateCopy> late;
static std::vector<Lent> lent;

// Takes out of a list what the host knows to be finished.
template <class Item>
static std::vector<Item> finished(std::vector<Item>& items) {
  std::vector<Item> done, rest;
  for (auto& item : items) (knows(host, item.moment) ? done : rest).push_back(std::move(item));
  items = std::move(rest);
  return done;
}

void host_waits(const Clock& clock) {
  Lock lock(mutex);
  join(host, clock);
  // These copies belong to an operation of before: no mode of Python and no autograd shall see them.
  c10::DispatchKeySet python({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  c10::impl::ExcludeDispatchKeyGuard unseen(python | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  for (auto& copy : finished(late)) copy.to.copy_(copy.from);
  for (auto& loan : finished(lent))
    if (memcmp(loan.pinned.data_ptr(), loan.before.data_ptr(), loan.pinned.nbytes()))
      note("pinned memory changed before its copy to a GPU was waited for, " + loan.where);
}
void synchronize(StreamKey stream) { host_waits(record(stream)); }
void synchronize_all() {
  Lock lock(mutex);
  Clock everything;
  for (auto& [stream, clock] : clocks) everything[stream] = ++clock[stream];
  host_waits(everything);
}

void copy_late(const Tensor& to, const Tensor& from, StreamKey stream) {
  Lock lock(mutex);
  late.push_back({next(stream), to.alias(), from.clone()});
}
void lend(const Tensor& pinned, StreamKey stream) {
  auto line = where();
  Lock lock(mutex);
  lent.push_back({next(stream), pinned.alias(), pinned.clone(), line});
}
// A copy to a GPU reads pinned memory that another copy may still fill.
void before_reading(const Tensor& pinned, StreamKey stream) {
  bool race = false;
  {
    Lock lock(mutex);
    std::vector<LateCopy> rest;
    for (auto& copy : late) {
      if (copy.to.storage().data() != pinned.storage().data()) {
        rest.push_back(std::move(copy));
        continue;
      }
      // Where they are in order on the GPU, the host need not have waited; here the first is done now.
      race = race || !in_order(stream, copy.moment);
      copy.to.copy_(copy.from);
    }
    late = std::move(rest);
  }
  if (race) note("race: pinned memory is copied to a GPU while a copy still fills it, " + where());
}

// -- races between streams ----------------------------------------------------------------------------------

struct Use {
  Moment moment;
  const char *begin, *end;  // the bytes
  bool writes;
  std::string what;
};
struct Memory {
  StreamKey allocated_on;
  std::vector<Use> uses;
  std::set<StreamKey> recorded;  // its freeing waits for these streams
};
static std::map<const void*, Memory> memories;

void allocated(const void* memory, StreamKey stream) {
  Lock lock(mutex);
  if (memory) memories[memory] = {stream, {}, {}};
}

void use(StreamKey stream, const Tensor& tensor, bool writes, const std::string& what) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.numel() || !tensor.storage().data()) return;
  auto begin = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  // Lines of the default stream would cost time with each operation, and are seldom what is wrong.
  Use now{{}, begin, begin + (last + 1) * tensor.element_size(), writes, what};
  if (stream.second) now.what += ", " + where();
  std::optional<Use> racing;
  {
    Lock lock(mutex);
    now.moment = next(stream);
    auto& uses = memories[tensor.storage().data()].uses;
    std::vector<Use> kept;
    for (auto& use : uses) {
      bool overlaps = use.begin < now.end && now.begin < use.end;
      if (overlaps && (use.writes || writes) && !in_order(stream, use.moment)) racing = use;
      bool inside = now.begin <= use.begin && use.end <= now.end;
      bool replaced = inside && (writes || (use.moment.stream == stream && !use.writes));
      if (!replaced && !knows(host, use.moment)) kept.push_back(std::move(use));
    }
    kept.push_back(now);
    uses = std::move(kept);
  }
  if (racing)
    note(std::string("race: ") + what + (writes ? " writes" : " reads") + " memory that another stream " +
         (racing->writes ? "has written" : "still reads") + " (" + racing->what + ") without a wait, " + where());
}

void used_by(const c10::DataPtr& memory, StreamKey stream) {
  Lock lock(mutex);
  if (memory) memories[memory.get()].recorded.insert(stream);
}

void freed(const void* pointer) {
  Lock lock(mutex);
  auto found = memories.find(pointer);
  if (found == memories.end()) return;
  auto& memory = found->second;
  // The next tensor of the stream that it was allocated on gets this memory, at once.
  for (auto& use : memory.uses)
    if (!memory.recorded.count(use.moment.stream) && !in_order(memory.allocated_on, use.moment))
      note("memory is freed that another stream may still use (" + use.what + "), without record_stream");
  memories.erase(found);
}

}  // namespace second_device
