#include "integrations/python/src/drop_in_bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "integrations/batches/drop_in_pool.h"
#include "integrations/batches/slot_runs.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/closable.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using batches::CheckOnce;
using batches::CheckRun;
using batches::DropInBatch;
using batches::DropInHash;
using batches::DropInOperation;
using batches::DropInOutcome;
using batches::DropInPool;
using batches::DropInPoolOptions;
using batches::SlotRunBuilder;

constexpr size_t kNameBytesMax = 500;

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

[[noreturn]] void Invalid(const std::string& text) { Refuse(PyExc_ValueError, text); }

DropInHash HashOf(PyObject* hash) {
  int overflow = 0;
  if (!PyLong_Check(hash)) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(hash));
    if (!index) {
      PyErr_Clear();
      Refuse(PyExc_TypeError, fmt::format("hashes must hold ints, not {}", Py_TYPE(hash)->tp_name));
    }
    return HashOf(index.ptr());
  }
  const int64_t value = PyLong_AsLongLongAndOverflow(hash, &overflow);
  if (overflow == 0) return {static_cast<uint64_t>(value), false};
  const uint64_t large = overflow > 0 ? PyLong_AsUnsignedLongLong(hash) : 0;
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    Refuse(PyExc_OverflowError, "a hash does not fit 64 bits");
  }
  return {large, true};
}

bool HasTwiceSorted(std::vector<DropInHash> hashes) {
  const auto key = [](const DropInHash& hash) { return std::pair(hash.is_large, hash.bits); };
  std::sort(hashes.begin(), hashes.end(),
            [&](const DropInHash& a, const DropInHash& b) { return key(a) < key(b); });
  return std::adjacent_find(hashes.begin(), hashes.end(),
                            [&](const DropInHash& a, const DropInHash& b) {
                              return key(a) == key(b);
                            }) != hashes.end();
}

// By a table of places, as hashes are spread already; those that were chosen not to be are sorted.
bool HasTwice(const std::vector<DropInHash>& hashes) {
  constexpr size_t kStepsEach = 8;  // the mean of spread ones is below 2
  constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
  size_t places = 2;
  while (places < 2 * hashes.size()) places *= 2;
  std::vector<uint32_t> table(places);  // a number of a hash, plus 1
  size_t steps = kStepsEach * hashes.size();
  for (size_t i = 0; i < hashes.size(); ++i) {
    size_t place = (hashes[i].bits * kSpread >> 32) % places;
    for (; table[place] != 0; place = (place + 1) % places) {
      const DropInHash other = hashes[table[place] - 1];
      if (other.bits == hashes[i].bits && other.is_large == hashes[i].is_large) return true;
      if (--steps == 0) return HasTwiceSorted(hashes);
    }
    table[place] = static_cast<uint32_t>(i + 1);
  }
  return false;
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

std::vector<DropInHash> HashesOf(py::handle object) {
  const py::list list = PyList_CheckExact(object.ptr()) ? py::reinterpret_borrow<py::list>(object)
                                                        : ListOf(object, "hashes");
  std::vector<DropInHash> hashes;
  hashes.reserve(list.size());
  // The length is asked for each time: what is no int may change the list while it is asked.
  for (size_t i = 0; i < list.size(); ++i) {
    const auto hash =
        py::reinterpret_borrow<py::object>(PyList_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)));
    hashes.push_back(HashOf(hash.ptr()));
  }
  if (hashes.empty()) Invalid("hashes is empty");
  if (HasTwice(hashes)) Invalid("hashes has an entry twice");
  return hashes;
}

void InvalidUnless(const Status& status) {
  if (!status.ok()) Invalid(std::string(Message(status)));
}

// Slots token by token, and tokens a block.
void AddSlots(const context::KvLayout& layout, py::handle slot_mapping, py::handle offsets,
              DropInBatch* batch) {
  if (layout.groups() != 1) {
    Invalid(fmt::format("the layout has {} layer groups: give chunk_descs", layout.groups()));
  }
  std::vector<int64_t> lengths;
  AppendInts(offsets, "offsets", &lengths);
  if (lengths.size() != batch->blocks()) {
    Invalid(fmt::format("{} hashes and {} offsets", batch->blocks(), lengths.size()));
  }
  batch->run_ends.reserve(lengths.size());
  batch->runs.reserve(lengths.size());
  SlotRunBuilder builder(layout.slots(0), lengths, &batch->runs, &batch->run_ends);
  VisitInts(slot_mapping, "slot_mapping",
            [&](std::span<const int64_t> slots) { InvalidUnless(builder.Add(slots)); });
  InvalidUnless(builder.Finish());
}

// One (start slot, tokens) a block, for each layer group. Lists are copied: what is no int may
// change them while it is asked.
void AddChunks(const context::KvLayout& layout, py::handle chunk_descs, DropInBatch* batch) {
  const py::tuple groups(ListOf(chunk_descs, "chunk_descs"));
  if (groups.size() != layout.groups()) {
    Invalid(fmt::format("chunk_descs has {} layer groups, the layout has {}", groups.size(),
                        layout.groups()));
  }
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const py::tuple chunks(ListOf(groups[group], "a layer group of chunk_descs"));
    if (chunks.size() != batch->blocks()) {
      Invalid(fmt::format("{} hashes and {} chunks", batch->blocks(), chunks.size()));
    }
    for (const py::handle chunk : chunks) {
      const auto [start, tokens] = IntPairOf(chunk, "a chunk");
      InvalidUnless(CheckRun(layout.slots(group), start, tokens));
      batch->runs.push_back({static_cast<uint64_t>(start), static_cast<uint32_t>(tokens)});
      batch->run_ends.push_back(batch->runs.size());
    }
  }
}

void SetOptions(bool is_load, int64_t timeout_ms, bool local_only, DropInBatch* batch) {
  batch->is_load = is_load;
  batch->local_only = local_only && is_load;
  const int64_t day_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::kMost).count();
  batch->timeout = std::chrono::milliseconds(std::min(timeout_ms, day_ms));
}

// Where blocks lie: by chunk_descs when it is given, otherwise by slot_mapping and offsets.
DropInBatch SlotBatch(bool is_load, const PyLayout& layout, py::handle slot_mapping,
                      py::handle hashes, py::handle offsets, py::handle chunk_descs,
                      int64_t timeout_ms, bool local_only) {
  DropInBatch batch;
  SetOptions(is_load, timeout_ms, local_only, &batch);
  batch.hashes = HashesOf(hashes);
  batch.layout = layout.layout;
  if (chunk_descs.is_none()) {
    AddSlots(*layout.layout, slot_mapping, offsets, &batch);
  } else {
    AddChunks(*layout.layout, chunk_descs, &batch);
  }
  // A load must write each slot once; a save may read it twice.
  if (is_load) InvalidUnless(CheckOnce(batch.blocks(), batch.runs, batch.run_ends));
  return batch;
}

// `keys`: [blocks] of str, or of (distribute key, attribute key). `values`: [blocks] of lists of
// (address, length).
DropInBatch PointerBatch(bool is_load, const py::list& keys, const py::list& values,
                         int64_t timeout_ms, bool local_only) {
  DropInBatch batch;
  SetOptions(is_load, timeout_ms, local_only, &batch);
  bool is_routed = false;
  for (const py::handle key : keys) {
    if (py::isinstance<py::str>(key)) {
      batch.names.push_back("s" + TextOf(key, "a key"));
      batch.routes.push_back(batch.names.back());
    } else {
      const auto parts = py::reinterpret_borrow<py::tuple>(key);
      const std::string route = TextOf(parts[0], "a key"), rest = TextOf(parts[1], "a key");
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
      const auto pair = py::reinterpret_borrow<py::tuple>(buffer);
      const uint64_t address = CountOf(pair[0], "data_ptr", UINTPTR_MAX);
      const uint64_t length = CountOf(pair[1], "length", UINTPTR_MAX - address);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
      batch.parts.emplace_back(reinterpret_cast<std::byte*>(address), length);
    }
    if (batch.parts.size() == before) Invalid("a value has no buffers");
    batch.part_ends.push_back(batch.parts.size());
  }
  return batch;
}

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
auto WithSlots(const PyPool& self, bool is_load, const PyLayout& layout, const py::object& slots,
               const py::object& hashes, const py::object& offsets, const py::object& chunk_descs,
               int64_t timeout_ms, bool local_only) {
  return Do(self, SlotBatch(is_load, layout, slots, hashes, offsets, chunk_descs, timeout_ms,
                            local_only));
}

template <auto Do>
auto WithPointers(const PyPool& self, bool is_load, const py::list& keys, const py::list& values,
                  int64_t timeout_ms, bool local_only) {
  return Do(self, PointerBatch(is_load, keys, values, timeout_ms, local_only));
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
            const py::object& start_timeout) {
  const DropInPoolOptions options = OptionsOf(controller, name_space, domain, start_timeout);
  Result<std::unique_ptr<DropInPool>> pool = WithoutGil([&] { return DropInPool::Open(options); });
  return PyPool(ValueOrRaise(std::move(pool)));
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
  py::class_<PyPool>(module, "DropInPool")
      .def(py::init(&Open))
      .def_static("probe", &Probe)
      .def("healthy", &Healthy)
      .def("close", &PyPool::Close)
      .def("abandon", &PyPool::Abandon)
      .def("exists", &Exists)
      .def("run_slots", &WithSlots<&Run>)
      .def("submit_slots", &WithSlots<&Submit>)
      .def("run_pointers", &WithPointers<&Run>)
      .def("submit_pointers", &WithPointers<&Submit>);
}

}  // namespace ems::python
