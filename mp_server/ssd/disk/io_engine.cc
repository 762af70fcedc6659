#include "mp_server/ssd/disk/io_engine.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kPoolThreadsMax = 8;
constexpr uint32_t kReapersMin = 2;
constexpr uint32_t kReapersMax = 4;
constexpr int64_t kLookAgainNs = 100'000'000;
constexpr int64_t kTakesLongBytes = 64 << 10;  // to check them takes longer than to wake a thread

void Finish(IoOp* op, int64_t result) {
  (void)op->submitted.load(std::memory_order_acquire);
  op->OnDone(result);
}

// Errors of the kernel that pass: no memory just now, results that wait to be reaped, a signal.
bool Passes(int error) {
  return error == EAGAIN || error == EBUSY || error == EINTR || error == ENOMEM;
}

// The kernel works, a few threads reap. One of them waits for the next result; when there are more
// behind it, another one takes those, so that checking what was read holds up nobody's callback.
// It also waits for what is under way, or is submitted, while a long result is checked. For a short
// one, waking it would cost more than the check.
class RingEngine final : public IoEngine {
 public:
  static Result<std::unique_ptr<IoEngine>> Make(uint32_t depth) {
    std::unique_ptr<RingEngine> engine(new RingEngine);
    const int made = io_uring_queue_init(std::max(2 * depth, 8U), &engine->ring_, 0);
    if (made < 0) return Error(StatusCode::kUnavailable, "io_uring: {}", fabric::ErrnoText(-made));
    engine->made_ = true;
    if ((engine->ring_.features & IORING_FEAT_EXT_ARG) == 0)
      return Error(StatusCode::kUnavailable, "io_uring: this kernel's is too old (before 5.11)");
    const uint32_t reapers =
        std::clamp(std::thread::hardware_concurrency() / 2, kReapersMin, kReapersMax);
    for (uint32_t i = 0; i < reapers; ++i)
      engine->reapers_.emplace_back("ems-ssd-io-" + std::to_string(i),
                                    [self = engine.get()] { self->Reap(); });
    return std::unique_ptr<IoEngine>(std::move(engine));
  }
  ~RingEngine() override {
    if (!made_) return;
    Stop();
    for (Thread& reaper : reapers_) reaper.Join();
    io_uring_queue_exit(&ring_);
  }
  void Submit(IoOp* op) override { Push(std::span(&op, 1)); }
  void SubmitAll(std::span<IoOp* const> ops) override { Push(ops); }
  std::string_view name() const override { return "io_uring"; }

 private:
  RingEngine() = default;

  void Push(std::span<IoOp* const> ops) {
    under_way_.fetch_add(static_cast<int64_t>(ops.size()), std::memory_order_relaxed);
    GiveToRing(ops);
    bool nobody_waits = false;
    {
      auto turn = turn_.Lock();
      nobody_waits = !turn->taken;
    }
    if (nobody_waits) passed_.notify_one();
  }
  void GiveToRing(std::span<IoOp* const> ops) {
    auto waiting = waiting_.Lock();
    if (waiting->empty()) {
      while (!ops.empty() && Add(ops.front())) ops = ops.subspan(1);
    }
    waiting->insert(waiting->end(), ops.begin(), ops.end());
    Give(&*waiting);
  }

  // Into the ring, not to the kernel yet; false: it has no place.
  bool Add(IoOp* op) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry != nullptr) Prepare(entry, op);
    return entry != nullptr;
  }

  // What the kernel does not take now it is offered again after the next result, or soon.
  void Give(std::deque<IoOp*>* waiting) {
    int given = 0;
    do {
      while (!waiting->empty() && Add(waiting->front())) waiting->pop_front();
      if (io_uring_sq_ready(&ring_) == 0) return;
      given = io_uring_submit(&ring_);
    } while (given > 0 && !waiting->empty());
    EMS_CHECK(given >= 0 || Passes(-given), "io_uring took no work: {}", fabric::ErrnoText(-given));
  }

  static void Prepare(io_uring_sqe* entry, IoOp* op) {
    if (op == nullptr) {
      io_uring_prep_nop(entry);
    } else if (op->write) {
      io_uring_prep_writev(entry, op->fd, op->parts.data(), static_cast<unsigned>(op->parts.size()),
                           op->offset);
    } else {
      io_uring_prep_readv(entry, op->fd, op->parts.data(), static_cast<unsigned>(op->parts.size()),
                          op->offset);
    }
    io_uring_sqe_set_data(entry, op);
    // What was read of it here comes before what its callback writes.
    if (op != nullptr) op->submitted.store(true, std::memory_order_release);
  }

  void Reap() {
    while (TakeTurn()) {
      int64_t result = 0;
      IoOp* const op = NextResult(&result);
      PassTurn(result >= kTakesLongBytes);
      if (op == nullptr) continue;
      Finish(op, result);
      HandOver();
    }
  }
  // Waits until no other thread waits for a result. False: there is none to come.
  bool TakeTurn() {
    auto turn = turn_.Lock();
    turn.Wait(passed_, [](const Turn& t) { return !t.taken; });
    if (turn->stopping && UnderWay() == 0) {
      passed_.notify_one();  // the others end, too
      return false;
    }
    turn->taken = true;
    return true;
  }
  // `takes_long`: this thread does not come back soon. What is submitted later finds the turn free.
  void PassTurn(bool takes_long) {
    bool more = false;
    {
      auto turn = turn_.Lock();
      turn->taken = false;
      more = io_uring_cq_ready(&ring_) > 0 || (takes_long && UnderWay() > 0);
    }
    if (more) passed_.notify_one();
  }
  // Null: look whether it is time to end.
  IoOp* NextResult(int64_t* result) {
    io_uring_cqe* done = nullptr;
    while (true) {
      __kernel_timespec patience{.tv_sec = 0, .tv_nsec = kLookAgainNs};
      const int waited = io_uring_wait_cqe_timeout(&ring_, &done, &patience);
      if (waited == 0) break;
      EMS_CHECK(waited == -ETIME || Passes(-waited), "io_uring: {}", fabric::ErrnoText(-waited));
      HandOver();
    }
    auto* const op = static_cast<IoOp*>(io_uring_cqe_get_data(done));
    *result = done->res;
    io_uring_cqe_seen(&ring_, done);
    if (op != nullptr) under_way_.fetch_sub(1, std::memory_order_relaxed);
    return op;
  }
  int64_t UnderWay() const { return under_way_.load(std::memory_order_relaxed); }
  void HandOver() {
    auto waiting = waiting_.Lock();
    Give(&*waiting);
  }
  void Stop() {
    {
      auto turn = turn_.Lock();
      turn->stopping = true;
    }
    auto waiting = waiting_.Lock();
    waiting->push_back(nullptr);  // wakes who waits for a result
    Give(&*waiting);
  }

  struct Turn {
    bool taken = false;  // a thread waits for the next result
    bool stopping = false;
  };
  io_uring ring_{};
  bool made_ = false;
  // For a place in the ring; its lock guards the submission side of ring_, too.
  Guarded<std::deque<IoOp*>> waiting_;
  Guarded<Turn> turn_;
  std::condition_variable passed_;
  std::atomic<int64_t> under_way_{0};  // not reaped yet
  std::vector<Thread> reapers_;
};

class PoolEngine final : public IoEngine {
 public:
  explicit PoolEngine(uint32_t depth) {
    const uint32_t threads = std::clamp(depth, 1U, kPoolThreadsMax);
    for (uint32_t i = 0; i < threads; ++i)
      threads_.emplace_back("ems-ssd-io-" + std::to_string(i), [this] { Run(); });
  }
  ~PoolEngine() override {
    {
      auto queue = queue_.Lock();
      queue->stopping = true;
    }
    wakeup_.notify_all();
    for (Thread& thread : threads_) thread.Join();
  }
  void Submit(IoOp* op) override {
    op->submitted.store(true, std::memory_order_release);
    {
      auto queue = queue_.Lock();
      queue->ops.push_back(op);
    }
    wakeup_.notify_one();
  }
  std::string_view name() const override { return "threads"; }

 private:
  struct Queue {
    std::deque<IoOp*> ops;  // as many as the caller keeps under way
    bool stopping = false;
  };
  void Run() {
    while (true) {
      IoOp* op = nullptr;
      {
        auto queue = queue_.Lock();
        queue.Wait(wakeup_, [](const Queue& q) { return q.stopping || !q.ops.empty(); });
        if (queue->ops.empty()) return;
        op = queue->ops.front();
        queue->ops.pop_front();
      }
      Finish(op, Transfer(*op));
    }
  }
  static int64_t Transfer(const IoOp& op) {
    const auto offset = static_cast<off_t>(op.offset);
    const int count = static_cast<int>(op.parts.size());
    while (true) {
      const ssize_t n = op.write ? ::pwritev(op.fd, op.parts.data(), count, offset)
                                 : ::preadv(op.fd, op.parts.data(), count, offset);
      if (n >= 0) return n;
      if (errno != EINTR) return -errno;
    }
  }

  Guarded<Queue> queue_;
  std::condition_variable wakeup_;
  std::vector<Thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeIoEngine(IoKind kind, uint32_t depth,
                                               std::string* why_not_ring) {
  if (kind != IoKind::kThreads) {
    Result<std::unique_ptr<IoEngine>> ring = RingEngine::Make(depth);
    if (ring.ok() || kind == IoKind::kRing) return ring;
    if (why_not_ring != nullptr) *why_not_ring = std::string(Message(ring.status()));
  }
  return std::unique_ptr<IoEngine>(std::make_unique<PoolEngine>(depth));
}

}  // namespace ems::ssd
