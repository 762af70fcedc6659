#include "mp_sdk/internal/one_sided.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <utility>

#include "common/object_key.h"

namespace ems::internal {
namespace {

constexpr uint32_t kSampleOneIn = 64;
// To read such a value over the socket, for want of its memory, costs more than to look where it
// is.
constexpr uint64_t kPreparedBytesMin = 256 * kKiB;

Status TooSmall(const FoundObject& found, const CopyRequest& request) {
  return Error(StatusCode::kOutOfRange, "value of {} bytes, buffer of {}", found.payload_bytes,
               request.into.size_bytes());
}

Status BeyondTheEnd(const FoundObject& found, const CopyRequest& request) {
  if (request.whole_bytes != 0 && request.whole_bytes != found.payload_bytes) {
    return Error(StatusCode::kOutOfRange, "value of {} bytes, {} expected", found.payload_bytes,
                 request.whole_bytes);
  }
  return Error(StatusCode::kOutOfRange, "{} bytes from {} of a value of {}",
               request.into.size_bytes(), request.offset, found.payload_bytes);
}

}  // namespace

// What a call has to do with one server: keys of a batch take turns among several.
struct OneSided::Visit {
  Visit(ShmSession* with, uint64_t view)
      : session(with), reader(with, &with->identity(), view), sample_below(with->sample_below()) {}
  ~Visit() {
    TellUses();
    session->Count(tally);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  // Uses are told several at a time.
  void NoteUse(Hash128 hash) {
    if (use_count == uses.size()) TellUses();
    uses[use_count++] = hash;
  }
  void TellUses() {
    if (use_count > 0) session->Touch(std::span(uses).first(use_count));
    use_count = 0;
  }

  ShmSession* const session;
  const ObjectReader reader;
  const uint64_t sample_below;
  ReadTally tally;              // not told yet
  std::array<Hash128, 8> uses;  // not told yet
  size_t use_count = 0;
};

// The state that all keys of a call share; counts are added up once, at its end.
struct OneSided::Call {
  // `op`: kGet, or kExists when values are only looked for.
  Call(OneSided* sided, bool touches, wire::Op what, size_t how_many)
      : owner(sided),
        pass(sided->servers_->gate().Enter()),
        routes(sided->servers_->routes()),
        now(Clock::System().Now()),
        touch(touches),
        op(what),
        keys(how_many),
        timed(sided->latencies_ != nullptr && IsSample(what)) {}
  ~Call() {
    EndVisits();
    for (size_t i = 0; i < kCounters; ++i) owner->counters_.Add(i, counts[i]);
    if (timed && counts[kOneSided] == keys)
      owner->latencies_->Record(op, keys, CallPath::kOneSided, Clock::System().Now() - now);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Looking at the clock once more costs a tenth of a small read.
  static bool IsSample(wire::Op op) {  // of each kind: who looks up and loads in turns has both
    static thread_local std::array<uint32_t, 2> calls{};
    return calls[op == wire::Op::kGet ? 0 : 1]++ % kOneSidedSample == 0;
  }
  void NoteUse(const Target& target) {
    if (touch) target.visit->NoteUse(target.hash);
  }

  // A key that was settled here; the server counts all others itself.
  void NoteSettled(const Target& target, bool there, uint64_t bytes) {
    Visit& visit = *target.visit;
    if (target.hash.lo < visit.sample_below) [[unlikely]]
      visit.session->Sample(target.hash);
    ReadTally& tally = visit.tally;
    if (op == wire::Op::kGet) {
      ++(there ? tally.hits : tally.misses);
      tally.bytes += bytes;
    } else {
      ++(there ? tally.found : tally.absent);
    }
  }

  // nullptr: there is no session with it.
  Visit* VisitTo(size_t server) {
    Visit* const visit = &visits[server].visit;
    if ((visited >> server & 1) != 0) return visit;
    ShmSession* const session = routes->servers[server]->session.load(std::memory_order_seq_cst);
    if (session == nullptr) return nullptr;
    visited |= uint64_t{1} << server;
    return new (visit) Visit(session, routes->view);
  }
  void EndVisits() {
    for (; visited != 0; visited &= visited - 1)
      visits[static_cast<size_t>(std::countr_zero(visited))].visit.~Visit();
  }

  OneSided* owner;
  const ReaderGate::Pass pass;
  const LocalRoutes* const routes;
  const TimePoint now;
  const bool touch;
  const wire::Op op;
  const size_t keys;
  const bool timed;
  std::array<uint64_t, kCounters> counts{};
  union Place {
    Place() {}   // NOLINT(modernize-use-equals-default): a visit is made where it is needed
    ~Place() {}  // NOLINT(modernize-use-equals-default)
    Visit visit;
  };
  std::array<Place, LocalRoutes::kServersMax> visits;
  uint64_t visited = 0;  // bits: which of them are there
  static_assert(LocalRoutes::kServersMax <= 64);
};

bool OneSided::WantsChecksum(Verify verify, bool view) const {
  if (verify == Verify::kDefault) {
    verify = policy_ == ChecksumPolicy::kNever     ? Verify::kNever
             : policy_ == ChecksumPolicy::kSampled ? Verify::kSampled
             : view                                ? Verify::kSampled
                                                   : Verify::kAlways;
  }
  if (verify != Verify::kSampled) return verify == Verify::kAlways;
  static thread_local uint32_t reads = 0;
  return reads++ % kSampleOneIn == 0;
}

// Where to read a key, if it can be read at all.
OneSided::Target OneSided::Aim(std::string_view key, std::string_view route_key, Call* call) const {
  Target target;
  if (call->routes == nullptr || key.empty() || key.size() > kKeyBytesMax) return target;
  const std::optional<size_t> server =
      call->routes->IndexOf(SlotOf(ns_.id, route_key.empty() ? key : route_key));
  if (!server) return target;  // on another host
  Visit* const visit = call->VisitTo(*server);
  if (visit == nullptr || !visit->session->usable()) {
    ++call->counts[kNotAttached];
    return target;
  }
  if (!visit->reader.IsCurrent(call->now)) {
    ++call->counts[kNotCurrent];
    return target;
  }
  target.visit = visit;
  target.hash = KeyHash(key);
  return target;
}

// What an outcome means for the caller; nullopt: ask the server. `request`: of a copy.
std::optional<Result<uint64_t>> OneSided::Settle(ReadOutcome outcome, const FoundObject& found,
                                                 const Target& target, const CopyRequest* request,
                                                 Call* call) const {
  switch (outcome) {
    case ReadOutcome::kHit: {
      call->NoteUse(target);
      ++call->counts[kOneSided];
      const uint64_t bytes =
          request != nullptr && request->ranged ? request->into.size_bytes() : found.payload_bytes;
      call->NoteSettled(target, true, bytes);
      return bytes;
    }
    case ReadOutcome::kTooSmall:
    case ReadOutcome::kOutOfRange:
      call->NoteUse(target);
      ++call->counts[kOneSided];
      call->NoteSettled(target, true, 0);
      return outcome == ReadOutcome::kTooSmall ? TooSmall(found, *request)
                                               : BeyondTheEnd(found, *request);
    case ReadOutcome::kMiss:
      ++call->counts[kOneSided];
      call->NoteSettled(target, false, 0);
      return Miss();
    case ReadOutcome::kNeedTable:
    case ReadOutcome::kNeedSegment:
      target.visit->session->Want(
          outcome == ReadOutcome::kNeedTable ? shm::SessionOp::kTable : shm::SessionOp::kSegment,
          found.needed);
      ++call->counts[kNotAttached];
      return std::nullopt;
    case ReadOutcome::kNotCurrent:
      ++call->counts[kNotCurrent];
      return std::nullopt;
    case ReadOutcome::kMismatch:
      ++call->counts[kMismatches];
      [[fallthrough]];
    case ReadOutcome::kNotConclusive:
    case ReadOutcome::kChanged:
      break;
  }
  ++call->counts[kNotConclusive];
  return std::nullopt;
}

std::optional<Result<uint64_t>> OneSided::Lookup(const KeyItem& item, const GetOptions& options) {
  Call call(this, options.touch, wire::Op::kExists, 1);
  const Target target = Aim(item.key, item.route_key, &call);
  if (target.visit == nullptr) return std::nullopt;
  FoundObject found;
  const ReadOutcome outcome = target.visit->reader.Find(item.key, target.hash, &found);
  return Settle(outcome, found, target, nullptr, &call);
}

std::optional<Result<uint64_t>> OneSided::Read(std::string_view key, std::string_view route_key,
                                               const CopyRequest& request,
                                               const GetOptions& options) {
  Call call(this, options.touch, wire::Op::kGet, 1);
  const Target target = Aim(key, route_key, &call);
  if (target.visit == nullptr) return std::nullopt;
  CopyRequest copy = request;
  copy.verify = WantsChecksum(options.verify, false);
  copy.crew = crew_;
  FoundObject found;
  const ReadOutcome outcome = target.visit->reader.Read(key, target.hash, copy, &found);
  return Settle(outcome, found, target, &copy, &call);
}

std::optional<Result<ObjectView>> OneSided::View(const KeyItem& item, const GetOptions& options) {
  Call call(this, options.touch, wire::Op::kGet, 1);
  const Target target = Aim(item.key, item.route_key, &call);
  if (target.visit == nullptr) return std::nullopt;
  const ObjectReader& reader = target.visit->reader;
  FoundObject found;
  ObjectView view;
  ReadOutcome outcome = ReadOutcome::kChanged;
  for (int i = 0; i < ObjectReader::kAttempts && outcome == ReadOutcome::kChanged; ++i) {
    outcome = reader.Find(item.key, target.hash, &found);
    if (outcome != ReadOutcome::kHit) break;
    const ShmSession::Pinned pinned = target.visit->session->Pin(found, reader, &view);
    if (pinned == ShmSession::Pinned::kFull) {
      return Error(StatusCode::kResourceExhausted,
                   "a view of {} bytes: this client's views pin {} of {}, and {} at most together",
                   found.payload_bytes, target.visit->session->pinned_bytes(),
                   target.visit->session->pin_bytes_max(), shm::kHazardsMax);
    }
    if (pinned == ShmSession::Pinned::kChanged) outcome = ReadOutcome::kChanged;
  }
  if (outcome == ReadOutcome::kHit && WantsChecksum(options.verify, true) && !view.Verify().ok()) {
    outcome = ReadOutcome::kMismatch;
  }
  std::optional<Result<uint64_t>> settled = Settle(outcome, found, target, nullptr, &call);
  if (!settled) return std::nullopt;
  if (!settled->ok()) return std::move(*settled).status();
  return view;
}

void OneSided::Prepare(std::span<const PutItem> items, std::span<const Status> statuses) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (statuses[i].ok() && items[i].value.size_bytes() >= kPreparedBytesMin) Prepare(items[i]);
  }
}

void OneSided::Prepare(const PutItem& item) {
  Call call(this, false, wire::Op::kExists, 1);
  const Target target = Aim(item.key, item.route_key, &call);
  call.counts = {};  // nobody has asked for anything
  if (target.visit == nullptr) return;
  FoundObject found;
  const ReadOutcome outcome = target.visit->reader.Find(item.key, target.hash, &found);
  if (outcome == ReadOutcome::kNeedTable)
    target.visit->session->Want(shm::SessionOp::kTable, found.needed);
  if (outcome == ReadOutcome::kNeedSegment)
    target.visit->session->Want(shm::SessionOp::kSegment, found.needed);
}

// Aims at the next keys and sends for their buckets. An empty window: there are no more.
template <typename Item>
void OneSided::Open(std::span<const Item> items, size_t begin, Call* call, Window* window) const {
  window->begin = begin;
  window->count = std::min(kWindow, items.size() - begin);
  for (size_t i = 0; i < window->count; ++i) {
    const Item& item = items[begin + i];
    if (begin + kWindow + i < items.size())
      __builtin_prefetch(items[begin + kWindow + i].key.data());
    window->targets[i] = Aim(item.key, item.route_key, call);
    window->hints[i] = {};
    const Target& target = window->targets[i];
    if (target.visit == nullptr) continue;
    target.visit->reader.LocateBuckets(target.hash, &window->hints[i]);
  }
  for (size_t i = 0; i < window->count; ++i) ObjectReader::LoadBuckets(window->hints[i]);
}

// Takes the keys in windows: all buckets of a window are on their way to the cache before the first
// is looked at, then all headers, then all keys; the next window is opened while headers come.
template <typename Item, typename One>
void OneSided::Sweep(std::span<const Item> items, const Deadline* deadline, Call* call,
                     std::span<Result<uint64_t>> results, std::vector<uint32_t>* left, One one) {
  uint64_t unlooked = 0;  // bytes copied since the last look at the time
  bool late = false;
  std::array<Window, 2> windows;
  Open(items, 0, call, &windows[0]);
  for (size_t n = 0; windows[n % 2].count > 0; ++n) {
    Window& window = windows[n % 2];
    for (size_t i = 0; i < window.count; ++i) {
      const Target& target = window.targets[i];
      if (target.visit == nullptr) continue;
      target.visit->reader.LocateHeader(target.hash, &window.hints[i]);
    }
    for (size_t i = 0; i < window.count; ++i) ObjectReader::LoadHeader(window.hints[i]);
    Open(items, window.begin + window.count, call, &windows[(n + 1) % 2]);
    for (size_t i = 0; i < window.count; ++i) ObjectReader::PrefetchKey(window.hints[i]);
    for (size_t i = 0; i < window.count; ++i) {
      const size_t at = window.begin + i;
      std::optional<Result<uint64_t>> settled;
      if (window.targets[i].visit != nullptr && !late) {
        settled = one(items[at], window.targets[i]);
      }
      if (deadline != nullptr && settled && settled->ok() && (unlooked += **settled) > kLookEvery) {
        unlooked = 0;
        late = deadline->Passed();
      }
      if (settled) {
        results[at] = *std::move(settled);
      } else {
        left->push_back(static_cast<uint32_t>(at));
      }
    }
  }
}

void OneSided::MultiLookup(std::span<const KeyItem> items, const GetOptions& options,
                           std::span<Result<uint64_t>> results, std::vector<uint32_t>* left) {
  Call call(this, options.touch, wire::Op::kExists, items.size());
  Sweep(items, nullptr, &call, results, left, [&](const KeyItem& item, const Target& target) {
    FoundObject found;
    const ReadOutcome outcome = target.visit->reader.Find(item.key, target.hash, &found);
    return Settle(outcome, found, target, nullptr, &call);
  });
}

template <typename Item>
void OneSided::MultiRead(std::span<const Item> items, const GetOptions& options, Deadline deadline,
                         std::span<Result<uint64_t>> results, std::vector<uint32_t>* left) {
  Call call(this, options.touch, wire::Op::kGet, items.size());
  Sweep(items, &deadline, &call, results, left, [&](const Item& item, const Target& target) {
    CopyRequest copy = CopyOf(item);
    copy.verify = WantsChecksum(options.verify, false);
    copy.crew = crew_;
    FoundObject found;
    const ReadOutcome outcome = target.visit->reader.Read(item.key, target.hash, copy, &found);
    return Settle(outcome, found, target, &copy, &call);
  });
}
template void OneSided::MultiRead(std::span<const GetItem>, const GetOptions&, Deadline,
                                  std::span<Result<uint64_t>>, std::vector<uint32_t>*);
template void OneSided::MultiRead(std::span<const RangeItem>, const GetOptions&, Deadline,
                                  std::span<Result<uint64_t>>, std::vector<uint32_t>*);

OneSidedStats OneSided::stats() const {
  return {.one_sided = counters_.Sum(kOneSided),
          .not_attached = counters_.Sum(kNotAttached),
          .not_current = counters_.Sum(kNotCurrent),
          .not_conclusive = counters_.Sum(kNotConclusive),
          .mismatches = counters_.Sum(kMismatches)};
}

}  // namespace ems::internal
