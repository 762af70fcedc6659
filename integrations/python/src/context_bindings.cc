#include "integrations/python/src/context_bindings.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "ems_context/save_policy.h"
#include "integrations/batches/memory_probe.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using context::BlockHasher;
using context::CallOptions;
using context::KvLayout;

py::list BytesOf(const std::vector<std::string>& keys) {
  py::list list;
  for (const std::string& key : keys) list.append(py::bytes(key));
  return list;
}
std::vector<int32_t> TokensOf(py::handle tokens) {
  std::vector<int64_t> wide;
  AppendInts(tokens, "tokens", &wide);
  std::vector<int32_t> narrow;
  narrow.reserve(wide.size());
  for (const int64_t token : wide) {
    if (token < INT32_MIN || token > INT32_MAX) {
      Refuse(PyExc_OverflowError, fmt::format("token {} does not fit 32 bits", token));
    }
    narrow.push_back(static_cast<int32_t>(token));
  }
  return narrow;
}

PyHasher MakeHasher(const py::kwargs& fields) {
  context::KeyDomain domain;
  const auto text = [&](const char* name) { return TextOf(fields[name], name); };
  const auto rank = [&](const char* name) {
    return static_cast<uint32_t>(CountOf(fields[name], name, UINT32_MAX));
  };
  domain.model = text("model");
  domain.dtype = text("dtype");
  domain.kv_layout = text("kv_layout");
  domain.tp_rank = rank("tp_rank");
  domain.tp_size = rank("tp_size");
  domain.pp_rank = rank("pp_rank");
  domain.pp_size = rank("pp_size");
  domain.lora = text("lora");
  domain.cache_salt = text("cache_salt");
  for (const py::handle hash : py::list(fields["multimodal_hashes"])) {
    domain.multimodal_hashes.push_back(TextOf(hash, "a multimodal hash"));
  }
  for (const py::handle pair : py::list(fields["custom"])) {
    const py::tuple parts(py::reinterpret_borrow<py::object>(pair));
    if (parts.size() != 2) Refuse(PyExc_ValueError, "custom must hold pairs of name and value");
    domain.custom.emplace_back(TextOf(parts[0], "a custom name"),
                               TextOf(parts[1], "a custom value"));
  }
  const std::string kind = text("hash");
  if (kind != "sha256" && kind != "xxh3") {
    Refuse(PyExc_ValueError, fmt::format("hash is \"{}\"; it may be sha256, xxh3", kind));
  }
  return PyHasher{ValueOrRaise(BlockHasher::Make(
      domain, kind == "sha256" ? context::HashKind::kSha256 : context::HashKind::kXxh3,
      rank("block_tokens")))};
}

// `layers`: for each layer, of (group, tensors), its tensors as dicts of KvTensor's fields. Not
// `reachable`: their memory is a device's, and nothing is ever read there by its address.
PyLayout MakeLayout(const py::list& layers, const py::object& tensors, bool reachable) {
  std::vector<context::KvLayer> described;
  for (const py::handle one : layers) {
    const auto pair = py::reinterpret_borrow<py::tuple>(one);
    context::KvLayer layer{
        .tensors = {},
        .group = static_cast<uint32_t>(CountOf(pair[0], "a layer's group", UINT32_MAX))};
    for (const py::handle fields : py::reinterpret_borrow<py::list>(pair[1])) {
      const auto get = [&](const char* name) { return CountOf(fields[name], name, UINT64_MAX); };
      const auto size = [&](const char* name) {
        return static_cast<uint32_t>(CountOf(fields[name], name, UINT32_MAX));
      };
      context::KvTensor tensor;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
      tensor.data = reinterpret_cast<std::byte*>(get("data"));
      tensor.bytes = get("bytes");
      tensor.dtype = ValueOrRaise(context::ParseDtype(fields["dtype"].cast<std::string>()));
      tensor.order = fields["order"].cast<std::string>() == "HND" ? context::KvOrder::kHeadsFirst
                                                                  : context::KvOrder::kTokensFirst;
      tensor.blocks = get("blocks");
      tensor.block_tokens = size("block_tokens");
      tensor.heads = size("heads");
      tensor.head_size = size("head_size");
      tensor.block_stride = get("block_stride");
      tensor.token_stride = get("token_stride");
      tensor.head_stride = get("head_stride");
      const MutableBytes memory(tensor.data, tensor.bytes);
      batches::MemoryProbe probe(batches::MemoryUse::kRead);
      if (reachable && (!probe.Add(memory).ok() || !probe.Finish().ok())) {
        Refuse(PyExc_ValueError, "a tensor's memory is not mapped into this process");
      }
      layer.tensors.push_back(tensor);
    }
    described.push_back(std::move(layer));
  }
  return {std::make_shared<const KvLayout>(ValueOrRaise(KvLayout::Make(std::move(described)))),
          tensors};
}

std::unique_ptr<PyCache> MakeCache(const PyClient& client, const py::kwargs& fields) {
  context::ContextCacheOptions options;
  options.block_tokens =
      static_cast<uint32_t>(CountOf(fields["block_tokens"], "block_tokens", UINT32_MAX));
  options.timeout = DurationOf(fields["timeout"], options.timeout);
  options.durability = DurabilityOf(fields["durability"].cast<std::string>());
  context::PagedOptions paged;
  paged.tp_rank = static_cast<uint32_t>(CountOf(fields["tp_rank"], "tp_rank", UINT32_MAX));
  paged.tp_size = static_cast<uint32_t>(CountOf(fields["tp_size"], "tp_size", UINT32_MAX));
  paged.shared_by_tp = fields["shared_by_tp"].cast<bool>();
  paged.policy = ValueOrRaise(context::ParseSavePolicy(fields["save_policy"].cast<std::string>()));
  if (paged.tp_rank >= paged.tp_size) {
    Raise(Error(StatusCode::kInvalidArgument, "tp_rank {} of tp_size {}", paged.tp_rank,
                paged.tp_size));
  }
  return std::make_unique<PyCache>(client.Use(), options, paged);
}

context::SavePhase PhaseOf(const std::string& word) {
  if (word == "prefill") return context::SavePhase::kPrefill;
  if (word == "decode") return context::SavePhase::kDecode;
  if (word == "final") return context::SavePhase::kFinal;
  Refuse(PyExc_ValueError, fmt::format("phase is \"{}\"; it may be prefill, decode, final", word));
}

bool Saves(const PyCache& self, const std::string& phase) {
  return context::ShouldSave(self.paged.policy, PhaseOf(phase));
}

size_t Lookup(PyCache& self, const py::iterable& wanted, const py::object& timeout) {
  self.CheckHere();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  const CallOptions options{.timeout = DurationOf(timeout, Duration{0})};
  const GilRelease free;
  return self.cache.Lookup(keys, options).leading_blocks;
}

py::tuple Looked(PyCache& self, const PyHasher& hasher, const py::object& tokens,
                 const py::object& timeout) {
  self.CheckHere();
  const std::vector<int32_t> ids = TokensOf(tokens);
  const CallOptions options{.timeout = DurationOf(timeout, Duration{0})};
  const context::LookupResult result =
      WithoutGil([&] { return self.cache.Lookup(hasher.hasher, ids, options); });
  return py::make_tuple(result.leading_blocks, BytesOf(result.keys));
}

// (stored, existing, [None, or an error], skipped)
py::tuple SavedOf(const context::SaveResult& result) {
  py::list blocks;
  for (const Status& block : result.blocks) {
    blocks.append(block.ok() ? py::none() : ErrorOf(block));
  }
  return py::make_tuple(result.stored_blocks, result.existing_blocks, blocks,
                        result.skipped_blocks);
}

py::tuple LoadParts(PyCache& self, const std::vector<std::string>& keys,
                    const std::vector<std::span<const MutableBytes>>& parts,
                    const CallOptions& options) {
  std::vector<MutableBuffers> into(parts.begin(), parts.end());
  const context::LoadResult result =
      WithoutGil([&] { return self.cache.Load(keys, into, options); });
  return AnswerOf(result);
}

py::tuple Load(PyCache& self, const py::iterable& wanted, const py::iterable& buffers,
               const py::object& timeout) {
  self.CheckHere();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  BufferSet held(BufferSet::Access::kWrite);
  for (const py::handle buffer : buffers) held.AddValue(buffer);
  std::vector<std::span<const MutableBytes>> parts;
  for (size_t i = 0; i < held.values(); ++i) parts.push_back(held.value(i));
  return LoadParts(self, keys, parts, {.timeout = DurationOf(timeout, Duration{0})});
}

py::tuple Save(PyCache& self, const py::iterable& wanted, const py::iterable& values,
               const std::string& phase, const py::object& timeout) {
  self.CheckHere();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  BufferSet held(BufferSet::Access::kRead);
  for (const py::handle value : values) held.AddValue(value);
  const CallOptions options{.timeout = DurationOf(timeout, Duration{0})};
  if (!Saves(self, phase)) {
    context::SaveResult skipped;
    skipped.blocks.assign(keys.size(), OkStatus());
    skipped.skipped_blocks = keys.size();
    return SavedOf(skipped);
  }
  std::vector<std::vector<ConstBytes>> read_only;
  for (size_t i = 0; i < held.values(); ++i) {
    read_only.emplace_back(held.value(i).begin(), held.value(i).end());
  }
  std::vector<ConstBuffers> buffers;
  buffers.reserve(read_only.size());
  for (const auto& value : read_only) buffers.emplace_back(std::span<const ConstBytes>(value));
  const context::SaveResult result =
      WithoutGil([&] { return self.cache.Save(keys, buffers, options); });
  return SavedOf(result);
}

py::tuple LoadPaged(PyCache& self, const PyLayout& layout, const py::iterable& wanted,
                    const PyRuns& runs, const py::object& timeout) {
  self.CheckHere();
  const auto blocks = BlocksOf(layout, wanted, runs, context::SlotUse::kWrite);
  std::vector<std::string> keys;
  std::vector<std::vector<MutableBytes>> parts(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    keys.push_back(blocks[i].key);
    for (uint32_t group = 0; group < blocks[i].runs.size(); ++group) {
      RaiseIfError(layout.layout->AppendParts(group, blocks[i].runs[group], &parts[i]));
    }
  }
  const std::vector<std::span<const MutableBytes>> spans(parts.begin(), parts.end());
  return LoadParts(self, keys, spans, {.timeout = DurationOf(timeout, Duration{0})});
}

py::tuple SavePaged(PyCache& self, const PyLayout& layout, const py::iterable& wanted,
                    const PyRuns& runs, const std::string& phase, const py::object& timeout) {
  self.CheckHere();
  const auto blocks = BlocksOf(layout, wanted, runs, context::SlotUse::kRead);
  const context::SavePhase when = PhaseOf(phase);
  const CallOptions options{.timeout = DurationOf(timeout, Duration{0})};
  const context::SaveResult result = [&] {
    const GilRelease free;
    context::PagedCache paged(&self.cache, &self.store, *layout.layout, self.paged);
    return paged.Save(blocks, when, options);
  }();
  return SavedOf(result);
}

uint32_t GroupOf(const PyLayout& self, const py::object& group) {
  return static_cast<uint32_t>(CountOf(group, "group", self.layout->groups() - 1));
}

context::SlotRun RunOf(py::handle run) {
  const auto [start, tokens] = IntPairOf(run, "a run");
  if (tokens < 0 || tokens > UINT32_MAX) {
    Raise(Error(StatusCode::kInvalidArgument, "a run of {} slots makes no sense", tokens));
  }
  if (start < 0) Raise(Error(StatusCode::kOutOfRange, "slots from {} on: the first is 0", start));
  return {static_cast<uint64_t>(start), static_cast<uint32_t>(tokens)};
}

// `slots` token by token → for each block of `tokens`, its (start slot, tokens).
py::list RunsOf(const py::object& slots, uint32_t tokens) {
  std::vector<int64_t> mapping;
  AppendInts(slots, "slot_mapping", &mapping);
  if (tokens == 0 || mapping.size() % tokens != 0) {
    Refuse(PyExc_ValueError,
           fmt::format("{} slots are not blocks of {} tokens", mapping.size(), tokens));
  }
  py::list blocks;
  for (auto rest = std::span<const int64_t>(mapping); !rest.empty(); rest = rest.subspan(tokens)) {
    py::list runs;
    for (const context::SlotRun& run : context::RunsOf(rest.first(tokens))) {
      runs.append(py::make_tuple(run.start_slot, run.tokens));
    }
    blocks.append(runs);
  }
  return blocks;
}

py::dict Stats(PyCache& self) {
  const context::ContextStats stats = self.cache.stats();
  py::dict dict;
  dict["lookups"] = stats.lookups;
  dict["lookup_requested_blocks"] = stats.lookup_requested_blocks;
  dict["lookup_requested_tokens"] = stats.lookup_requested_tokens;
  dict["lookup_hit_blocks"] = stats.lookup_hit_blocks;
  dict["lookup_hit_tokens"] = stats.lookup_hit_tokens;
  dict["loaded_blocks"] = stats.loaded_blocks;
  dict["loaded_bytes"] = stats.loaded_bytes;
  dict["saved_blocks"] = stats.saved_blocks;
  dict["saved_bytes"] = stats.saved_bytes;
  dict["deduped_blocks"] = stats.deduped_blocks;
  dict["deduped_bytes"] = stats.deduped_bytes;
  dict["conflicts"] = stats.conflicts;
  dict["size_mismatches"] = stats.size_mismatches;
  dict["failed_blocks"] = stats.failed_blocks;
  return dict;
}

}  // namespace

void PyCache::CheckHere() const {
  if (::getpid() == owner) return;
  Raise(Error(StatusCode::kUnavailable,
              "the cache belongs to the process that this one was forked from"));
}

std::vector<context::PagedBlock> BlocksOf(const PyLayout& layout, const py::iterable& keys,
                                          const PyRuns& runs, context::SlotUse use) {
  std::vector<std::string> names = TextsOf(keys, "a key");
  if (names.size() != runs.size()) {
    Raise(Error(StatusCode::kInvalidArgument, "{} keys and runs for {} blocks", names.size(),
                runs.size()));
  }
  std::vector<context::PagedBlock> blocks;
  blocks.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    blocks.push_back({.key = std::move(names[i]), .runs = {}});
    // Copies: what is no int may change its list while it is asked.
    for (const py::handle group : py::tuple(py::object(runs[i]))) {
      auto& slots = blocks.back().runs.emplace_back();
      for (const py::handle run : py::tuple(py::reinterpret_borrow<py::object>(group))) {
        slots.push_back(RunOf(run));
      }
    }
  }
  RaiseIfError(context::CheckBlocks(*layout.layout, blocks, use));
  return blocks;
}

py::tuple AnswerOf(const context::LoadResult& result) {
  return py::make_tuple(result.leading_blocks, LengthsOf(result.blocks));
}

void BindContext(py::module_& module) {
  py::class_<PyHasher>(module, "BlockHasher")
      .def(py::init(&MakeHasher))
      .def_property_readonly("block_tokens",
                             [](const PyHasher& self) { return self.hasher.block_tokens(); })
      .def(
          "hash_tokens",
          [](const PyHasher& self, const py::object& tokens, const Text& parent) {
            return BytesOf(self.hasher.HashTokens(TokensOf(tokens), parent));
          },
          py::arg("tokens"), py::arg("parent") = py::bytes(""))
      .def("own_key", [](const PyHasher& self, const py::object& name) {
        return py::bytes(ValueOrRaise(self.hasher.OwnKey(TextOf(name, "a name"))));
      });
  py::class_<PyLayout>(module, "KvLayout")
      .def(py::init(&MakeLayout), py::arg("layers"), py::arg("tensors"),
           py::arg("reachable") = true)
      .def_property_readonly("layers", [](const PyLayout& self) { return self.layout->layers(); })
      .def_property_readonly("groups", [](const PyLayout& self) { return self.layout->groups(); })
      .def_property_readonly("fingerprint",
                             [](const PyLayout& self) { return self.layout->Fingerprint(); })
      .def("slots",
           [](const PyLayout& self, const py::object& group) {
             return self.layout->slots(GroupOf(self, group));
           })
      .def("block_tokens",
           [](const PyLayout& self, const py::object& group) {
             return self.layout->block_tokens(GroupOf(self, group));
           })
      .def("group_of",
           [](const PyLayout& self, size_t layer) {
             if (layer >= self.layout->layers()) Refuse(PyExc_IndexError, "no such layer");
             return self.layout->group_of(layer);
           })
      .def("block_bytes", [](const PyLayout& self, const py::object& group,
                             const py::object& tokens) {
        return self.layout->BlockBytes(GroupOf(self, group), CountOf(tokens, "tokens", UINT32_MAX));
      });
  py::class_<PyCache>(module, "ContextCache")
      .def(py::init(&MakeCache))
      .def("lookup", &Lookup)
      .def("lookup_tokens", &Looked)
      .def("load", &Load)
      .def("save", &Save)
      .def("load_paged", &LoadPaged)
      .def("save_paged", &SavePaged)
      .def("saves", &Saves)
      .def("stats", &Stats);
  module.def("runs_of", &RunsOf);
}

}  // namespace ems::python
