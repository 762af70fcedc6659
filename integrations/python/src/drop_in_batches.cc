#include "integrations/python/src/drop_in_batches.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "integrations/batches/slot_runs.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/errors.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using batches::CheckOnce;
using batches::CheckPages;
using batches::CheckRun;
using batches::DropInBatch;
using batches::DropInHash;
using batches::SlotRunBuilder;

constexpr size_t kNameBytesMax = 500;

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
  size_t places = 2;  // a power of two
  while (places < 2 * hashes.size()) places *= 2;
  std::vector<uint32_t> table(places);  // a number of a hash, plus 1
  size_t steps = kStepsEach * hashes.size();
  for (size_t i = 0; i < hashes.size(); ++i) {
    size_t place = (hashes[i].bits * kSpread >> 32) & (places - 1);
    for (; table[place] != 0; place = (place + 1) & (places - 1)) {
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

void InvalidUnless(const Status& status) {
  if (!status.ok()) Invalid(std::string(Message(status)));
}

// Slots token by token, and tokens a block.
void AddSlots(const PyLayouts& layouts, py::handle slot_mapping, py::handle offsets,
              DropInBatch* batch) {
  std::vector<int64_t> lengths;
  AppendInts(offsets, "offsets", &lengths);
  batch->layout = layouts.Choose(1, lengths.empty() ? 0 : lengths[0]);
  const context::KvLayout& layout = *batch->layout;
  if (layout.groups() != 1) {
    Invalid(fmt::format("the layout has {} layer groups: give chunk_descs", layout.groups()));
  }
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

void CheckGroups(const context::KvLayout& layout, size_t groups) {
  if (groups == layout.groups()) return;
  Invalid(
      fmt::format("chunk_descs has {} layer groups, the layout has {}", groups, layout.groups()));
}

// One (start slot, tokens) a block, for each layer group. Lists are copied: what is no int may
// change them while it is asked.
void AddChunks(const PyLayouts& layouts, py::handle chunk_descs, DropInBatch* batch) {
  const py::tuple groups(ListOf(chunk_descs, "chunk_descs"));
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const py::tuple chunks(ListOf(groups[group], "a layer group of chunk_descs"));
    if (chunks.size() != batch->blocks()) {
      Invalid(fmt::format("{} hashes and {} chunks", batch->blocks(), chunks.size()));
    }
    for (const py::handle chunk : chunks) {
      const auto [start, tokens] = IntPairOf(chunk, "a chunk");
      if (batch->layout == nullptr) {
        batch->layout = layouts.Choose(groups.size(), tokens);
        CheckGroups(*batch->layout, groups.size());
      }
      InvalidUnless(CheckRun(batch->layout->slots(group), start, tokens));
      batch->runs.push_back({static_cast<uint64_t>(start), static_cast<uint32_t>(tokens)});
      batch->run_ends.push_back(batch->runs.size());
    }
  }
  if (batch->layout == nullptr) Invalid("chunk_descs is empty");
}

}  // namespace

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

PyLayouts::PyLayouts(py::list layouts, bool is_stated)
    : held_(std::move(layouts)), is_stated_(is_stated) {
  for (const py::handle one : held_) may_be_.push_back(one.cast<const PyLayout&>().layout);
  if (may_be_.empty() || (is_stated && may_be_.size() > 1)) Invalid("give one layout");
}

size_t PyLayouts::NumberOf(const Layout& layout) const {
  return static_cast<size_t>(std::find(may_be_.begin(), may_be_.end(), layout) - may_be_.begin());
}

PyLayouts::Layout PyLayouts::Choose(size_t groups, int64_t tokens) const {
  if (is_stated_) return may_be_[0];
  for (const Layout& one : may_be_) {
    if (IsPossible(one) && one->groups() == groups && one->block_tokens(0) == tokens) return one;
  }
  // The first one's own checks say more.
  if (may_be_[0]->groups() != groups || tokens <= 0) return may_be_[0];
  Refuse(fmt::format("a block of {} tokens is not one page", tokens));
}

void PyLayouts::Prove(const DropInBatch& batch) {
  if (is_stated_) return;
  const Status status =
      CheckPages(*batch.layout, batch.blocks(), batch.runs, batch.run_ends, /*one_each=*/true);
  if (!status.ok()) Refuse(Message(status));
  if (!IsPossible(batch.layout)) Refuse("a call has shown another page meanwhile");
  proven_ = batch.layout;
}

void PyLayouts::Refuse(std::string_view why) const {
  std::string pages;
  for (const Layout& one : may_be_) {
    if (IsPossible(one))
      pages += fmt::format("{}{}", pages.empty() ? "" : " or ", one->block_tokens(0));
  }
  Invalid(fmt::format(
      "{}; by the tensors' shapes and earlier calls a page has {} tokens. If that is wrong, or for "
      "blocks of several pages or parts of one, state the order of the dimensions: "
      "register_kvcache(…, order='NHD', 'HND' or 'NZ'), or EMS_KV_ORDER",
      why, pages));
}

void SetOptions(bool is_load, int64_t timeout_ms, bool local_only, DropInBatch* batch) {
  batch->is_load = is_load;
  batch->local_only = local_only && is_load;
  const int64_t day_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::kMost).count();
  batch->timeout = std::chrono::milliseconds(std::min(timeout_ms, day_ms));
}

DropInBatch SlotBatch(bool is_load, PyLayouts& layouts, py::handle slot_mapping, py::handle hashes,
                      py::handle offsets, py::handle chunk_descs, int64_t timeout_ms,
                      bool local_only) {
  DropInBatch batch;
  SetOptions(is_load, timeout_ms, local_only, &batch);
  batch.hashes = HashesOf(hashes);
  if (chunk_descs.is_none()) {
    AddSlots(layouts, slot_mapping, offsets, &batch);
  } else {
    AddChunks(layouts, chunk_descs, &batch);
  }
  // A load must write each slot once; a save may read it twice.
  if (is_load) InvalidUnless(CheckOnce(batch.blocks(), batch.runs, batch.run_ends));
  layouts.Prove(batch);
  return batch;
}

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

}  // namespace ems::python
