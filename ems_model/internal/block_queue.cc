#include "ems_model/internal/block_queue.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/thread_pool.h"

namespace ems::model::internal {

BlockQueue::BlockQueue(const Manifest& manifest, std::span<const uint32_t> wanted, uint32_t shares,
                       std::shared_ptr<StopFlag> failed)
    : manifest_(manifest), shares_(shares), failed_(std::move(failed)) {
  EMS_CHECK(shares > 0, "nobody reads");
  auto queues = queues_.Lock();
  queues->blocks.resize(manifest.blocks.size());
  for (const uint32_t block : wanted) {
    EMS_CHECK(block < queues->blocks.size(), "block {} of {}", block, queues->blocks.size());
    queues->blocks[block].phase = Phase::kUnknown;
  }
  queues->state.left = queues->state.unknown = wanted.size();
}

void BlockQueue::Learn(std::span<const uint32_t> blocks) {
  auto queues = queues_.Lock();
  for (const uint32_t index : blocks) {
    EMS_CHECK(index < queues->blocks.size(), "block {} of {}", index, queues->blocks.size());
    Block& block = queues->blocks[index];
    if (!std::exchange(block.known, true) && block.phase == Phase::kDirect) {
      queues->direct.push_front(index);
      queues->direct_at = TimePoint();
    }
    if (block.phase != Phase::kUnknown) continue;
    block.phase = Phase::kReady;
    --queues->state.unknown;
    queues->ready.push_back(index);
    queues->ready_bytes += manifest_.blocks[index].bytes;
  }
  work_.notify_all();
}

bool BlockQueue::HasWork(const Queues& queues) {
  return queues.state.over() || UntilWork(queues) <= Duration(0);
}

Duration BlockQueue::UntilWork(const Queues& queues) {
  if (!queues.ready.empty()) return Duration(0);
  const TimePoint now = Clock::System().Now();
  Duration wait = std::chrono::seconds(1);
  if (queues.state.direct > 0) wait = std::min(wait, queues.direct_at - now);
  if (!queues.missing.empty()) wait = std::min(wait, queues.missing.begin()->first - now);
  return wait;
}

BlockQueue::Task BlockQueue::Take(uint64_t bytes_max) {
  auto queues = queues_.Lock();
  while (!HasWork(*queues)) {
    // Another reader's Missed may come before the moment that is waited for: it wakes all.
    const Duration wait = UntilWork(*queues);
    (void)queues.WaitFor(work_, std::max(wait, Duration(std::chrono::microseconds(100))),
                         [](const Queues& q) { return HasWork(q); });
  }
  if (queues->state.over()) return {};
  Task task = TakeFrom(&*queues, bytes_max);
  if (queues->readers == 0) queues->idle += Clock::System().Now() - queues->idle_since;
  queues->readers += task.blocks.size();
  return task;
}

BlockQueue::Task BlockQueue::TakeFrom(Queues* queues, uint64_t bytes_max) const {
  Task task;
  uint64_t bytes = 0;
  const TimePoint now = Clock::System().Now();
  uint64_t most = std::min(bytes_max, queues->ready_bytes / shares_);
  const auto take = [&](uint32_t index) {
    const uint64_t more = manifest_.blocks[index].bytes;
    if (task.blocks.size() == kBatchBlocksMax || (bytes > 0 && bytes + more > most)) return false;
    bytes += more;
    SetRefused(queues, index, false);
    queues->blocks[index].phase = Phase::kBusy;
    queues->blocks[index].round = queues->round;
    task.blocks.push_back(index);
    return true;
  };
  while (!queues->ready.empty() && take(queues->ready.front())) {
    queues->ready_bytes -= manifest_.blocks[queues->ready.front()].bytes;
    queues->ready.pop_front();
  }
  most = bytes_max;
  while (!queues->missing.empty() && queues->missing.begin()->first <= now &&
         take(queues->missing.begin()->second)) {
    queues->missing.erase(queues->missing.begin());
    --queues->state.missing;
  }
  if (!task.blocks.empty()) return task;
  EMS_CHECK(queues->state.direct > 0, "there is work, but no block for it");
  while (queues->blocks[queues->direct.front()].phase != Phase::kDirect) queues->direct.pop_front();
  const uint32_t index = queues->direct.front();
  queues->direct.pop_front();
  --queues->state.direct;
  (void)take(index);
  const Block& block = queues->blocks[index];
  task.direct = true;
  task.known = block.known;
  task.ask = block.known && !block.distrusted;
  return task;
}

void BlockQueue::SetRefused(Queues* queues, uint32_t index, bool refused) {
  queues->state.refused += static_cast<size_t>(refused);
  queues->state.refused -=
      static_cast<size_t>(std::exchange(queues->blocks[index].refused, refused));
}

void BlockQueue::Rest(Queues* queues) {
  EMS_CHECK(queues->readers > 0, "a block is given back that nobody took");
  if (--queues->readers == 0) queues->idle_since = Clock::System().Now();
}

void BlockQueue::Done(uint32_t index, bool from_pool) {
  auto queues = queues_.Lock();
  Rest(&*queues);
  EMS_CHECK(queues->state.left > 0, "block {} is done, and none was left", index);
  queues->blocks[index].phase = Phase::kDone;
  --queues->state.left;
  queues->state.source_trouble = OkStatus();
  if (!from_pool) queues->source_pause = Duration(0);
  if (from_pool) {
    ++queues->state.arrivals;
    queues->state.trouble = OkStatus();
  }
  if (!queues->state.over()) return;
  work_.notify_all();
  news_.notify_all();
}

void BlockQueue::Missed(uint32_t index, const Status& why) {
  auto queues = queues_.Lock();
  Rest(&*queues);
  Block& block = queues->blocks[index];
  const Duration delay = std::min(kRetryMost, kRetryFirst * (1 << std::min<int>(block.misses, 5)));
  block.misses = static_cast<uint8_t>(std::min(block.misses + 1, 255));
  block.phase = Phase::kMissing;
  queues->missing.emplace(Clock::System().Now() + delay, index);
  ++queues->state.missing;
  const bool refused = why.code() != StatusCode::kNotFound;
  SetRefused(&*queues, index, refused);
  if (refused) queues->state.trouble = why;
  queues->missed = true;
  work_.notify_all();
  news_.notify_all();
}

void BlockQueue::AskAgain() {
  auto queues = queues_.Lock();
  ++queues->round;
  std::multimap<TimePoint, uint32_t> now;
  for (const auto& [when, block] : queues->missing) now.emplace(TimePoint{}, block);
  queues->missing = std::move(now);
  work_.notify_all();
}

bool BlockQueue::AskedAgain() {
  auto queues = queues_.Lock();
  return std::ranges::none_of(queues->blocks, [&](const Block& block) {
    return (block.phase == Phase::kMissing || block.phase == Phase::kBusy) &&
           block.round < queues->round;
  });
}

void BlockQueue::MakeDirect(uint32_t index) {
  auto queues = queues_.Lock();
  Rest(&*queues);
  queues->blocks[index].distrusted = true;
  PutDirect(&*queues, index);
  work_.notify_all();
}

void BlockQueue::PutDirect(Queues* queues, uint32_t index) {
  SetRefused(queues, index, false);
  queues->blocks[index].phase = Phase::kDirect;
  queues->direct.push_back(index);
  ++queues->state.direct;
}

void BlockQueue::SourceFailed(uint32_t index, const Status& why, Duration patience) {
  auto queues = queues_.Lock();
  Rest(&*queues);
  const TimePoint now = Clock::System().Now();
  if (queues->state.source_trouble.ok()) queues->source_well = now;
  queues->state.source_trouble = why;
  PutDirect(&*queues, index);
  // Of several reads that failed together the first one counts.
  if (now >= queues->direct_at) {
    queues->source_pause =
        std::clamp(2 * queues->source_pause, kSourceRetryFirst, kSourceRetryMost);
    queues->direct_at = now + queues->source_pause;
  }
  const bool enough = now - queues->source_well >= patience;
  work_.notify_all();
  queues.Unlock();
  if (enough) Fail(why);
}

void BlockQueue::GoDirect() {
  auto queues = queues_.Lock();
  for (uint32_t index = 0; index < queues->blocks.size(); ++index) {
    Block& block = queues->blocks[index];
    if (block.phase != Phase::kUnknown && block.phase != Phase::kMissing) continue;
    PutDirect(&*queues, index);
  }
  queues->missing.clear();
  queues->state.missing = queues->state.unknown = 0;
  work_.notify_all();
}

void BlockQueue::Fail(const Status& error) {
  auto queues = queues_.Lock();
  if (queues->state.error.ok()) queues->state.error = error;
  work_.notify_all();
  news_.notify_all();
  queues.Unlock();
  if (failed_ != nullptr) failed_->Set();
}

BlockQueue::State BlockQueue::state() {
  auto queues = queues_.Lock();
  return queues->state;
}

std::vector<uint32_t> BlockQueue::Waiting(size_t most) {
  auto queues = queues_.Lock();
  std::vector<uint32_t> waiting;
  for (uint32_t i = 0; i < queues->blocks.size() && waiting.size() < most; ++i) {
    const Phase phase = queues->blocks[i].phase;
    if (phase == Phase::kUnknown || phase == Phase::kMissing) waiting.push_back(i);
  }
  return waiting;
}

BlockQueue::State BlockQueue::WaitForNews(Duration timeout) {
  auto queues = queues_.Lock();
  (void)queues.WaitFor(news_, timeout, [](const Queues& q) { return q.state.over() || q.missed; });
  queues->missed = false;
  return queues->state;
}

Duration BlockQueue::idle() {
  auto queues = queues_.Lock();
  return queues->idle;
}

}  // namespace ems::model::internal
