#include "mp_server/ssd/record_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace ems::ssd {
namespace {

// Small enough that checking the last part takes little beside reading all of them.
constexpr uint64_t kPartBytes = 256 * kKiB;
constexpr uint32_t kStuckReads = 4;  // so many under way, and none ends: the disk is stuck
constexpr Duration kRest = std::chrono::seconds(1);

int64_t Nanos(TimePoint at) { return at.time_since_epoch().count(); }

}  // namespace

// One record on its way, in parts: while a part is checked the next ones are still transferred.
class RecordReader::Job final {
 public:
  explicit Job(RecordReader* owner) : owner_(owner) {
    for (Part& part : parts_) part.job = this;
  }

  void Start(const ObjectName& given_name, std::optional<std::string> given_key,
             const Row& given_row, int fd, const ReadTarget& given_target,
             std::function<void(ReadOutcome)> given_done) {
    name = given_name;
    key = std::move(given_key);
    row = given_row;
    target = given_target;
    done = std::move(given_done);
    attempts_ = 0;
    const RecordBlocks blocks(row);
    aligned_ = blocks.shape.aligned && target.key == nullptr;
    uint64_t in_bounce = blocks.shape.aligned ? blocks.head_bytes() : blocks.bytes();
    if (target.key != nullptr)
      in_bounce = RoundUp(blocks.skip + blocks.shape.head_bytes(), kBlockBytes);
    const MutableBytes bounce = bounce_.Take(in_bounce);
    head_ = bounce.subspan(blocks.skip);
    // The payload of an aligned record goes where the caller wants it, whole blocks at a time.
    const uint64_t payload = aligned_ ? row.value_bytes : 0;
    const uint64_t step =
        std::max(kPartBytes, RoundUp((payload + kPartsMax - 1) / kPartsMax, kPieceBytes));
    part_count_ = 0;
    uint64_t at = 0;
    do {
      Part& part = parts_[part_count_++];
      part.begin = at;
      part.bytes = std::min(step, payload - at);
      const uint64_t whole_blocks = RoundUp(part.bytes, kBlockBytes);
      const uint64_t before = at == 0 ? in_bounce : 0;
      part.iov[0] = {bounce.data(), before};
      part.iov[1] = {target.value.data() + at, whole_blocks};
      part.parts = std::span<const iovec>(part.iov).subspan(at == 0 ? 0 : 1);
      if (whole_blocks == 0) part.parts = part.parts.first(1);
      part.wanted = static_cast<int64_t>(before + whole_blocks);
      part.offset = at == 0 ? blocks.begin : blocks.begin + in_bounce + at;
      part.fd = fd;
      at += part.bytes;
    } while (at < payload);
  }

  void Submit() {
    failed_.store(false, std::memory_order_relaxed);
    left_.store(part_count_, std::memory_order_relaxed);
    std::array<IoOp*, kPartsMax> ops;
    for (uint32_t i = 0; i < part_count_; ++i) ops[i] = &parts_[i];
    owner_->options_.io->SubmitAll(std::span(ops).first(part_count_));
  }

  ObjectName name;
  std::optional<std::string> key;
  Row row;
  ReadTarget target;
  std::function<void(ReadOutcome)> done;
  TimePoint began{};

 private:
  struct Part final : public IoOp {
    void OnDone(int64_t result) override { job->PartDone(*this, result == wanted); }
    Job* job = nullptr;
    uint64_t begin = 0;  // in the value
    uint64_t bytes = 0;
    int64_t wanted = 0;
    std::array<iovec, 2> iov{};
  };

  void PartDone(const Part& part, bool there) {
    if (!there) {
      failed_.store(true, std::memory_order_relaxed);
    } else if (aligned_) {
      HashPieces(target.value.subspan(part.begin, part.bytes),
                 target.piece_sums.subspan(part.begin / kPieceBytes));
    }
    // The last one sees what all others have written.
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const ReadOutcome outcome =
        failed_.load(std::memory_order_relaxed) ? ReadOutcome::kFailed : Check();
    // What the bus or the disk's cache got wrong once it may get right the second time.
    const bool again = outcome == ReadOutcome::kDamaged || outcome == ReadOutcome::kFailed;
    if (again && attempts_++ == 0) {
      Submit();
      return;
    }
    owner_->Done(this, outcome);
  }

  ReadOutcome Check() {
    const RecordShape shape(row.value_bytes, row.key_bytes);
    const Head checked = CheckHead(head_, Expect(owner_->options_.store_id, name, row));
    if (checked.verdict == HeadVerdict::kDamaged) return ReadOutcome::kDamaged;
    if (checked.verdict != HeadVerdict::kGood) return ReadOutcome::kGone;
    if (key && checked.key != *key) return ReadOutcome::kOther;
    if (target.key != nullptr) {
      *target.key = checked.key;
      return ReadOutcome::kOk;
    }
    if (!aligned_) {
      if (row.value_bytes > 0)
        std::memcpy(target.value.data(), head_.data() + shape.payload_offset(), row.value_bytes);
      HashPieces(target.value, target.piece_sums);
    }
    const auto sums = target.piece_sums.first(PieceCount(row.value_bytes));
    return CombinePieces(sums) == row.value_checksum ? ReadOutcome::kOk : ReadOutcome::kDamaged;
  }

  RecordReader* const owner_;
  std::array<Part, kPartsMax> parts_;
  uint32_t part_count_ = 0;
  std::atomic<uint32_t> left_{0};
  std::atomic<bool> failed_{false};
  int attempts_ = 0;
  bool aligned_ = false;
  AlignedBuffer bounce_;
  ConstBytes head_;
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

bool RecordReader::Read(const ObjectName& name, std::optional<std::string> key, const Row& row,
                        const ReadTarget& target, std::function<void(ReadOutcome)> done) {
  const TimePoint now = options_.clock->Now();
  const int fd = row.region < fds_.size() ? fds_[row.region].load(std::memory_order_acquire) : -1;
  Job* job = nullptr;
  if (fd >= 0 && !Slow(now)) {
    auto jobs = jobs_.Lock();
    // Whoever reads keys alone leaves places to those who wait for a value.
    const uint32_t all = options_.reads_max;
    const uint32_t most = target.key == nullptr ? all : std::max<uint32_t>(1, all / 2);
    const bool may = !jobs->draining && jobs->running < most;
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
  job->Start(name, std::move(key), row, fd, target, std::move(done));
  job->began = now;
  if (under_way_.fetch_add(1, std::memory_order_relaxed) == 0)
    progress_ns_.store(Nanos(now), std::memory_order_relaxed);
  job->Submit();
  return true;
}

void RecordReader::Done(Job* job, ReadOutcome outcome) {
  const TimePoint now = options_.clock->Now();
  progress_ns_.store(Nanos(now), std::memory_order_relaxed);
  // The scrubber's reads have no key; that one of them is slow is nobody's loss.
  if (job->key && now - job->began > options_.slow)
    rest_until_ns_.store(Nanos(now + kRest), std::memory_order_relaxed);
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  reads_.fetch_add(1, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kOk && job->target.key == nullptr)
    bytes_.fetch_add(job->row.value_bytes, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kFailed) failed_.fetch_add(1, std::memory_order_relaxed);
  if (outcome == ReadOutcome::kDamaged) damaged_.fetch_add(1, std::memory_order_relaxed);
  const auto done = std::exchange(job->done, nullptr);
  done(outcome);
  auto jobs = jobs_.Lock();
  jobs->idle.push_back(job);
  EMS_CHECK(jobs->running > 0, "a read ends that was not begun");
  --jobs->running;
  drained_.notify_all();  // under the lock: a waiting thread may destroy this right after
}

RecordReader::Stats RecordReader::stats() const {
  return {reads_.load(std::memory_order_relaxed),   bytes_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed), failed_.load(std::memory_order_relaxed),
          damaged_.load(std::memory_order_relaxed), under_way_.load(std::memory_order_relaxed)};
}

}  // namespace ems::ssd
