#include "integrations/batches/drop_in_pool.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cluster/slot_table.h"
#include "common/check.h"
#include "common/hash.h"
#include "ems_context/block_store.h"
#include "ems_context/prefix_matcher.h"
#include "fabric/net/same_machine.h"
#include "fabric/net/socket.h"
#include "integrations/batches/memory_probe.h"

namespace ems::batches {
namespace {

constexpr size_t kForeignMax = 65'536;  // keys
constexpr size_t kThreads = 4;
constexpr size_t kQueueMax = 4096;
constexpr size_t kAskedMax = 8;
constexpr Duration kAskTimeout = std::chrono::milliseconds(250);
constexpr Duration kProbeTimeout = std::chrono::seconds(1);

// The trailer behind the bytes of a block: a load into another layout, or into memory that is split
// otherwise, sees a miss and not another model's numbers.
using Seal = std::array<std::byte, DropInPool::kSealBytes>;

Seal SealOf(std::string_view text) {
  const Hash128 hash = HashTo128(AsBytes(text));
  Seal seal;
  for (size_t i = 0; i < 8; ++i) {
    seal[i] = static_cast<std::byte>(hash.lo >> (8 * i));
    seal[i + 8] = static_cast<std::byte>(hash.hi >> (8 * i));
  }
  return seal;
}

// The runs of a block in a group of the batch's layout.
std::span<const context::SlotRun> RunsOf(const DropInBatch& batch, uint32_t group, size_t block) {
  const size_t at = group * batch.blocks() + block;
  EMS_CHECK(at < batch.run_ends.size(), "block {} of group {} has no runs", block, group);
  const size_t begin = at == 0 ? 0 : batch.run_ends[at - 1];
  return std::span(batch.runs).subspan(begin, batch.run_ends[at] - begin);
}

// The parts of a block of a batch without a layout.
std::span<const MutableBytes> GivenParts(const DropInBatch& batch, size_t block) {
  EMS_CHECK(block < batch.part_ends.size(), "block {}, memory for {}", block,
            batch.part_ends.size());
  const size_t begin = block == 0 ? 0 : batch.part_ends[block - 1];
  EMS_CHECK(begin <= batch.part_ends[block] && batch.part_ends[block] <= batch.parts.size(),
            "parts [{}, {}) of {}", begin, batch.part_ends[block], batch.parts.size());
  return std::span(batch.parts).subspan(begin, batch.part_ends[block] - begin);
}

// Of how many bytes each part is: the layout, as far as it is known, of memory without one.
std::vector<Seal> SealsOfParts(const DropInBatch& batch, size_t blocks) {
  std::vector<Seal> seals;
  seals.reserve(blocks);
  std::string text, last;
  for (size_t i = 0; i < blocks; ++i) {
    text = "parts1";
    for (const MutableBytes part : GivenParts(batch, i)) {
      fmt::format_to(std::back_inserter(text), " {}", part.size());
    }
    seals.push_back(text == last ? seals.back() : SealOf(text));
    last.swap(text);
  }
  return seals;
}

// Of the first `blocks` of a batch. With one layer group a block's length says its tokens; with
// more, other tokens of each may have the same length together, so they are in the seal.
std::vector<Seal> SealsOf(const DropInBatch& batch, size_t blocks) {
  if (batch.layout == nullptr) return SealsOfParts(batch, blocks);
  const std::string layout = batch.layout->Fingerprint();
  std::vector<Seal> seals(blocks, SealOf(layout));
  if (batch.layout->groups() == 1) return seals;
  for (size_t i = 0; i < blocks; ++i) {
    std::string text = layout;
    for (uint32_t group = 0; group < batch.layout->groups(); ++group) {
      text += fmt::format(" {}", context::TokensOf(RunsOf(batch, group, i)));
    }
    seals[i] = SealOf(text);
  }
  return seals;
}

// Puts route keys to the keys of one call, and replaces what lies under those of `replaced`.
class RoutedStore final : public context::BlockStore {
 public:
  RoutedStore(Client* client, const std::vector<std::string>& keys,
              const std::vector<std::string>& routes, std::set<std::string_view> replaced = {})
      : client_(client), replaced_(std::move(replaced)) {
    if (routes.empty()) return;
    EMS_CHECK(routes.size() == keys.size(), "{} routes for {} keys", routes.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) routes_.emplace(keys[i], routes[i]);
  }
  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override {
    std::vector<Result<bool>> there = client_->MultiExists(Routed(items), options);
    for (size_t i = 0; i < items.size() && !replaced_.empty(); ++i) {
      if (replaced_.contains(items[i].key)) there[i] = false;
    }
    return there;
  }
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override {
    std::vector<Result<uint64_t>> lengths = client_->MultiGet(Routed(items), options);
    for (size_t i = 0; i < items.size(); ++i) {
      const bool other = lengths[i].ok() ? *lengths[i] != items[i].into.size_bytes()
                                         : lengths[i].status().code() == StatusCode::kOutOfRange;
      if (other) of_another_length_.emplace_back(items[i].key);
    }
    return lengths;
  }
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override {
    return client_->MultiGetRange(Routed(items), options);
  }
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override {
    if (replaced_.empty()) return client_->MultiPut(Routed(items), options);
    std::vector<Status> results(items.size());
    for (const bool overwrite : {false, true}) {
      std::vector<PutItem> part;
      std::vector<size_t> at;
      for (size_t i = 0; i < items.size(); ++i) {
        if (replaced_.contains(items[i].key) != overwrite) continue;
        part.push_back(items[i]);
        at.push_back(i);
      }
      if (part.empty()) continue;
      PutOptions put = options;
      put.overwrite = overwrite;
      std::vector<Status> answers = client_->MultiPut(Routed(std::span<const PutItem>(part)), put);
      EMS_CHECK(answers.size() == at.size(), "{} answers for {} items", answers.size(), at.size());
      for (size_t i = 0; i < at.size(); ++i) results[at[i]] = std::move(answers[i]);
    }
    return results;
  }
  bool Submit(std::function<void()>&& work) override { return client_->Submit(std::move(work)); }
  // Keys of values that were not as long as the memory for them.
  std::vector<std::string>& of_another_length() { return of_another_length_; }

 private:
  template <typename Item>
  std::vector<Item> Routed(std::span<const Item> items) const {
    std::vector<Item> routed(items.begin(), items.end());
    if (routes_.empty()) return routed;
    for (Item& item : routed) item.route_key = routes_.at(item.key);
    return routed;
  }

  Client* const client_;
  std::unordered_map<std::string_view, std::string_view> routes_;
  const std::set<std::string_view> replaced_;
  std::vector<std::string> of_another_length_;
};

// The memory of each block, in order; `seals` end them.
Result<std::vector<std::vector<MutableBytes>>> PartsOf(const DropInBatch& batch, size_t blocks,
                                                       std::vector<Seal>* seals) {
  std::vector<std::vector<MutableBytes>> parts(blocks);
  MemoryProbe probe(batch.is_load ? MemoryUse::kWrite : MemoryUse::kRead);
  if (batch.layout == nullptr) {
    for (const MutableBytes part : batch.parts) EMS_RETURN_IF_ERROR(probe.Add(part));
    EMS_RETURN_IF_ERROR(probe.Finish());
    for (size_t i = 0; i < blocks; ++i) {
      const auto given = GivenParts(batch, i);
      parts[i].reserve(given.size() + 1);
      parts[i].assign(given.begin(), given.end());
      parts[i].push_back((*seals)[i]);
    }
    return parts;
  }
  for (uint32_t group = 0; group < batch.layout->groups(); ++group) {
    for (size_t i = 0; i < blocks; ++i) {
      EMS_RETURN_IF_ERROR(batch.layout->AppendParts(group, RunsOf(batch, group, i), &parts[i]));
    }
  }
  for (size_t i = 0; i < blocks; ++i) {
    for (const MutableBytes part : parts[i]) EMS_RETURN_IF_ERROR(probe.Add(part));
    parts[i].push_back((*seals)[i]);
  }
  EMS_RETURN_IF_ERROR(probe.Finish());
  return parts;
}

// Blocks in one piece, behind which there is room, have their seals there: each is one piece of
// memory with its seal, too.
void SealInPlace(std::vector<std::vector<MutableBytes>>* parts) {
  for (std::vector<MutableBytes>& block : *parts) {
    if (block.size() != 2) continue;
    const MutableBytes bytes = block[0], seal = block[1];
    std::copy(seal.begin(), seal.end(), bytes.data() + bytes.size());
    block.assign(1, MutableBytes(bytes.data(), bytes.size() + seal.size()));
  }
}

// The names of a batch; those of hashes, 'h' and the decimal number, are put into `room`.
std::vector<std::string_view> NamesOf(const DropInBatch& batch, std::string* room) {
  std::vector<std::string_view> names(batch.names.begin(), batch.names.end());
  if (batch.hashes.empty()) return names;
  constexpr size_t kHashTextBytesMax = 1 + 20;  // -2^63 and 2^64 - 1 have 20 characters each
  room->resize(batch.hashes.size() * kHashTextBytesMax);
  names.reserve(batch.hashes.size());
  char* at = room->data();
  for (const DropInHash hash : batch.hashes) {
    char* const begin = at;
    *at++ = 'h';
    at = hash.is_large
             ? std::to_chars(at, begin + kHashTextBytesMax, hash.bits).ptr
             : std::to_chars(at, begin + kHashTextBytesMax, static_cast<int64_t>(hash.bits)).ptr;
    names.emplace_back(begin, at);
  }
  return names;
}

const std::vector<std::string>& RoutesOf(const DropInBatch& batch,
                                         const std::vector<std::string>& keys) {
  EMS_CHECK(batch.routes.empty() || batch.routes.size() == batch.blocks(), "{} routes of {} blocks",
            batch.routes.size(), batch.blocks());
  return batch.routes.empty() ? keys : batch.routes;
}

bool MostAnswer(Client* client) {
  const auto view = client->views().view();
  if (view == nullptr || view->nodes().empty()) return false;
  const size_t asked = std::min(view->nodes().size(), kAskedMax);
  size_t answered = 0, silent = 0;
  for (size_t i = 0; i < asked && answered * 2 <= asked && silent * 2 < asked; ++i) {
    const bool answers = client->ServerStats(view->nodes()[i].name, kAskTimeout).ok();
    (answers ? answered : silent) += 1;
  }
  return answered * 2 > asked;
}

ClientOptions ClientOptionsOf(const DropInPoolOptions& options) {
  ClientOptions client;
  client.controller = options.controller;
  client.name_space = options.name_space;
  client.async_threads = 1;
  client.start_timeout = options.start_timeout;
  client.staging_bytes = options.staging_bytes;
  return client;
}

}  // namespace

DropInOperation::DropInOperation(size_t total, std::shared_ptr<Call> call)
    : total_(total), owner_(::getpid()), call_(std::move(call)) {}

std::shared_ptr<DropInOperation> DropInOperation::Missed(size_t total) {
  CallGate gate;
  auto call = std::make_shared<Call>(Deadline::After(Duration{0}), &gate, [total](const Status&) {
    return DropInOutcome{0, total, OkStatus()};
  });
  call->Withdraw(OkStatus());
  return std::make_shared<DropInOperation>(total, std::move(call));
}

bool DropInOperation::Ready() const { return InChild() || call_.Done(); }

DropInOutcome DropInOperation::Wait() const {
  if (InChild()) {
    return {0, total_,
            Error(StatusCode::kUnavailable,
                  "the request was submitted before this process was forked: its parent has it")};
  }
  return call_.Result();
}

// A child has neither the threads that would finish it nor, for sure, a lock that is free.
bool DropInOperation::InChild() const { return ::getpid() != owner_; }

DropInPool::DropInPool(std::unique_ptr<Client> client, context::BlockHasher hasher)
    : client_(std::move(client)),
      hasher_(std::move(hasher)),
      host_id_(fabric::HostId()),
      breaker_(&client_->views(), [this] { return client_->name_space().ref.id; }),
      gate_(OkStatus()),
      threads_("ems-drop-in", kThreads, kQueueMax, OnWake::kWait) {}

DropInPool::~DropInPool() { Close(); }

void DropInPool::Close() { gate_.Close(); }

Result<std::unique_ptr<DropInPool>> DropInPool::Open(const DropInPoolOptions& options) {
  // Before anything is dialled: a bad domain stays one.
  EMS_ASSIGN_OR_RETURN(context::BlockHasher hasher, context::BlockHasher::Make(options.domain));
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(ClientOptionsOf(options)));
  return std::unique_ptr<DropInPool>(new DropInPool(std::move(client), std::move(hasher)));
}

bool DropInPool::Probe(const DropInPoolOptions& options) {
  ClientOptions client_options = ClientOptionsOf(options);
  client_options.start_timeout = kProbeTimeout;
  client_options.transport = TransportChoice::kTcp;
  const auto client = Client::Connect(client_options);
  return client.ok() && MostAnswer(client->get());
}

bool DropInPool::Healthy() {
  if (!MostAnswer(client_.get())) return false;
  breaker_.OnAnswer();
  return true;
}

std::shared_ptr<DropInOperation> DropInPool::Submit(DropInBatch batch) {
  using Call = DropInOperation::Call;
  const Callers::Stay stay(&callers_);
  const size_t total = batch.blocks();
  const auto call =
      std::make_shared<Call>(Deadline::After(batch.timeout), &gate_, [total](const Status& why) {
        return DropInOutcome{0, total, why};
      });
  const auto threads = [this](std::function<void()>&& work) {
    return threads_.TrySubmit(std::move(work));
  };
  Call::Submit(call, threads, OkStatus(),
               [this, batch = std::move(batch)](const std::shared_ptr<Call>& mine) {
                 YieldToCallers();
                 callers_.LetGo();
                 mine->Finish(RunUntil(batch, mine->deadline()));
               });
  return std::make_shared<DropInOperation>(total, call);
}

DropInOutcome DropInPool::Run(const DropInBatch& batch) {
  const CallPass pass(&gate_);
  if (!pass.is_open()) return {0, batch.blocks(), {}};
  return RunUntil(batch, Deadline::After(batch.timeout));
}

DropInOutcome DropInPool::RunUntil(const DropInBatch& batch, Deadline deadline) {
  if (!breaker_.Allow()) return {0, batch.blocks(), {}};
  return batch.is_load ? Load(batch, deadline) : Save(batch, deadline);
}

DropInOutcome DropInPool::Load(const DropInBatch& batch, Deadline deadline) {
  const size_t total = batch.blocks();
  const auto keys = KeysOf(batch);
  if (!keys.ok()) return {0, total, keys.status()};
  if (keys->empty()) return {0, total, {}};
  std::vector<Seal> seals(keys->size());
  const auto parts = PartsOf(batch, keys->size(), &seals);
  if (!parts.ok()) return {0, total, parts.status()};
  std::vector<MutableBuffers> into;
  into.reserve(keys->size());
  for (const auto& block : *parts) into.emplace_back(std::span<const MutableBytes>(block));

  RoutedStore store(client_.get(), *keys, batch.routes);
  context::ContextCache cache(&store);
  const Duration left = std::max<Duration>(deadline.Remaining(), std::chrono::milliseconds(1));
  const context::LoadResult result = cache.Load(*keys, into, {.timeout = left});
  size_t success = result.leading_blocks;
  std::vector<Status> blocks;
  blocks.reserve(result.blocks.size());
  for (const auto& block : result.blocks) blocks.push_back(block.status());
  const std::vector<Seal> wanted = SealsOf(batch, blocks.size());
  std::vector<std::string> foreign = std::move(store.of_another_length());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].ok() || seals[i] == wanted[i]) continue;
    success = std::min(success, i);
    foreign.push_back((*keys)[i]);
  }
  RememberForeign(std::move(foreign));
  return Judge(blocks, RoutesOf(batch, *keys), success, total);
}

void DropInPool::RememberForeign(std::vector<std::string> keys) {
  if (keys.empty()) return;
  auto foreign = foreign_.Lock();
  if (foreign->size() + keys.size() > kForeignMax)
    foreign->clear();  // found again when next loaded
  for (std::string& key : keys) {
    if (foreign->size() < kForeignMax) foreign->insert(std::move(key));
  }
}

std::vector<std::string> DropInPool::TakeForeign(const std::vector<std::string>& keys) {
  std::vector<std::string> taken;
  auto foreign = foreign_.Lock();
  if (foreign->empty()) return taken;
  for (const std::string& key : keys) {
    if (foreign->erase(key) > 0) taken.push_back(key);
  }
  return taken;
}

DropInOutcome DropInPool::Save(const DropInBatch& batch, Deadline deadline) {
  const size_t total = batch.blocks();
  const auto keys = KeysOf(batch);
  if (!keys.ok()) return {0, total, keys.status()};
  std::vector<Seal> seals = SealsOf(batch, total);
  auto parts = PartsOf(batch, total, &seals);
  if (!parts.ok()) return {0, total, parts.status()};
  if (batch.seal_room) SealInPlace(&*parts);
  std::vector<std::vector<ConstBytes>> const_parts;
  const_parts.reserve(total);
  for (const auto& block : *parts) const_parts.emplace_back(block.begin(), block.end());
  std::vector<ConstBuffers> values;
  values.reserve(total);
  for (const auto& block : const_parts) values.emplace_back(std::span<const ConstBytes>(block));

  const std::vector<std::string> foreign = TakeForeign(*keys);
  RoutedStore store(client_.get(), *keys, batch.routes,
                    std::set<std::string_view>(foreign.begin(), foreign.end()));
  context::ContextCache cache(&store);
  const Duration left = std::max<Duration>(deadline.Remaining(), std::chrono::milliseconds(1));
  const context::SaveResult result = cache.Save(*keys, values, {.timeout = left});
  const auto failed = std::find_if(result.blocks.begin(), result.blocks.end(),
                                   [](const Status& block) { return !block.ok(); });
  return Judge(result.blocks, RoutesOf(batch, *keys),
               static_cast<size_t>(failed - result.blocks.begin()), total);
}

DropInOutcome DropInPool::Exists(const DropInBatch& batch) {
  const size_t total = batch.blocks();
  const auto keys = KeysOf(batch);
  if (!keys.ok()) return {0, total, keys.status()};
  if (keys->empty() || gate_.IsClosing() || !breaker_.Allow()) return {0, total, {}};
  RoutedStore store(client_.get(), *keys, batch.routes);
  context::ContextCache cache(&store);
  const context::LookupResult result = cache.Lookup(*keys, {.timeout = batch.timeout});
  std::vector<Status> blocks;
  for (const auto& block : result.present) {
    blocks.push_back(block.ok() && !*block ? Miss() : block.status());
  }
  DropInOutcome outcome = Judge(blocks, RoutesOf(batch, *keys), result.leading_blocks, total);
  outcome.status = OkStatus();
  return outcome;
}

Result<std::vector<std::string>> DropInPool::KeysOf(const DropInBatch& batch) const {
  std::string room;
  EMS_ASSIGN_OR_RETURN(std::vector<std::string> keys, hasher_.OwnKeys(NamesOf(batch, &room)));
  if (!batch.local_only) return keys;
  const std::vector<std::string>& routes = RoutesOf(batch, keys);
  size_t local = 0;
  while (local < keys.size() && IsLocal(routes[local])) ++local;
  keys.resize(local);
  return keys;
}

bool DropInPool::IsLocal(const std::string& route) const {
  const auto view = client_->views().view();
  const NodeInfo* owner = view->Owner(SlotOf(client_->name_space().ref.id, route));
  return owner != nullptr && fabric::OnOneMachine(owner->host_id, host_id_);
}

DropInOutcome DropInPool::Judge(const std::vector<Status>& blocks,
                                const std::vector<std::string>& routes, size_t success,
                                size_t total) {
  EMS_CHECK(success <= blocks.size() && blocks.size() <= total, "{} of {} of {} blocks", success,
            blocks.size(), total);
  const bool is_outage = breaker_.Judge(blocks, routes);
  const auto late = std::find_if(blocks.begin(), blocks.end(), [](const Status& block) {
    return block.code() == StatusCode::kDeadlineExceeded;
  });
  if (is_outage && late != blocks.end()) return {0, total, *late};
  return {success, total, OkStatus()};
}

}  // namespace ems::batches
