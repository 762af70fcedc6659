#include "mp_server/ssd/record_reader.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kStuckReads = 4;  // so many under way, and none ends: the disk is stuck
constexpr Duration kRest = std::chrono::seconds(1);

int64_t Nanos(TimePoint at) { return at.time_since_epoch().count(); }

}  // namespace

class RecordReader::Job final : public IoOp {
 public:
  explicit Job(RecordReader* owner) : owner_(owner) {}

  void Start(const ObjectName& given_name, std::string given_key, const Row& given_row,
             const ReadTarget& given_target, std::function<void(ReadOutcome)> given_done) {
    name = given_name;
    key = std::move(given_key);
    row = given_row;
    target = given_target;
    done = std::move(given_done);
    attempts = 0;
    const RecordBlocks blocks(row);
    const uint64_t in_bounce = blocks.shape.aligned ? blocks.head_bytes() : blocks.bytes();
    const MutableBytes memory = bounce.Take(in_bounce);
    iov[0] = {memory.data(), in_bounce};
    // The payload of an aligned record goes where the caller wants it, whole blocks at a time.
    iov[1] = {target.value.data(), RoundUp(row.value_bytes, kBlockBytes)};
    parts = std::span<const iovec>(iov).first(blocks.shape.aligned ? 2 : 1);
    wanted = static_cast<int64_t>(in_bounce + (blocks.shape.aligned ? iov[1].iov_len : 0));
    offset = blocks.begin;
    write = false;
    head = memory.subspan(blocks.skip);
  }

  void OnDone(int64_t result) override {
    const ReadOutcome outcome = result == wanted ? Check() : ReadOutcome::kFailed;
    // What the bus or the disk's cache got wrong once it may get right the second time.
    const bool again = outcome == ReadOutcome::kDamaged || outcome == ReadOutcome::kFailed;
    if (again && attempts++ == 0) {
      owner_->options_.io->Submit(this);
      return;
    }
    owner_->Done(this, outcome);
  }

  ReadOutcome Check() {
    const RecordShape shape(row.value_bytes, row.key_bytes);
    const Head checked = CheckHead(head, Expect(owner_->options_.store_id, name, row));
    if (checked.verdict == HeadVerdict::kDamaged) return ReadOutcome::kDamaged;
    if (checked.verdict != HeadVerdict::kGood) return ReadOutcome::kGone;
    if (checked.key != key) return ReadOutcome::kOther;
    if (!shape.aligned && row.value_bytes > 0)
      std::memcpy(target.value.data(), head.data() + shape.payload_offset(), row.value_bytes);
    return CheckValue(target.value, row.value_checksum, target.piece_sums) ? ReadOutcome::kOk
                                                                           : ReadOutcome::kDamaged;
  }

  ObjectName name;
  std::string key;
  Row row;
  ReadTarget target;
  std::function<void(ReadOutcome)> done;
  TimePoint began{};
  int attempts = 0;

 private:
  RecordReader* const owner_;
  AlignedBuffer bounce;
  std::array<iovec, 2> iov{};
  int64_t wanted = 0;
  ConstBytes head;
};

RecordReader::RecordReader(Options options) : options_(options), fds_(options.regions_max) {
  for (auto& fd : fds_) fd.store(-1, std::memory_order_relaxed);
}

RecordReader::~RecordReader() { Drain(); }

void RecordReader::Drain() {
  auto jobs = jobs_.Lock();
  jobs->draining = true;
  jobs.Wait(drained_, [](const Jobs& all) { return all.running == 0; });
}

void RecordReader::SetRegion(uint32_t region, int fd) {
  EMS_CHECK(region < fds_.size(), "region {} of {}", region, fds_.size());
  fds_[region].store(fd, std::memory_order_release);
}

bool RecordReader::Slow(TimePoint now) const {
  if (Nanos(now) < rest_until_ns_.load(std::memory_order_relaxed)) return true;
  return under_way_.load(std::memory_order_relaxed) >= kStuckReads &&
         Nanos(now) - progress_ns_.load(std::memory_order_relaxed) > options_.slow.count();
}

bool RecordReader::Read(const ObjectName& name, std::string key, const Row& row,
                        const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  const TimePoint now = options_.clock->Now();
  const int fd = row.region < fds_.size() ? fds_[row.region].load(std::memory_order_acquire) : -1;
  Job* job = nullptr;
  if (fd >= 0 && !Slow(now)) {
    auto jobs = jobs_.Lock();
    const bool may = !jobs->draining && jobs->running < options_.reads_max;
    if (may && jobs->idle.empty()) {
      jobs->all.push_back(std::make_unique<Job>(this));
      jobs->idle.push_back(jobs->all.back().get());
    }
    if (may) {
      job = jobs->idle.back();
      jobs->idle.pop_back();
      ++jobs->running;
    }
  }
  if (job == nullptr) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  job->Start(name, std::move(key), row, target, std::move(done));
  job->fd = fd;
  job->began = now;
  if (under_way_.fetch_add(1, std::memory_order_relaxed) == 0)
    progress_ns_.store(Nanos(now), std::memory_order_relaxed);
  options_.io->Submit(job);
  return true;
}

void RecordReader::Done(Job* job, ReadOutcome outcome) {
  const TimePoint now = options_.clock->Now();
  progress_ns_.store(Nanos(now), std::memory_order_relaxed);
  if (now - job->began > options_.slow)
    rest_until_ns_.store(Nanos(now + kRest), std::memory_order_relaxed);
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  reads_.fetch_add(1, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kOk)
    bytes_.fetch_add(job->row.value_bytes, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kFailed) failed_.fetch_add(1, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kDamaged) damaged_.fetch_add(1, std::memory_order_relaxed);
  const auto done = std::exchange(job->done, nullptr);
  done(outcome);
  auto jobs = jobs_.Lock();
  jobs->idle.push_back(job);
  --jobs->running;
  drained_.notify_all();  // under the lock: whoever waits may destroy this right after
}

RecordReader::Stats RecordReader::stats() const {
  return {reads_.load(std::memory_order_relaxed),   bytes_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed), failed_.load(std::memory_order_relaxed),
          damaged_.load(std::memory_order_relaxed), under_way_.load(std::memory_order_relaxed)};
}

}  // namespace ems::ssd
