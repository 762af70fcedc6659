#include "mp_server/forward/migrator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "mp_server/store/kept_scan.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLookEvery = milliseconds(250);
constexpr Duration kBurst = milliseconds(50);  // of the rate, after a pause
constexpr uint64_t kKeyBytesMin = 32 * kKiB;   // a key counts as so much: each is a call
constexpr Duration kAgain = seconds(1);
constexpr int kAgainShiftMax = 5;
constexpr uint32_t kPagesMax = 4096;  // of a slot; a list that is longer does not end
constexpr Duration kRoomAgain = seconds(10);
constexpr Duration kKnowsAgain = seconds(60);  // a server that does not know how may be updated

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

// The answer to a ScanKept.
class PageSink final : public fabric::AnswerSink {
 public:
  explicit PageSink(wire::KeptPage* page) : page_(*page) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    EMS_ASSIGN_OR_RETURN(page_, wire::ParseKeptPage(table));
    came_ = true;
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}
  bool came() const { return came_; }

 private:
  wire::KeptPage& page_;
  bool came_ = false;
};

}  // namespace

Migrator::Migrator(const Options& options) : options_(options) {
  EMS_CHECK(options.store != nullptr && options.ownership != nullptr && options.moved != nullptr &&
                options.forwarder != nullptr && options.bytes_per_s > 0,
            "a migrator without its parts");
}

Migrator::~Migrator() {
  {
    auto wake = wake_.Lock();
    wake->stop = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

void Migrator::Start() {
  thread_ = Thread("ems-migrate", [this] { Loop(); });
}

void Migrator::Poke() {
  {
    auto wake = wake_.Lock();
    wake->poked = true;
  }
  wakeup_.notify_all();
}

void Migrator::Loop() {
  while (true) {
    const Duration pause = Step();
    auto wake = wake_.Lock();
    if (pause > Duration::zero())
      wake.WaitFor(wakeup_, pause, [](const Wake& now) { return now.stop || now.poked; });
    if (wake->stop) return;
    wake->poked = false;
  }
}

Duration Migrator::Step() {
  const TimePoint now = options_.clock->Now();
  if (now < ready_at_) return ready_at_ - now;
  if (!job_ && !Next(now)) return kLookEvery;
  const auto origin = options_.moved->OriginOf(job_->slot);
  if (!origin || origin->era != job_->origin.era) {  // it has moved on, or its time is over
    job_.reset();
  } else if (!job_->keys.empty()) {
    BringNext(now);
  } else if (!job_->listed) {
    ListSome(now);
  } else {
    EndListing(now);
  }
  return Duration::zero();
}

bool Migrator::Next(TimePoint now) {
  if (due_.empty()) Look(now);
  while (!due_.empty()) {
    const MovedSlots::Opened one = due_.front();
    due_.pop_front();
    if (!IsDue(one, now)) continue;
    job_ = Job{.slot = one.slot, .origin = one.origin, .from = one.origin};
    return true;
  }
  return false;
}

bool Migrator::IsDue(const MovedSlots::Opened& one, TimePoint now) {
  // An origin that is asked by an older view may not have lost the slot yet, and would say that it
  // keeps nothing.
  if (options_.ownership->settled_version().epoch() < one.origin.era.since) return false;
  if (runs_[one.origin.node].again_at > now) return false;
  Tried& tried = tried_[one.slot];
  if (tried.era != one.origin.era) tried = {.era = one.origin.era};
  return tried.again_at <= now;
}

void Migrator::Look(TimePoint now) {
  if (!options_.moved->AnyOpen() && runs_.empty()) return;
  const std::vector<MovedSlots::Opened> opened = options_.moved->opened();
  std::map<SlotId, MovedSlots::Opened> before = std::exchange(known_, {});
  for (auto& [node, run] : runs_) run.open = 0;
  for (const MovedSlots::Opened& one : opened) {
    known_.emplace(one.slot, one);
    const auto same = before.find(one.slot);
    if (same != before.end() && same->second.origin.era == one.origin.era) before.erase(same);
    ++runs_[one.origin.node].open;
  }
  for (const auto& [slot, gone] : before) {
    tried_.erase(slot);
    if (gone.until > now) continue;  // it has moved on
    options_.metrics.given_up.Add();
    ++runs_[gone.origin.node].given_up;
  }
  for (auto& [node, run] : runs_) {
    if (run.open == 0 || run.began != TimePoint()) continue;
    run.began = now;
    EMS_LOG(kInfo, "mp_server", "migration begins from_node={} slots={}", node.value(), run.open);
  }
  std::erase_if(runs_, [&](const auto& one) {
    if (one.second.open > 0) return false;
    if (one.second.began != TimePoint()) EndRun(one.first, one.second, now);
    return true;
  });
  for (const MovedSlots::Opened& one : opened)
    if (IsDue(one, now)) due_.push_back(one);
}

void Migrator::EndRun(NodeId node, const Run& run, TimePoint now) const {
  const double took = Seconds(now - run.began);
  options_.metrics.seconds.Set(took);
  EMS_LOG(kInfo, "mp_server",
          "migration ends from_node={} keys={} bytes={} closed_slots={} given_up_slots={} "
          "seconds={:.1f}",
          node.value(), run.keys, run.bytes, run.closed, run.given_up, took);
}

// A server that is in no view any more may be in the next one again.
bool Migrator::MayCall(NodeId node, TimePoint now) {
  const std::shared_ptr<CircuitBreaker> breaker = options_.forwarder->peers().BreakerOf(node);
  if (breaker != nullptr && breaker->Allow(Clock::System().Now())) return true;
  PutOffAll(node, kAgain, now);
  return false;
}

void Migrator::ListSome(TimePoint now) {
  const wire::ScanKeptBody body{.era = {job_->from.era.history, job_->from.era.since},
                                .cursor = job_->cursor,
                                .items_max = options_.page_keys};
  wire::KeptPage page;
  if (job_->from.node == options_.ownership->self()) {
    page = ScanKept(options_.store->dram(), job_->slot, body);
  } else {
    if (!MayCall(job_->from.node, now)) return;
    const Result<wire::WireStatus> asked = AskForPage(body, &page);
    if (!asked.ok()) return PutOff(kAgain, now);
    if (*asked == wire::WireStatus::kUnimplemented)
      return PutOffAll(job_->from.node, kKnowsAgain, now);
    if (*asked != wire::WireStatus::kOk) return PutOff(kAgain, now);
  }
  if (!GoesOn(page)) return PutOff(kAgain, now);
  if (!job_->further && page.head.node != 0)
    job_->before = Origin{{job_->origin.era.history, page.head.since}, NodeId(page.head.node)};
  for (wire::ListedKey& one : page.keys.keys) {
    job_->keys.push_back({.ns = page.ns(),
                          .key = std::move(one.key),
                          .value_bytes = one.value_bytes,
                          .used = now - milliseconds(one.idle_ms)});
  }
  job_->listed = !page.keys.next.has_value();
  job_->cursor = page.keys.next.value_or(wire::kScanBegin);
}

// A page is foreign: one that leads nowhere, or back, would be asked for without end.
bool Migrator::GoesOn(const wire::KeptPage& page) {
  if (++job_->pages > kPagesMax) return false;
  return !page.keys.next || (!page.keys.keys.empty() && *page.keys.next != job_->cursor);
}

Result<wire::WireStatus> Migrator::AskForPage(const wire::ScanKeptBody& body,
                                              wire::KeptPage* page) {
  const Deadline deadline = Deadline::After(options_.timeout);
  wire::WireStatus status = wire::WireStatus::kInternal;
  EMS_RETURN_IF_ERROR(options_.forwarder->peers().Call(
      job_->from.node, deadline, &channels_, [&](fabric::RpcChannel* channel) {
        fabric::RpcRequest& request = channel->NewRequest();
        request.header.op = wire::Op::kScanKept;
        request.header.deadline_ms = static_cast<uint32_t>(deadline.RemainingMs());
        request.header.view = options_.ownership->version().packed();
        request.header.slot = job_->slot.value();
        const ConstBytes raw = wire::RawBytes(body);
        request.head.assign(raw.begin(), raw.end());
        PageSink sink(page);
        channel->Start(&sink);
        Status done;
        fabric::RunAll(std::span(&channel, 1), deadline, std::span(&done, 1));
        if (done.ok()) status = channel->answer().status;
        if (status == wire::WireStatus::kOk && !sink.came())
          return Error(StatusCode::kDataLoss, "an answer to ScanKept without a page");
        return done;
      }));
  return status;
}

void Migrator::BringNext(TimePoint now) {
  const Wanted& next = job_->keys.front();
  const TieredNamespace objects = options_.store->Open(next.ns);
  if (!objects) {  // deleted, or its news is on the way here
    job_->whole = false;
    return job_->keys.pop_front();
  }
  const bool settled = options_.moved->IsMarked(job_->slot, next.ns, objects.HashOf(next.key),
                                                job_->origin.era.since) ||
                       objects.Find(next.key, /*touch=*/false).has_value();
  if (settled) return job_->keys.pop_front();
  if (now - next.used >= options_.store->dram().IdleMost(next.ns, next.key, next.value_bytes)) {
    options_.metrics.no_room.Add();
    return PutOff(kRoomAgain, now);
  }
  if (job_->origin.node != options_.ownership->self() && !MayCall(job_->origin.node, now)) return;
  uint64_t bytes = 0;
  const Brought how =
      options_.forwarder->Bring({.ns = next.ns, .slot = job_->slot, .key = next.key},
                                Deadline::After(options_.timeout), &channels_, &bytes);
  Spend(std::max(bytes, kKeyBytesMin), now);
  if (how == Brought::kStored) {
    options_.metrics.keys.Add();
    options_.metrics.bytes.Add(static_cast<double>(bytes));
    Run& run = runs_[job_->origin.node];
    ++run.keys;
    run.bytes += bytes;
  }
  if (how == Brought::kNoRoom) {  // though there is some: memory is being prepared, or in use
    options_.metrics.no_room.Add();
    return PutOff(kAgain, now);
  }
  if (how == Brought::kFailed || how == Brought::kRefused) job_->whole = false;
  job_->keys.pop_front();
}

void Migrator::Spend(uint64_t bytes, TimePoint now) {
  const double time_s = static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_s);
  ready_at_ = std::max(ready_at_, now - kBurst) +
              std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s));
}

void Migrator::EndListing(TimePoint now) {
  if (job_->before) {
    options_.moved->Reach(job_->slot, job_->origin.era, job_->before->node);
    job_->from = *std::exchange(job_->before, std::nullopt);
    job_->further = true;
    job_->listed = false;
    return;
  }
  if (!job_->whole) return PutOff(kAgain, now);
  const bool lingers = options_.linger > Duration::zero();
  if (lingers && !std::exchange(tried_[job_->slot].complete, true))
    return PutOff(options_.linger, now);
  if (options_.moved->Finish(job_->slot, job_->origin.era)) {
    options_.metrics.closed.Add();
    ++runs_[job_->origin.node].closed;
    known_.erase(job_->slot);
    tried_.erase(job_->slot);
  }
  job_.reset();
}

void Migrator::PutOff(Duration time, TimePoint now) {
  Tried& tried = tried_[job_->slot];
  tried.again_at = now + std::max(time, kAgain * (1 << std::min(tried.times, kAgainShiftMax)));
  ++tried.times;
  job_.reset();
}

// Where it is not the slot's origin, the origin's other slots go on.
void Migrator::PutOffAll(NodeId node, Duration time, TimePoint now) {
  if (node != job_->origin.node) return PutOff(time, now);
  runs_[node].again_at = now + time;
  job_.reset();
}

}  // namespace ems::server
