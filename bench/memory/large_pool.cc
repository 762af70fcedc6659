#include "bench/memory/large_pool.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/harness/figures.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "fabric/net/fd_message.h"
#include "mp_server/descriptor_budget.h"
#include "mp_server/shm/shm_service.h"
#include "mp_server/store/namespace_store.h"
#include "mp_server/store/object_store.h"
#include "proto/data_plane.h"
#include "proto/shm_layout.h"

namespace ems::bench {
namespace {

using fabric::Fd;
using server::ObjectStore;
using server::SegmentPool;
using shm::SessionMessage;
using shm::SessionOp;

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr uint64_t kSegmentBytes = 2 * kMiB;
constexpr uint64_t kValueBytes = 3 * kMiB / 2;  // one to a segment
constexpr uint64_t kSpareSegments = 64;         // so that nothing is evicted
constexpr size_t kAsksAtOnce = 16;
constexpr int kPatienceMs = 10'000;
constexpr size_t kRounds = 10;
constexpr Duration kReadyTimeout = std::chrono::seconds(120);
constexpr Duration kRoundTime = std::chrono::milliseconds(110);

SegmentPool::Options SparsePool(uint64_t bytes, uint64_t segment_bytes) {
  SegmentPool::Options options;
  options.bytes = bytes;
  options.segment_bytes = segment_bytes;
  options.huge_pages = fabric::HugePages::kOff;
  options.create = [](uint64_t size, fabric::HugePages) {
    return fabric::ShmSegment::CreateSparse(size);
  };
  return options;
}

Status CountSegments(uint64_t pool_bytes, LargePoolCost* cost) {
  cost->segment_bytes = SegmentPool::DefaultSegmentBytes(pool_bytes);
  SegmentPool pool(SparsePool(pool_bytes, cost->segment_bytes));
  EMS_RETURN_IF_ERROR(pool.WaitReady(pool_bytes, Deadline::After(kReadyTimeout)));
  std::vector<std::unique_ptr<server::Segment>> held;
  while (pool.stats().bytes_ready > 0) {
    EMS_ASSIGN_OR_RETURN(auto segment, pool.Acquire(1));
    held.push_back(std::move(segment));
  }
  cost->segments = held.size();
  for (auto& segment : held) pool.Release(std::move(segment));
  return OkStatus();
}

Status MeasureMaking(uint64_t bytes, fabric::HugePages huge_pages, LargePoolCost* cost) {
  const TimePoint start = Clock::System().Now();
  EMS_ASSIGN_OR_RETURN(const fabric::ShmSegment segment,
                       fabric::ShmSegment::Create(bytes, huge_pages));
  const TimePoint made = Clock::System().Now();
  std::memset(segment.bytes().data(), 1, segment.size_bytes());
  const TimePoint written = Clock::System().Now();
  const auto gbps = [&](Duration took) {
    return static_cast<double>(segment.size_bytes()) /
           static_cast<double>(std::chrono::nanoseconds(took).count());
  };
  cost->made_bytes = segment.size_bytes();
  cost->made_gbps = gbps(made - start);
  cost->memset_gbps = gbps(written - made);
  return OkStatus();
}

Status FillSegments(uint64_t segments, ObjectStore* store) {
  NamespaceTable table;
  table.version = 1;
  NamespaceInfo info;
  info.ref = kNs;
  info.name = "large";
  table.by_id[kNs.id] = info;
  store->SetNamespaces(table, 1.0);
  store->SetOwnedSlots(std::bitset<kSlotCount>().set());
  for (uint64_t i = 0; i < segments; ++i) {
    EMS_ASSIGN_OR_RETURN(server::Reservation room,
                         store->Reserve(kNs, SlotId(0), fmt::format("{}", i), kValueBytes));
    bool stored = false;
    EMS_RETURN_IF_ERROR(ObjectStore::Publish(std::move(room), i, {}, &stored));
  }
  return OkStatus();
}

// A client that asks for segments and keeps none of them mapped. Threading: one thread.
class Client final {
 public:
  explicit Client(Fd socket) : socket_(std::move(socket)) {}
  Status Await() {
    SessionMessage message;
    while (true) {
      std::vector<Fd> fds;  // closed at once
      const auto outcome =
          receiver_.Receive(socket_.get(), std::as_writable_bytes(std::span(&message, 1)), &fds);
      if (outcome == fabric::MessageReceiver::Outcome::kEnded)
        return Error(StatusCode::kUnavailable, "the session ended");
      if (outcome == fabric::MessageReceiver::Outcome::kMessage) break;
      pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, kPatienceMs) <= 0)
        return Error(StatusCode::kDeadlineExceeded, "the server does not answer");
    }
    if (message.status == 0) return OkStatus();
    return Error(StatusCode::kResourceExhausted, "{}", message.text.data());
  }
  Status AskForAll(const std::vector<uint32_t>& segments) {
    for (size_t at = 0; at < segments.size(); at += kAsksAtOnce) {
      const size_t end = std::min(segments.size(), at + kAsksAtOnce);
      for (size_t i = at; i < end; ++i) {
        SessionMessage ask;
        ask.op = SessionOp::kSegment;
        ask.id = segments[i];
        EMS_RETURN_IF_ERROR(fabric::SendMessageTo(socket_.get(), wire::RawBytes(ask), {}));
      }
      for (size_t i = at; i < end; ++i) EMS_RETURN_IF_ERROR(Await());
    }
    return OkStatus();
  }

 private:
  Fd socket_;
  fabric::MessageReceiver receiver_;
};

Status MeasureRounds(const LargePoolSettings& settings, LargePoolCost* cost) {
  (void)server::RaiseDescriptorLimit();
  SegmentPool pool(SparsePool((cost->segments + kSpareSegments) * kSegmentBytes, kSegmentBytes));
  EMS_RETURN_IF_ERROR(
      pool.WaitReady(cost->segments * kSegmentBytes, Deadline::After(kReadyTimeout)));
  ObjectStore store({.pool = &pool});
  EMS_RETURN_IF_ERROR(FillSegments(cost->segments, &store));
  MetricsRegistry registry;
  server::ShmMetrics metrics;
  metrics.round_seconds = registry.AddGauge("round_seconds", "");
  server::ShmService::Options options;
  options.store = &store;
  options.pool = &pool;
  options.sessions_max = static_cast<uint32_t>(settings.sessions);
  EMS_ASSIGN_OR_RETURN(const auto service, server::ShmService::Start(options, metrics));
  EMS_ASSIGN_OR_RETURN(const auto shared, store.Share(kNs));
  const std::vector<uint32_t> segments = shared->objects().slabs().SegmentIds();
  std::vector<Client> clients;
  for (uint64_t i = 0; i < settings.sessions; ++i) {
    std::array<int, 2> fds{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0)
      return Error(StatusCode::kResourceExhausted, "socketpair: {}", fabric::ErrnoText(errno));
    clients.emplace_back(Fd(fds[0]));
    service->Adopt(Fd(fds[1]), kNs, {});
    EMS_RETURN_IF_ERROR(clients.back().Await());
    EMS_RETURN_IF_ERROR(clients.back().AskForAll(segments));
  }
  cost->sessions = settings.sessions;
  cost->segments_given = segments.size();
  StopFlag never;
  std::vector<double> rounds;
  for (size_t i = 0; i < kRounds; ++i) {
    never.WaitFor(kRoundTime);
    rounds.push_back(1e3 * metrics.round_seconds.value());
  }
  cost->round_ms = Median(rounds);
  return OkStatus();
}

}  // namespace

Result<LargePoolCost> MeasureLargePool(const LargePoolSettings& settings) {
  LargePoolCost cost;
  EMS_RETURN_IF_ERROR(CountSegments(settings.pool_bytes, &cost));
  EMS_RETURN_IF_ERROR(MeasureMaking(settings.made_bytes, settings.huge_pages, &cost));
  EMS_RETURN_IF_ERROR(MeasureRounds(settings, &cost));
  return cost;
}

}  // namespace ems::bench
