#include "integrations/python/src/cc_bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ems_context/paged_block.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/cc_pool.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

constexpr size_t kNameBytesMax = 500;

// Threading: the GIL guards `pool`; calls keep it alive.
class PyPool final {
 public:
  explicit PyPool(std::shared_ptr<CcPool> pool) : pool_(std::move(pool)) {}
  // nullptr when closed: a pool that is not there.
  std::shared_ptr<CcPool> Use() const { return pool_; }
  void Close() {
    std::shared_ptr<CcPool> last = std::move(pool_);
    pool_.reset();
    const GilRelease free;
    if (last != nullptr) last->Close();
    last.reset();
  }
  // As PyClient::Abandon.
  void Abandon() {
    if (pool_ == nullptr) return;
    (void)std::make_unique<std::shared_ptr<CcPool>>(pool_).release();
    pool_.reset();
  }

 private:
  std::shared_ptr<CcPool> pool_;
};

[[noreturn]] void Invalid(const std::string& text) { Refuse(PyExc_ValueError, text); }

// The name of a block that the engine has hashed. Decimal: negative and large hashes stay apart.
std::string NameOf(py::handle hash) {
  int overflow = 0;
  if (!PyLong_Check(hash.ptr())) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(hash.ptr()));
    if (!index) {
      PyErr_Clear();
      Refuse(PyExc_TypeError,
             fmt::format("hashes must hold ints, not {}", Py_TYPE(hash.ptr())->tp_name));
    }
    return NameOf(index);
  }
  const int64_t value = PyLong_AsLongLongAndOverflow(hash.ptr(), &overflow);
  if (overflow == 0) return fmt::format("h{}", value);
  const uint64_t large = overflow > 0 ? PyLong_AsUnsignedLongLong(hash.ptr()) : 0;
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    Refuse(PyExc_OverflowError, "a hash does not fit 64 bits");
  }
  return fmt::format("h{}", large);
}

void CheckNames(const std::vector<std::string>& names, const char* what) {
  if (names.empty()) Invalid(fmt::format("{} is empty", what));
  std::unordered_set<std::string_view> seen;
  seen.reserve(names.size());
  for (const std::string& name : names) {
    if (name.size() > kNameBytesMax) {
      Invalid(fmt::format("a key has {} bytes, {} are allowed", name.size(), kNameBytesMax));
    }
    if (!seen.insert(name).second) Invalid(fmt::format("{} has an entry twice", what));
  }
}

py::list ListOf(py::handle object, const char* what) {
  if (object.is_none()) Invalid(fmt::format("{} is missing", what));
  if (py::isinstance<py::str>(object) || py::isinstance<py::bytes>(object)) {
    Refuse(PyExc_TypeError, fmt::format("{} must be a list", what));
  }
  if (py::hasattr(object, "tolist")) return py::list(object.attr("tolist")());
  return py::list(py::reinterpret_borrow<py::object>(object));
}

std::vector<std::string> HashNames(py::handle hashes) {
  std::vector<std::string> names;
  for (const py::handle hash : ListOf(hashes, "hashes")) names.push_back(NameOf(hash));
  CheckNames(names, "hashes");
  return names;
}

void CheckRun(const context::KvLayout& layout, uint32_t group, int64_t start, int64_t tokens) {
  const auto slots = static_cast<int64_t>(layout.slots(group));
  if (tokens <= 0) Invalid(fmt::format("a block of {} tokens makes no sense", tokens));
  if (start < 0 || start >= slots || tokens > slots - start) {
    Invalid(
        fmt::format("slots {} to {} are not all in 0 to {}", start, start + tokens - 1, slots - 1));
  }
}

// Slots token by token, and tokens a block.
void AddSlots(const context::KvLayout& layout, py::handle slot_mapping, py::handle offsets,
              CcBatch* batch) {
  if (layout.groups() != 1) {
    Invalid(fmt::format("the layout has {} layer groups: give chunk_descs", layout.groups()));
  }
  std::vector<int64_t> slots, lengths;
  AppendInts(slot_mapping, "slot_mapping", &slots);
  AppendInts(offsets, "offsets", &lengths);
  if (slots.empty()) Invalid("slot_mapping is empty");
  if (lengths.size() != batch->names.size()) {
    Invalid(fmt::format("{} hashes and {} offsets", batch->names.size(), lengths.size()));
  }
  size_t at = 0;
  for (const int64_t length : lengths) {
    if (length <= 0) Invalid(fmt::format("a block of {} tokens makes no sense", length));
    if (static_cast<size_t>(length) > slots.size() - at) {
      Invalid(fmt::format("offsets sum up to more than the {} slots", slots.size()));
    }
    const auto mine = std::span(slots).subspan(at, static_cast<size_t>(length));
    for (const context::SlotRun run : context::RunsOf(mine)) {
      CheckRun(layout, 0, static_cast<int64_t>(run.start_slot), run.tokens);
      batch->runs.push_back(run);
    }
    batch->run_ends.push_back(batch->runs.size());
    at += mine.size();
  }
  if (at != slots.size()) {
    Invalid(fmt::format("offsets sum up to {}, there are {} slots", at, slots.size()));
  }
}

// One (start slot, tokens) a block, for each layer group.
void AddChunks(const context::KvLayout& layout, py::handle chunk_descs, CcBatch* batch) {
  const py::list groups = ListOf(chunk_descs, "chunk_descs");
  if (groups.size() != layout.groups()) {
    Invalid(fmt::format("chunk_descs has {} layer groups, the layout has {}", groups.size(),
                        layout.groups()));
  }
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const py::list chunks = ListOf(groups[group], "a layer group of chunk_descs");
    if (chunks.size() != batch->names.size()) {
      Invalid(fmt::format("{} hashes and {} chunks", batch->names.size(), chunks.size()));
    }
    for (const py::handle chunk : chunks) {
      std::vector<int64_t> pair;
      AppendInts(chunk, "a chunk", &pair);
      if (pair.size() != 2) Invalid("a chunk is (start slot, length)");
      CheckRun(layout, group, pair[0], pair[1]);
      batch->runs.push_back({static_cast<uint64_t>(pair[0]), static_cast<uint32_t>(pair[1])});
      batch->run_ends.push_back(batch->runs.size());
    }
  }
}

// What is asked of runs beyond each of them: a load must write each slot once.
void CheckSlots(const CcBatch& batch) {
  std::vector<context::PagedBlock> blocks(batch.names.size());
  size_t begin = 0;
  for (size_t i = 0; i < batch.run_ends.size(); begin = batch.run_ends[i++]) {
    blocks[i % blocks.size()].runs.emplace_back(
        batch.runs.begin() + static_cast<ptrdiff_t>(begin),
        batch.runs.begin() + static_cast<ptrdiff_t>(batch.run_ends[i]));
  }
  const auto use = batch.is_load ? context::SlotUse::kWrite : context::SlotUse::kRead;
  const Status status = context::CheckBlocks(*batch.layout, blocks, use);
  if (!status.ok()) Invalid(std::string(Message(status)));
}

void SetOptions(bool is_load, int64_t timeout_ms, bool local_only, CcBatch* batch) {
  batch->is_load = is_load;
  batch->local_only = local_only && is_load;
  const int64_t day_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::kMost).count();
  batch->timeout = std::chrono::milliseconds(std::min(timeout_ms, day_ms));
}

// Where blocks lie: by chunk_descs when it is given, otherwise by slot_mapping and offsets.
CcBatch SlotBatch(bool is_load, const PyLayout& layout, py::handle slot_mapping, py::handle hashes,
                  py::handle offsets, py::handle chunk_descs, int64_t timeout_ms, bool local_only) {
  CcBatch batch;
  SetOptions(is_load, timeout_ms, local_only, &batch);
  batch.names = HashNames(hashes);
  batch.layout = layout.layout;
  if (chunk_descs.is_none()) {
    AddSlots(*layout.layout, slot_mapping, offsets, &batch);
  } else {
    AddChunks(*layout.layout, chunk_descs, &batch);
  }
  CheckSlots(batch);
  return batch;
}

// `keys`: [blocks] of str, or of (distribute key, attribute key). `values`: [blocks] of lists of
// (address, length).
CcBatch PointerBatch(bool is_load, const py::list& keys, const py::list& values, int64_t timeout_ms,
                     bool local_only) {
  CcBatch batch;
  SetOptions(is_load, timeout_ms, local_only, &batch);
  bool is_routed = false;
  for (const py::handle key : keys) {
    if (py::isinstance<py::str>(key)) {
      batch.names.push_back("s" + key.cast<std::string>());
      batch.routes.push_back(batch.names.back());
    } else {
      const auto [route, rest] = key.cast<std::pair<std::string, std::string>>();
      batch.names.push_back(fmt::format("p{}:{}{}", route.size(), route, rest));
      batch.routes.push_back("p" + route);
      is_routed = true;
    }
  }
  if (!is_routed) batch.routes.clear();
  CheckNames(batch.names, "key_list");
  if (values.size() != keys.size()) {
    Invalid(fmt::format("{} keys and {} values", keys.size(), values.size()));
  }
  for (const py::handle value : values) {
    const size_t before = batch.parts.size();
    for (const py::handle buffer : py::reinterpret_borrow<py::object>(value)) {
      const auto [address, length] = buffer.cast<std::pair<uintptr_t, uint64_t>>();
      // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
      batch.parts.emplace_back(reinterpret_cast<std::byte*>(address), length);
    }
    if (batch.parts.size() == before) Invalid("a value has no buffers");
    batch.part_ends.push_back(batch.parts.size());
  }
  return batch;
}

py::tuple Answer(const CcOutcome& outcome) {
  return py::make_tuple(outcome.success, outcome.total,
                        std::string(outcome.status.ok() ? "" : CodeName(outcome.status.code())),
                        std::string(Message(outcome.status)));
}

py::tuple Run(const PyPool& self, const CcBatch& batch) {
  CcOutcome outcome{0, batch.names.size(), OkStatus()};
  if (std::shared_ptr<CcPool> pool = self.Use(); pool != nullptr) {
    const GilRelease free;
    outcome = pool->Run(batch);
    pool.reset();
  }
  return Answer(outcome);
}

std::shared_ptr<CcOperation> Submit(const PyPool& self, CcBatch batch) {
  const std::shared_ptr<CcPool> pool = self.Use();
  if (pool == nullptr) return CcOperation::Missed(batch.names.size());
  return pool->Submit(std::move(batch));
}

py::tuple Exists(const PyPool& self, const py::object& hashes, int64_t timeout_ms,
                 bool local_only) {
  CcBatch batch;
  SetOptions(true, timeout_ms, local_only, &batch);
  batch.names = HashNames(hashes);
  CcOutcome outcome{0, batch.names.size(), OkStatus()};
  if (std::shared_ptr<CcPool> pool = self.Use(); pool != nullptr) {
    const GilRelease free;
    outcome = pool->Exists(batch);
    pool.reset();
  }
  return Answer(outcome);
}

CcPoolOptions OptionsOf(const std::string& controller, const std::string& name_space,
                        const py::dict& domain, const py::object& start_timeout) {
  CcPoolOptions options;
  options.controller = controller;
  options.name_space = name_space;
  options.start_timeout = DurationOf(start_timeout, options.start_timeout);
  if (domain.empty()) return options;
  options.domain.model = domain["model"].cast<std::string>();
  options.domain.tp_rank = domain["tp_rank"].cast<uint32_t>();
  options.domain.tp_size = domain["tp_size"].cast<uint32_t>();
  options.domain.pp_rank = domain["pp_rank"].cast<uint32_t>();
  options.domain.pp_size = domain["pp_size"].cast<uint32_t>();
  options.domain.cache_salt = domain["cache_salt"].cast<std::string>();
  options.domain.custom = domain["custom"].cast<std::vector<std::pair<std::string, std::string>>>();
  return options;
}

PyPool Open(const std::string& controller, const std::string& name_space, const py::dict& domain,
            const py::object& start_timeout) {
  const CcPoolOptions options = OptionsOf(controller, name_space, domain, start_timeout);
  Result<std::unique_ptr<CcPool>> pool = [&] {
    const GilRelease free;
    return CcPool::Open(options);
  }();
  return PyPool(ValueOrRaise(std::move(pool)));
}

bool Probe(const std::string& controller, const std::string& name_space) {
  const CcPoolOptions options = OptionsOf(controller, name_space, py::dict(), py::none());
  const GilRelease free;
  return CcPool::Probe(options);
}

bool Healthy(const PyPool& self) {
  std::shared_ptr<CcPool> pool = self.Use();
  if (pool == nullptr) return false;
  const GilRelease free;
  const bool healthy = pool->Healthy();
  pool.reset();
  return healthy;
}

}  // namespace

void BindCc(py::module_& module) {
  py::class_<CcOperation, std::shared_ptr<CcOperation>>(module, "CcOperation")
      .def("ready", &CcOperation::Ready)
      .def("wait", [](const std::shared_ptr<CcOperation>& self) {
        const CcOutcome outcome = [&] {
          const GilRelease free;
          return self->Wait();
        }();
        return Answer(outcome);
      });
  py::class_<PyPool>(module, "CcPool")
      .def(py::init(&Open))
      .def_static("probe", &Probe)
      .def("healthy", &Healthy)
      .def("close", &PyPool::Close)
      .def("abandon", &PyPool::Abandon)
      .def("exists", &Exists)
      .def("run_slots",
           [](const PyPool& self, bool is_load, const PyLayout& layout, const py::object& slots,
              const py::object& hashes, const py::object& offsets, const py::object& chunk_descs,
              int64_t timeout_ms, bool local_only) {
             return Run(self, SlotBatch(is_load, layout, slots, hashes, offsets, chunk_descs,
                                        timeout_ms, local_only));
           })
      .def("submit_slots",
           [](const PyPool& self, bool is_load, const PyLayout& layout, const py::object& slots,
              const py::object& hashes, const py::object& offsets, const py::object& chunk_descs,
              int64_t timeout_ms, bool local_only) {
             return Submit(self, SlotBatch(is_load, layout, slots, hashes, offsets, chunk_descs,
                                           timeout_ms, local_only));
           })
      .def("run_pointers",
           [](const PyPool& self, bool is_load, const py::list& keys, const py::list& values,
              int64_t timeout_ms, bool local_only) {
             return Run(self, PointerBatch(is_load, keys, values, timeout_ms, local_only));
           })
      .def("submit_pointers", [](const PyPool& self, bool is_load, const py::list& keys,
                                 const py::list& values, int64_t timeout_ms, bool local_only) {
        return Submit(self, PointerBatch(is_load, keys, values, timeout_ms, local_only));
      });
}

}  // namespace ems::python
