#include "integrations/python/src/batch_queue_bindings.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integrations/batches/batch_queue.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using batches::BatchKind;
using batches::BatchOutcome;
using batches::BatchQueue;
using batches::BatchQueueOptions;
using batches::BatchRequest;

BatchKind KindOf(const std::string& word) {
  if (word == "set") return BatchKind::kSet;
  if (word == "get") return BatchKind::kGet;
  if (word == "exists") return BatchKind::kExists;
  if (word == "remove") return BatchKind::kRemove;
  Refuse(PyExc_ValueError, fmt::format("kind is \"{}\"; it may be set, get, exists, remove", word));
}

// A batch, and the references that keep its memory in place. Made and destroyed with the GIL.
struct PyBatch {
  BatchRequest request;
  std::unique_ptr<BufferSet> held;
};

PyBatch NamesOf(const std::string& kind, const py::iterable& names, bool hashed) {
  PyBatch batch;
  batch.request.kind = KindOf(kind);
  batch.request.hashed = hashed;
  batch.request.names.reserve(static_cast<size_t>(py::len_hint(names)));
  for (const py::handle name : names) batch.request.names.push_back(TextOf(name, "a key"));
  return batch;
}

void CheckCount(const BatchRequest& request, size_t values) {
  if (values == request.names.size()) return;
  Raise(Error(StatusCode::kInvalidArgument, "{} keys and memory for {}", request.names.size(),
              values));
}

// `memory`: for each name, an object with memory, or a list of them.
void TakeMemory(PyBatch* batch, const py::iterable& memory) {
  BatchRequest& request = batch->request;
  batch->held = std::make_unique<BufferSet>(
      request.kind == BatchKind::kGet ? BufferSet::Access::kWrite : BufferSet::Access::kRead);
  for (const py::handle one : memory) batch->held->AddValue(one);
  CheckCount(request, batch->held->values());
  for (size_t i = 0; i < batch->held->values(); ++i) {
    const auto parts = batch->held->value(i);
    request.parts.insert(request.parts.end(), parts.begin(), parts.end());
    request.part_ends.push_back(request.parts.size());
  }
}

// `parts` pieces a name, by address and bytes; the caller keeps them.
void TakeAddresses(PyBatch* batch, const py::object& addresses, const py::object& sizes,
                   size_t parts) {
  std::vector<int64_t> at;
  std::vector<int64_t> bytes;
  AppendInts(addresses, "addresses", &at);
  AppendInts(sizes, "sizes", &bytes);
  BatchRequest& request = batch->request;
  if (parts == 0 || at.size() != bytes.size() || at.size() != parts * request.names.size()) {
    Raise(Error(StatusCode::kInvalidArgument,
                "{} keys of {} pieces each, {} addresses and {} sizes", request.names.size(), parts,
                at.size(), bytes.size()));
  }
  request.parts.reserve(at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    if (at[i] == 0 || bytes[i] <= 0) {
      Raise(Error(StatusCode::kInvalidArgument, "piece {} is {} bytes at {}", i, bytes[i], at[i]));
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
    request.parts.emplace_back(reinterpret_cast<std::byte*>(at[i]), static_cast<size_t>(bytes[i]));
    if ((i + 1) % parts == 0) request.part_ends.push_back(i + 1);
  }
}

py::list ListOf(const std::vector<bool>& flags) {
  py::list list(flags.size());
  for (size_t i = 0; i < flags.size(); ++i) list[i] = py::bool_(flags[i]);
  return list;
}

// Threading: thread-safe; made, abandoned and destroyed with the GIL.
class PyBatchQueue final {
 public:
  PyBatchQueue(const PyHasher& hasher, size_t threads, size_t lanes, size_t waiting_max,
               const py::object& timeout, const std::string& durability) {
    BatchQueueOptions options{.threads = threads, .lanes = lanes, .waiting_max = waiting_max};
    options.timeout = DurationOf(timeout, options.timeout);
    if (options.timeout == Duration::zero()) {
      Raise(Error(StatusCode::kInvalidArgument, "a timeout of 0: no batch could be done in it"));
    }
    options.durability = DurabilityOf(durability);
    queue_ = ValueOrRaise(BatchQueue::Open(hasher.hasher, options));
  }
  ~PyBatchQueue() {
    if (queue_ == nullptr) return;
    const GilRelease free;
    queue_.reset();  // waits; the memory is released after it, with the GIL
  }
  PyBatchQueue(const PyBatchQueue&) = delete;
  PyBatchQueue& operator=(const PyBatchQueue&) = delete;

  void Attach(const PyClient& client) {
    if (is_attached_) Raise(Error(StatusCode::kFailedPrecondition, "it has a client already"));
    is_attached_ = true;
    Use().Attach(client.Use());
  }
  int event_fd() const { return Use().event_fd(); }

  uint64_t Submit(const std::string& kind, const py::iterable& names, const py::object& memory,
                  bool hashed) {
    PyBatch batch = NamesOf(kind, names, hashed);
    if (!memory.is_none()) TakeMemory(&batch, memory);
    CheckMemory(batch.request);
    return Keep(Use().Submit(std::move(batch.request)), std::move(batch.held));
  }
  uint64_t Fail(size_t names, const std::string& why) const {
    return Use().Fail(names, Error(StatusCode::kInvalidArgument, "{}", why));
  }
  // ([done], error text or None), on the caller's thread.
  py::tuple RunAt(const std::string& kind, const py::iterable& names, const py::object& addresses,
                  const py::object& sizes, size_t parts, bool hashed) {
    PyBatch batch = NamesOf(kind, names, hashed);
    if (!addresses.is_none()) TakeAddresses(&batch, addresses, sizes, parts);
    CheckMemory(batch.request);
    BatchQueue& queue = Use();
    const BatchOutcome outcome = WithoutGil([&] { return queue.Run(batch.request); });
    return py::make_tuple(ListOf(outcome.done), TextOfStatus(outcome.status));
  }
  // [(id, ok, error text or None, [done])]
  py::list Drain() {
    py::list list;
    for (const BatchOutcome& outcome : Use().Drain()) {
      held_.erase(outcome.id);
      list.append(py::make_tuple(outcome.id, outcome.status.ok(), TextOfStatus(outcome.status),
                                 ListOf(outcome.done)));
    }
    return list;
  }
  void Close() {
    if (queue_ == nullptr) return;
    {
      const GilRelease free;
      queue_->Close();
    }
    held_.clear();
  }
  // In a child of fork(): its threads are not there, so that their end would be waited for in vain.
  void Abandon() { (void)queue_.release(); }

 private:
  BatchQueue& Use() const {
    if (queue_ == nullptr) {
      Raise(Error(StatusCode::kUnavailable,
                  "the connector belongs to the process that this one was forked from"));
    }
    return *queue_;
  }
  static void CheckMemory(const BatchRequest& request) {
    const bool moves = request.kind == BatchKind::kSet || request.kind == BatchKind::kGet;
    if (moves) CheckCount(request, request.part_ends.size());
  }
  static py::object TextOfStatus(const Status& status) {
    if (status.ok()) return py::none();
    return py::str(ToString(status));
  }
  uint64_t Keep(uint64_t id, std::unique_ptr<BufferSet> held) {
    if (held != nullptr) held_.emplace(id, std::move(held));
    return id;
  }

  std::map<uint64_t, std::unique_ptr<BufferSet>> held_;  // of batches not drained; the GIL
  std::unique_ptr<BatchQueue> queue_;
  bool is_attached_ = false;
};

}  // namespace

void BindBatchQueue(py::module_& module) {
  py::class_<PyBatchQueue>(module, "BatchQueue")
      .def(py::init<const PyHasher&, size_t, size_t, size_t, const py::object&,
                    const std::string&>(),
           py::arg("hasher"), py::kw_only(), py::arg("threads"), py::arg("lanes"),
           py::arg("waiting_max"), py::arg("timeout"), py::arg("durability"))
      .def("attach", &PyBatchQueue::Attach)
      .def_property_readonly("event_fd", &PyBatchQueue::event_fd)
      .def("submit", &PyBatchQueue::Submit, py::arg("kind"), py::arg("names"),
           py::arg("memory") = py::none(), py::arg("hashed") = false)
      .def("fail", &PyBatchQueue::Fail)
      .def("run_at", &PyBatchQueue::RunAt, py::arg("kind"), py::arg("names"),
           py::arg("addresses") = py::none(), py::arg("sizes") = py::none(), py::arg("parts") = 1,
           py::arg("hashed") = false)
      .def("drain", &PyBatchQueue::Drain)
      .def("close", &PyBatchQueue::Close)
      .def("abandon", &PyBatchQueue::Abandon);
}

}  // namespace ems::python
