// Communication: a backend "nccl", which is gloo between the tensors' twins and refuses what NCCL refuses; and what
// gloo itself does with a GPU's tensors, for ranks that share one.
#include "device.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>

namespace second_device {

using c10d::Backend;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;

// Communication runs on a stream of its own. `wait` lets the current stream wait for it, and not the host. Until then
// its tensors are kept, and no longer: gloo's threads would let go of them a moment later, which peaks would show.
class Pending final : public c10d::Work {
 public:
  struct Job {
    std::vector<WorkPtr> works;
    Tensors kept;
    Clock done;
    std::function<void()> finish;
  };

  Pending(Job job, Tensors outputs, bool host)
      : Work(-1, c10d::OpType::UNKNOWN), job_(std::move(job)), outputs_(std::move(outputs)), host_(host) {}
  ~Pending() override {
    if (!completed(job_)) abandoned().push_back(std::move(job_));
  }

  bool wait(Milliseconds timeout) override {
    for (auto& work : job_.works) work->wait(timeout);
    finish();
    for (auto& [stream, tick] : job_.done) second_device::wait(current_stream(stream.first), job_.done);
    if (host_) host_waits(job_.done);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override {
    if (!completed(job_)) return false;
    finish();
    host_waits(job_.done);
    return true;
  }
  bool isSuccess() const override { return true; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    std::vector<c10::Device> devices{{c10::kCUDA, current_device()}};
    auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(type, devices);
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

  // Nobody waits for these, and gloo may still work on their memory.
  static void forget_abandoned() {
    auto& jobs = abandoned();
    jobs.erase(std::remove_if(jobs.begin(), jobs.end(), &completed), jobs.end());
  }

 private:
  static std::vector<Job>& abandoned() {
    static thread_local std::vector<Job> jobs;
    return jobs;
  }
  static bool completed(const Job& job) {
    return std::all_of(job.works.begin(), job.works.end(), [](const WorkPtr& work) { return work->isCompleted(); });
  }
  void finish() {
    if (job_.finish) job_.finish();
    job_.works.clear();
    job_.kept.clear();
    job_.finish = {};
  }

  Job job_;
  Tensors outputs_;
  bool host_;
};

class Nccl final : public Backend {
 public:
  Nccl(c10::intrusive_ptr<Backend> gloo, c10::intrusive_ptr<c10d::Store> store, bool shared)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), store_(std::move(store)), shared_(shared) {}

  const std::string getBackendName() const override { return shared_ ? "gloo" : "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  bool supportsCoalescing() const override { return !shared_; }
  bool supportsSplitting() const override { return true; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void setTimeout(Milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void eagerConnectSingleDevice(at::Device device) override { connect(device.index()); }

  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override {
    // A group of the same ranks may have had this name, and has left gloo's keys in the store. Each rank counts them.
    auto count = store->add("split by " + std::to_string(getRank()), 1);
    auto own = c10::make_intrusive<c10d::PrefixStore>("split " + std::to_string(count), store);
    auto gloo = gloo_->split(own, ranks, options);
    if (!gloo) return {};
    return c10::make_intrusive<Nccl>(std::move(gloo), own, shared_);
  }

  void startCoalescing() override { coalesced_.emplace(); }
  WorkPtr endCoalescing() override {
    auto works = *std::exchange(coalesced_, std::nullopt);
    return c10::make_intrusive<Pending>(Pending::Job{std::move(works), {}, {}, {}}, Tensors{}, false);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto twins = given(tensors, true, "broadcast");
    return started(gloo_->broadcast(twins, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto twins = given(tensors, true, "all_reduce");
    auto [own, average] = averaged(options, twins);
    return started(gloo_->allreduce(twins, own), tensors, average);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto twins = given(tensors, true, "reduce");
    auto [own, average] = averaged(options, twins);
    return started(gloo_->reduce(twins, own), tensors, average);
  }
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = given(outputs, true, "all_gather");
    auto from = given(inputs, false, "all_gather");
    return started(gloo_->allgather(to, from, options), outputs[0]);
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    auto to = given(output, true, "all_gather_into_tensor");
    auto from = given(input, false, "all_gather_into_tensor");
    return started(gloo_->_allgather_base(to, from, options), {output});
  }
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto to = given(outputs, true, "gather");
    auto from = given(inputs, false, "gather");
    return started(gloo_->gather(to, from, options), outputs.empty() ? Tensors{} : outputs[0]);
  }
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    auto to = given(outputs, true, "scatter");
    auto from = given(inputs, false, "scatter");
    return started(gloo_->scatter(to, from, options), outputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = given(outputs, true, "reduce_scatter");
    auto from = given(inputs, false, "reduce_scatter");
    auto [own, average] = averaged(options, to);
    return started(gloo_->reduce_scatter(to, from, own), outputs, average);
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto to = given(output, true, "reduce_scatter_tensor");
    auto from = given(input, false, "reduce_scatter_tensor");
    auto [own, average] = averaged(options, {to});
    return started(gloo_->_reduce_scatter_base(to, from, own), {output}, average);
  }
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& arriving, std::vector<int64_t>& leaving,
                        const c10d::AllToAllOptions& options) override {
    auto to = given(output, true, "all_to_all_single");
    auto from = given(input, false, "all_to_all_single");
    return started(gloo_->alltoall_base(to, from, arriving, leaving, options), {output});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    auto to = given(outputs, true, "all_to_all");
    auto from = given(inputs, false, "all_to_all");
    // gloo has only the form with one tensor.
    at::NoGradGuard no_grad;
    std::vector<int64_t> arriving, leaving;
    for (auto& tensor : to) arriving.push_back(tensor.numel());
    for (auto& tensor : from) leaving.push_back(tensor.numel());
    for (auto& tensor : from) tensor = tensor.reshape(-1);
    auto sent = at::cat(from);
    auto received = at::empty({c10::sum_integers(arriving)}, sent.options());
    auto work = gloo_->alltoall_base(received, sent, arriving, leaving, options);
    return started(work, outputs, [to, received, arriving] {
      at::NoGradGuard no_grad;
      auto parts = received.split_with_sizes(arriving);
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(parts[i].view_as(to[i]));
    });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    std::vector<WorkPtr> works;
    for (auto& tensor : tensors) {
      Tensors one{tensor};
      works.push_back(allreduce(one, options));
    }
    return together(works, tensors);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < outputs.size(); ++i) works.push_back(_allgather_base(outputs[i], inputs[i], options));
    return together(works, outputs);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < outputs.size(); ++i) works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
    return together(works, outputs);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    TORCH_CHECK(shared_ || coalesced_ || to != getRank(), "Invalid destination rank: a send to itself, alone");
    auto twins = given(tensors, false, "send");
    return started(gloo_->send(twins, to, shared_ ? tag : 0), tensors);  // NCCL has no tags
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto twins = given(tensors, true, "recv");
    return started(gloo_->recv(twins, from, shared_ ? tag : 0), tensors);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    TORCH_CHECK(shared_, "Backend nccl does not support recvAnysource");
    auto twins = given(tensors, true, "recv");
    return gloo_->recvAnysource(twins, tag);  // a CPU's tensor: gloo's work says whose it was
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    synchronize(current_stream(current_device()));
    return gloo_->barrier();
  }

 private:
  // NCCL refuses two ranks on one GPU, when they connect.
  void connect(DeviceIndex device) {
    if (std::exchange(connected_, true) || shared_) return;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    auto text = std::string(host) + " " + uuid(device);
    store_->set("GPU of " + std::to_string(getRank()), std::vector<uint8_t>(text.begin(), text.end()));
    std::map<std::string, int> seen;
    for (int rank = 0; rank < getSize(); ++rank) {
      auto bytes = store_->get("GPU of " + std::to_string(rank));
      auto [first, is_new] = seen.emplace(std::string(bytes.begin(), bytes.end()), rank);
      TORCH_CHECK(is_new, "ncclInvalidUsage: Duplicate GPU detected : rank ", first->second, " and rank ", rank,
                  " both on ", first->first);
    }
  }

  Tensor given(const Tensor& tensor, bool writes, const std::string& verb) {
    if (shared_) {
      bool message = verb == "send" || verb == "recv";
      TORCH_CHECK(!message || !tensor.is_cuda(), "gloo: ", verb, " of a CUDA tensor");
    } else {
      static const std::set<at::ScalarType> dtypes{
          at::kByte,   at::kChar, at::kBool,     at::kInt,           at::kLong,        at::kFloat,
          at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kComplexFloat,
          at::kComplexDouble};
      TORCH_CHECK(tensor.is_cuda() && tensor.layout() == at::kStrided, "Tensors must be CUDA and dense (", verb, ")");
      TORCH_CHECK(tensor.is_contiguous(tensor.suggest_memory_format()), "Tensors must be contiguous (", verb, ")");
      TORCH_CHECK(dtypes.count(tensor.scalar_type()), "Unconvertible NCCL type ", tensor.scalar_type());
      auto bound = getBoundDeviceId();
      TORCH_CHECK(!bound || *bound == tensor.device(), "Attempt to perform collective on tensor on ", tensor.device(),
                  ", not on ", bound.value_or(c10::kCPU), ", the device passed to init_process_group (", verb, ")");
      if (verb != "send" && verb != "recv") connect(tensor.device().index());
    }
    if (!tensor.is_cuda()) return tensor;
    auto device = tensor.device().index();
    if (!stream_) stream_ = new_stream(device);
    second_device::wait(*stream_, record(current_stream(device)));
    use(*stream_, tensor, writes, verb);
    used_by(tensor.storage().data_ptr(), *stream_);  // torch keeps what is communicated
    kept_.push_back(tensor);
    return twin(tensor, false);
  }
  template <class List>
  std::vector<List> given(const std::vector<List>& tensors, bool writes, const std::string& verb) {
    std::vector<List> twins;
    for (auto& tensor : tensors) twins.push_back(given(tensor, writes, verb));
    return twins;
  }

  // gloo cannot average, NCCL can.
  template <class Options>
  std::pair<Options, std::function<void()>> averaged(Options options, Tensors outputs) {
    if (options.reduceOp != c10d::ReduceOp::AVG) return {options, {}};
    options.reduceOp = c10d::ReduceOp::SUM;
    return {options, [outputs, ranks = getSize()]() mutable {
              at::NoGradGuard no_grad;
              for (auto& tensor : outputs) tensor.div_(ranks);
            }};
  }

  WorkPtr started(WorkPtr work, Tensors outputs, std::function<void()> finish = {}) {
    return together({std::move(work)}, std::move(outputs), std::move(finish));
  }
  WorkPtr together(std::vector<WorkPtr> works, Tensors outputs, std::function<void()> finish = {}) {
    const char* blocking = getenv("TORCH_NCCL_BLOCKING_WAIT");
    bool host = shared_ || (blocking && std::string(blocking) == "1");
    Pending::forget_abandoned();
    auto done = stream_ ? record(*stream_) : Clock{};
    Pending::Job job{std::move(works), std::exchange(kept_, {}), std::move(done), std::move(finish)};
    if (coalesced_) outputs.clear();  // only the whole is waited for
    WorkPtr work = c10::make_intrusive<Pending>(std::move(job), std::move(outputs), host);
    if (coalesced_) coalesced_->push_back(work);
    return work;
  }

  c10::intrusive_ptr<Backend> gloo_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool shared_, connected_ = false;
  std::optional<std::vector<WorkPtr>> coalesced_;
  std::optional<StreamKey> stream_;
  inline static thread_local Tensors kept_;  // of the communication that this thread is about to start
};

// DistributedDataParallel times its backward with one for each type of device.
struct GpuTimer final : public c10d::Timer {
  explicit GpuTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimeRef(start), to = getTimeRef(end);
    return from < 0 || to < 0 ? std::nullopt : std::optional<int64_t>(to - from);
  }
};

}  // namespace second_device

namespace c10d {
using second_device::GpuTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, GpuTimer)
}  // namespace c10d

void bind_nccl(pybind11::module& module) {
  namespace py = pybind11;
  using second_device::Nccl;
  using Gloo = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  py::class_<Nccl, c10d::Backend, c10::intrusive_ptr<Nccl>>(module, "Nccl")
      .def(py::init([](Gloo gloo, StorePtr store, bool shared) {
        return c10::make_intrusive<Nccl>(gloo, store, shared);
      }))
      .def_property_readonly("gloo_options", &Nccl::getBackendOptions)
      .def("perform_nocolor_split", [](Nccl&, c10::Device) {});
}
