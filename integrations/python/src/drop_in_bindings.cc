#include "integrations/python/src/drop_in_bindings.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "integrations/batches/drop_in_pool.h"
#include "integrations/batches/memory_probe.h"
#include "integrations/batches/slot_runs.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/closable.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/drop_in_batches.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using batches::CheckPages;
using batches::CheckRun;
using batches::DropInBatch;
using batches::DropInOperation;
using batches::DropInOutcome;
using batches::DropInPool;
using batches::DropInPoolOptions;

// Its end waits for what runs, also while others hold the pool.
class PyPool final : public Closable<DropInPool> {
 public:
  using Closable::Closable;
  // nullptr when closed: a pool that is not there.
  std::shared_ptr<DropInPool> Use() const { return held_; }
  void Close() {
    std::shared_ptr<DropInPool> pool = held_;
    Closable::Close();
    const GilRelease free;
    if (pool != nullptr) pool->Close();
    pool.reset();
  }
};

py::tuple Answer(const DropInOutcome& outcome) {
  return py::make_tuple(outcome.success, outcome.total,
                        std::string(outcome.status.ok() ? "" : CodeName(outcome.status.code())),
                        std::string(Message(outcome.status)));
}

py::tuple Run(const PyPool& self, const DropInBatch& batch) {
  DropInOutcome outcome{0, batch.blocks(), OkStatus()};
  if (std::shared_ptr<DropInPool> pool = self.Use(); pool != nullptr) {
    const GilRelease free;
    outcome = pool->Run(batch);
    pool.reset();
  }
  return Answer(outcome);
}

std::shared_ptr<DropInOperation> Submit(const PyPool& self, DropInBatch batch) {
  const std::shared_ptr<DropInPool> pool = self.Use();
  if (pool == nullptr) return DropInOperation::Missed(batch.blocks());
  return pool->Submit(std::move(batch));
}

template <auto Do>
auto WithSlots(const PyPool& self, bool is_load, PyLayouts& layouts, const py::object& slots,
               const py::object& hashes, const py::object& offsets, const py::object& chunk_descs,
               int64_t timeout_ms, bool local_only) {
  return Do(self, SlotBatch(is_load, layouts, slots, hashes, offsets, chunk_descs, timeout_ms,
                            local_only));
}

template <auto Do>
auto WithPointers(const PyPool& self, bool is_load, const py::list& keys, const py::list& values,
                  int64_t timeout_ms, bool local_only) {
  return Do(self, PointerBatch(is_load, keys, values, timeout_ms, local_only));
}

// A batch of whole pages of tensors on a device: host memory stands for some of its blocks at a
// time. Threading: immutable.
class PyStagedBatch final {
 public:
  PyStagedBatch(DropInBatch batch, size_t number) : batch_(std::move(batch)), number_(number) {}
  size_t blocks() const { return batch_.blocks(); }
  size_t layout_number() const { return number_; }  // in the list of layouts
  // The pages of blocks [begin, end) in a group, block by block.
  std::vector<uint64_t> Pages(uint32_t group, size_t begin, size_t end) const {
    std::vector<uint64_t> pages;
    const uint64_t tokens = batch_.layout->block_tokens(group);
    for (size_t i = RunsBefore(group, begin); i < RunsBefore(group, end); ++i) {
      const context::SlotRun& run = batch_.runs[i];
      for (uint64_t at = 0; at < run.tokens; at += tokens) {
        pages.push_back((run.start_slot + at) / tokens);
      }
    }
    return pages;
  }
  // As many of blocks [begin, end) as `host` has pages for: the end of those.
  size_t EndOf(const PyLayout& host, size_t begin, size_t end) const {
    std::vector<uint64_t> used(batch_.layout->groups());
    for (size_t block = begin; block < end; ++block) {
      for (uint32_t group = 0; group < used.size(); ++group) {
        for (size_t i = RunsBefore(group, block); i < RunsBefore(group, block + 1); ++i) {
          used[group] += batch_.runs[i].tokens;
        }
        if (used[group] > host.layout->slots(group)) return block;
      }
    }
    return end;
  }
  // Moves blocks [begin, end) between the pool and `host`, whose pages 0, 1, … of each group stand
  // for Pages(group, begin, end). seal_room: as DropInBatch's.
  py::tuple Run(const PyPool& pool, const PyLayout& host, size_t begin, size_t end,
                int64_t timeout_ms, bool seal_room) const {
    DropInBatch turn;
    turn.seal_room = seal_room;
    SetOptions(batch_.is_load, timeout_ms, batch_.local_only, &turn);
    turn.hashes.assign(batch_.hashes.begin() + static_cast<ptrdiff_t>(begin),
                       batch_.hashes.begin() + static_cast<ptrdiff_t>(end));
    turn.layout = host.layout;
    for (uint32_t group = 0; group < batch_.layout->groups(); ++group) {
      uint64_t next = 0;
      for (size_t block = begin; block < end; ++block) {
        for (size_t i = RunsBefore(group, block); i < RunsBefore(group, block + 1); ++i) {
          turn.runs.push_back({next, batch_.runs[i].tokens});
          next += batch_.runs[i].tokens;
        }
        turn.run_ends.push_back(turn.runs.size());
      }
      const Status fits = CheckRun(host.layout->slots(group), 0, static_cast<int64_t>(next));
      if (!fits.ok()) Refuse(PyExc_ValueError, std::string(Message(fits)));
    }
    return python::Run(pool, turn);
  }

 private:
  // Of all groups before, and of the blocks before `block` in this one.
  size_t RunsBefore(uint32_t group, size_t block) const {
    const size_t at = group * batch_.blocks() + block;
    return at == 0 ? 0 : batch_.run_ends[at - 1];
  }

  const DropInBatch batch_;
  const size_t number_;
};

PyStagedBatch Stage(bool is_load, PyLayouts& layouts, const py::object& slots,
                    const py::object& hashes, const py::object& offsets,
                    const py::object& chunk_descs, bool local_only) {
  DropInBatch batch =
      SlotBatch(is_load, layouts, slots, hashes, offsets, chunk_descs, 0, local_only);
  const Status status =
      CheckPages(*batch.layout, batch.blocks(), batch.runs, batch.run_ends, /*one_each=*/false);
  if (!status.ok()) {
    Refuse(PyExc_ValueError,
           fmt::format("{}; tensors on a device are moved in whole pages", Message(status)));
  }
  const size_t number = layouts.NumberOf(batch.layout);
  return {std::move(batch), number};
}

bool IsMapped(uint64_t address, uint64_t bytes) {
  batches::MemoryProbe probe(batches::MemoryUse::kRead);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
  return probe.Add({reinterpret_cast<std::byte*>(address), bytes}).ok() && probe.Finish().ok();
}

py::tuple Exists(const PyPool& self, const py::object& hashes, int64_t timeout_ms,
                 bool local_only) {
  DropInBatch batch;
  SetOptions(true, timeout_ms, local_only, &batch);
  batch.hashes = HashesOf(hashes);
  DropInOutcome outcome{0, batch.blocks(), OkStatus()};
  if (std::shared_ptr<DropInPool> pool = self.Use(); pool != nullptr) {
    const GilRelease free;
    outcome = pool->Exists(batch);
    pool.reset();
  }
  return Answer(outcome);
}

DropInPoolOptions OptionsOf(const Text& controller, const Text& name_space, const py::dict& domain,
                            const py::object& start_timeout) {
  DropInPoolOptions options;
  options.controller = controller.text;
  options.name_space = name_space.text;
  options.start_timeout = DurationOf(start_timeout, options.start_timeout);
  if (domain.empty()) return options;
  const auto text = [&](const char* name) { return TextOf(domain[name], name); };
  const auto rank = [&](const char* name) {
    return static_cast<uint32_t>(CountOf(domain[name], name, UINT32_MAX));
  };
  options.domain.model = text("model");
  options.domain.tp_rank = rank("tp_rank");
  options.domain.tp_size = rank("tp_size");
  options.domain.pp_rank = rank("pp_rank");
  options.domain.pp_size = rank("pp_size");
  options.domain.cache_salt = text("cache_salt");
  options.domain.custom = domain["custom"].cast<std::vector<std::pair<std::string, std::string>>>();
  return options;
}

PyPool Open(const Text& controller, const Text& name_space, const py::dict& domain,
            const py::object& start_timeout, uint64_t staging_bytes) {
  DropInPoolOptions options = OptionsOf(controller, name_space, domain, start_timeout);
  options.staging_bytes = staging_bytes;
  Result<std::unique_ptr<DropInPool>> pool = WithoutGil([&] { return DropInPool::Open(options); });
  return PyPool(ValueOrRaise(std::move(pool)));
}

// None when the pool is closed.
py::object Allocate(const PyPool& self, uint64_t bytes) {
  std::shared_ptr<DropInPool> pool = self.Use();
  if (pool == nullptr) return py::none();
  Result<StagingBuffer> buffer = WithoutGil([&] {
    Result<StagingBuffer> made = pool->AllocateBuffer(bytes);
    pool.reset();
    return made;
  });
  return StagingOf(ValueOrRaise(std::move(buffer)));
}

bool Probe(const Text& controller, const Text& name_space) {
  const DropInPoolOptions options = OptionsOf(controller, name_space, py::dict(), py::none());
  const GilRelease free;
  return DropInPool::Probe(options);
}

bool Healthy(const PyPool& self) {
  std::shared_ptr<DropInPool> pool = self.Use();
  if (pool == nullptr) return false;
  const GilRelease free;
  const bool healthy = pool->Healthy();
  pool.reset();
  return healthy;
}

}  // namespace

void BindDropIn(py::module_& module) {
  py::class_<DropInOperation, std::shared_ptr<DropInOperation>>(module, "DropInOperation")
      .def("ready", &DropInOperation::Ready)
      .def("wait", [](const std::shared_ptr<DropInOperation>& self) {
        const DropInOutcome outcome = WithoutGil([&] { return self->Wait(); });
        return Answer(outcome);
      });
  py::class_<PyLayouts>(module, "KvLayouts").def(py::init<py::list, bool>());
  py::class_<PyStagedBatch>(module, "StagedBatch")
      .def(py::init(&Stage))
      .def_property_readonly("blocks", &PyStagedBatch::blocks)
      .def_property_readonly("layout_number", &PyStagedBatch::layout_number)
      .def("pages", &PyStagedBatch::Pages)
      .def("end_of", &PyStagedBatch::EndOf)
      .def("run", &PyStagedBatch::Run, py::arg("pool"), py::arg("host"), py::arg("begin"),
           py::arg("end"), py::arg("timeout_ms"), py::arg("seal_room") = false);
  module.def("is_mapped", &IsMapped);
  py::class_<PyPool>(module, "DropInPool")
      .def(py::init(&Open), py::arg("controller"), py::arg("namespace"), py::arg("domain"),
           py::arg("start_timeout"), py::arg("staging_bytes") = DropInPoolOptions{}.staging_bytes)
      .def_property_readonly_static(
          "seal_bytes", [](const py::object& /*type*/) { return DropInPool::kSealBytes; })
      .def_static("probe", &Probe)
      .def("healthy", &Healthy)
      .def("close", &PyPool::Close)
      .def("abandon", &PyPool::Abandon)
      .def("exists", &Exists)
      .def("allocate", &Allocate)
      .def("run_slots", &WithSlots<&Run>)
      .def("submit_slots", &WithSlots<&Submit>)
      .def("run_pointers", &WithPointers<&Run>)
      .def("submit_pointers", &WithPointers<&Submit>);
}

}  // namespace ems::python
