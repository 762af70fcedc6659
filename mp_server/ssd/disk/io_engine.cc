#include "mp_server/ssd/disk/io_engine.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kPoolThreadsMax = 8;
constexpr int kTries = 1000;
constexpr int64_t kLookAgainNs = 100'000'000;

void Finish(IoOp* op, int64_t result) {
  (void)op->submitted.load(std::memory_order_acquire);
  op->OnDone(result);
}

// The kernel works, one thread reaps.
class RingEngine final : public IoEngine {
 public:
  static Result<std::unique_ptr<IoEngine>> Make(uint32_t depth) {
    std::unique_ptr<RingEngine> engine(new RingEngine);
    const int made = io_uring_queue_init(std::max(2 * depth, 8U), &engine->ring_, 0);
    if (made < 0) return Error(StatusCode::kUnavailable, "io_uring: {}", fabric::ErrnoText(-made));
    engine->made_ = true;
    if ((engine->ring_.features & IORING_FEAT_EXT_ARG) == 0)
      return Error(StatusCode::kUnavailable, "io_uring: this kernel's is too old (before 5.11)");
    engine->started_ = true;
    engine->reaper_ = Thread("ems-ssd-io", [self = engine.get()] { self->Reap(); });
    return std::unique_ptr<IoEngine>(std::move(engine));
  }
  ~RingEngine() override {
    if (!made_) return;
    if (started_) {
      Push({});
      reaper_.Join();
    }
    io_uring_queue_exit(&ring_);
  }
  void Submit(IoOp* op) override { Push(std::span(&op, 1)); }
  void SubmitAll(std::span<IoOp* const> ops) override { Push(ops); }
  std::string_view name() const override { return "io_uring"; }

 private:
  RingEngine() = default;

  // None: the reaper ends when all else is done.
  void Push(std::span<IoOp* const> ops) {
    under_way_.fetch_add(static_cast<int64_t>(ops.size()), std::memory_order_relaxed);
    int refused = 0;
    {
      auto lock = submission_.Lock();
      if (ops.empty()) refused = Add(nullptr);
      for (size_t i = 0; i < ops.size() && refused >= 0; ++i) refused = Add(ops[i]);
      if (refused >= 0) refused = io_uring_submit(&ring_);
      // What the kernel does not take now, the reaper hands over.
      if (refused == -EBUSY || refused == -EAGAIN || refused == -EINTR) refused = 0;
    }
    EMS_CHECK(refused >= 0, "io_uring took no work: {}", fabric::ErrnoText(-refused));
  }

  // Into the ring, not to the kernel yet; -ENOBUFS where there is no place.
  int Add(IoOp* op) {
    // An entry is free again once it has been handed over; results that find no place in the ring
    // wait in the kernel.
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    for (int i = 0; entry == nullptr && i < kTries; ++i) {
      (void)io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    if (entry == nullptr) return -ENOBUFS;
    Prepare(entry, op);
    if (op != nullptr) op->submitted.store(true, std::memory_order_release);
    return 0;
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
  }

  void Reap() {
    bool stopping = false;
    while (!stopping || under_way_.load(std::memory_order_relaxed) > 0) {
      io_uring_cqe* done = nullptr;
      __kernel_timespec patience{.tv_sec = 0, .tv_nsec = kLookAgainNs};
      const int waited = io_uring_wait_cqe_timeout(&ring_, &done, &patience);
      if (waited == -EINTR || waited == -EAGAIN || waited == -ETIME) {
        HandOver();
        continue;
      }
      EMS_CHECK(waited == 0, "io_uring: {}", fabric::ErrnoText(-waited));
      auto* op = static_cast<IoOp*>(io_uring_cqe_get_data(done));
      const int64_t result = done->res;
      io_uring_cqe_seen(&ring_, done);
      if (op == nullptr) {
        stopping = true;
        continue;
      }
      under_way_.fetch_sub(1, std::memory_order_relaxed);
      Finish(op, result);
      HandOver();
    }
  }
  void HandOver() {
    auto lock = submission_.Lock();
    if (io_uring_sq_ready(&ring_) > 0) (void)io_uring_submit(&ring_);
  }

  io_uring ring_{};
  bool made_ = false;
  bool started_ = false;
  Guarded<int> submission_;  // guards the submission side of ring_
  std::atomic<int64_t> under_way_{0};
  Thread reaper_;
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
