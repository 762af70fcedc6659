#include "bench/control/watch_load.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <utility>
#include <vector>

#include "cluster/dht_view.h"
#include "common/guarded.h"
#include "proto/controller.pb.h"

namespace ems::bench {
namespace {

constexpr size_t kStreamsAtOnce = 500;
constexpr Duration kStartMax = std::chrono::minutes(2);

// What watchers have seen since Expect.
struct Progress {
  uint64_t epoch = 0;  // that is expected
  size_t arrived = 0;  // watchers that have it
  size_t wanted = 0;   // how many Collect waits for
  size_t ended = 0;    // streams
  size_t lost = 0;     // real watchers that could not follow
  uint64_t bytes_max = 0;
};

struct Board {
  Guarded<Progress> progress;
  std::condition_variable changed;
};

bool Read(const grpc::ByteBuffer& buffer, v1::ClusterUpdate* update) {
  grpc::Slice slice;
  return buffer.DumpToSingleSlice(&slice).ok() &&
         update->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

// Threading: callbacks of one stream come one after the other.
class Watcher final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Watcher(Board* board, bool real) : board_(*board), real_(real) {}

  void Start(grpc::GenericStub* stub) {
    stub->PrepareBidiStreamingCall(&context_, "/ems.v1.Controller/Watch", {}, this);
    StartWriteLast(&nothing_, {});
    StartRead(&buffer_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  TimePoint arrived_at() const { return arrived_at_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const TimePoint now = Clock::System().Now();
    const uint64_t bytes = buffer_.Length();
    // The first one is the view whole: to read 10,000 of them would take longer than to send them.
    const bool first = epoch_ == 0;
    if (first && !real_) {
      epoch_ = 1;
    } else if (v1::ClusterUpdate update; Read(buffer_, &update)) {
      Take(update);
    }
    buffer_.Clear();
    bool wake = false;
    {
      auto progress = board_.progress.Lock();
      if (seen_ < progress->epoch && epoch_ >= progress->epoch) {
        seen_ = progress->epoch;
        arrived_at_ = now;
        progress->bytes_max = std::max(progress->bytes_max, bytes);
        ++progress->arrived;
      }
      progress->lost += std::exchange(lost_, false) ? 1U : 0U;
      wake = progress->arrived == progress->wanted || progress->lost > 0;
    }
    if (wake) board_.changed.notify_all();
    StartRead(&buffer_);
  }
  void OnDone(const grpc::Status& /*status*/) override {
    {
      auto progress = board_.progress.Lock();
      ++progress->ended;
      board_.changed.notify_all();
    }
  }

 private:
  void Take(const v1::ClusterUpdate& update) {
    if (update.has_view()) epoch_ = update.view().epoch();
    if (update.has_delta()) epoch_ = update.delta().epoch();
    if (!real_ || !(update.has_view() || update.has_delta())) return;
    const auto next = update.has_view() || view_ == nullptr
                          ? DhtView::FromProto(update.view())
                          : DhtView::Apply(*view_, update.delta());
    lost_ = !next.ok();
    if (next.ok()) view_ = *next;
  }

  Board& board_;
  const bool real_;
  grpc::ClientContext context_;
  grpc::ByteBuffer nothing_{nullptr, 0};  // an empty WatchRequest
  grpc::ByteBuffer buffer_;
  std::shared_ptr<const DhtView> view_;  // of a real one
  uint64_t epoch_ = 0;                   // of the view it has; 1: some view
  bool lost_ = false;
  uint64_t seen_ = 0;       // under the board's lock: what it has arrived at
  TimePoint arrived_at_{};  // likewise
};

}  // namespace

struct WatchLoad::Impl {
  Board board;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  std::vector<std::unique_ptr<Watcher>> watchers;
};

WatchLoad::WatchLoad(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WatchLoad::~WatchLoad() {
  for (const auto& watcher : impl_->watchers) watcher->Cancel();
  auto progress = impl_->board.progress.Lock();
  progress.Wait(impl_->board.changed,
                [&](const Progress& p) { return p.ended == impl_->watchers.size(); });
}

Result<std::unique_ptr<WatchLoad>> WatchLoad::Start(const WatchLoadOptions& options) {
  std::unique_ptr<WatchLoad> load(new WatchLoad(std::make_unique<Impl>()));  // NOLINT: private
  Impl& impl = *load->impl_;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection each
  for (size_t i = 0; i < options.connections; ++i) {
    impl.stubs.push_back(std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
        options.controller, grpc::InsecureChannelCredentials(), arguments)));
  }
  load->Expect(1);
  const Deadline deadline = Deadline::After(kStartMax);
  while (impl.watchers.size() < options.watchers) {
    const size_t more = std::min(kStreamsAtOnce, options.watchers - impl.watchers.size());
    for (size_t i = 0; i < more; ++i) {
      const size_t number = impl.watchers.size();
      impl.watchers.push_back(std::make_unique<Watcher>(&impl.board, number < options.connections));
      impl.watchers.back()->Start(impl.stubs[number % options.connections].get());
    }
    EMS_RETURN_IF_ERROR(load->Collect(Clock::System().Now(), deadline).status());
  }
  return load;
}

void WatchLoad::Expect(uint64_t epoch) {
  auto progress = impl_->board.progress.Lock();
  *progress = {.epoch = epoch, .ended = progress->ended};
}

Result<Arrivals> WatchLoad::Collect(TimePoint since, Deadline deadline) {
  const size_t all = impl_->watchers.size();
  Arrivals arrivals;
  auto progress = impl_->board.progress.Lock();
  progress->wanted = all;
  progress.WaitFor(impl_->board.changed, deadline.Remaining(), [&](const Progress& p) {
    return p.arrived == all || p.ended > 0 || p.lost > 0;
  });
  if (progress->ended > 0)
    return Error(StatusCode::kUnavailable, "{} of {} streams ended", progress->ended, all);
  if (progress->lost > 0)
    return Error(StatusCode::kDataLoss, "{} watchers could not follow", progress->lost);
  if (progress->arrived < all) {
    return Error(StatusCode::kDeadlineExceeded, "{} of {} watchers have a view of epoch {}",
                 progress->arrived, all, progress->epoch);
  }
  arrivals.bytes_max = progress->bytes_max;
  for (const auto& watcher : impl_->watchers)
    arrivals.latency.Record(watcher->arrived_at() - since);
  return arrivals;
}

}  // namespace ems::bench
