#include "bench/control/server_load.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <utility>
#include <vector>

#include "cluster/controller_client.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/thread_pool.h"
#include "proto/controller.pb.h"

namespace ems::bench {
namespace {

constexpr Duration kBeatEvery = std::chrono::seconds(1);
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
constexpr size_t kCallersMax = 8;  // heartbeats under way
constexpr size_t kDueMax = 8192;

Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

// One server, from its registration on.
struct Member {
  NodeId id;
  uint64_t boot_id = 0;
  TimePoint next_beat{};
  ViewVersion told;  // the view that its last heartbeat named
};

}  // namespace

NodeInfo SimulatedNode(uint32_t number) {
  NodeInfo node;
  node.name = fmt::format("mp-server-{:04}", number);
  node.boot_id = Hash64({}, number) | 1;
  node.data_address = fmt::format("10.17.{}.{}:7500", number / 250, number % 250);
  node.host_id = fmt::format("node-{:04}", number);
  node.http_address = fmt::format("10.17.{}.{}:7501", number / 250, number % 250);
  node.capacity_bytes = 256 * kGiB;
  node.lineage = Hash64({}, uint64_t{1} << 32 | number) | 1;
  node.folder_id = Hash64({}, uint64_t{2} << 32 | number) | 1;
  return node;
}

struct ServerLoad::Impl {
  Impl(const std::string& controller, std::function<ViewCache::View()> newest_in)
      : newest(std::move(newest_in)),
        client(controller, "simulated servers"),
        callers("bench-call", kCallersMax, kDueMax),
        thread("bench-beat", [this] {
          while (!stop.WaitFor(kLookEvery)) SendDue();
        }) {}

  void SendDue() {
    const ViewCache::View view = newest();
    if (view == nullptr) return;
    const TimePoint now = Clock::System().Now();
    std::vector<Member> due;
    {
      auto locked = members.Lock();
      for (Member& member : *locked) {
        // As servers do, which say at once that they have installed a view.
        if (now < member.next_beat && member.told == view->version()) continue;
        member.next_beat = now + kBeatEvery;
        member.told = view->version();
        due.push_back(member);
      }
    }
    for (const Member& member : due) {
      if (!callers.TrySubmit([this, member, view] { Beat(member, *view); })) CountFailure();
    }
  }

  void Beat(const Member& member, const DhtView& view) {
    v1::HeartbeatRequest request;
    request.set_node_id(member.id.value());
    request.set_boot_id(member.boot_id);
    request.set_term(view.version().term());
    request.set_epoch(view.version().epoch());
    request.set_highest_term(view.version().term());
    request.set_highest_epoch(view.version().epoch());
    request.set_fingerprint(view.Fingerprint());
    v1::HeartbeatReply reply;
    const Status status = client.Heartbeat(request, &reply, Soon());
    // One that has left since is not known any more.
    if (!status.ok() && status.code() != StatusCode::kNotFound) CountFailure();
  }
  void CountFailure() { failed.fetch_add(1, std::memory_order_relaxed); }

  Status Register(const NodeInfo& info) {
    v1::RegisterRequest request;
    ToProto(info, request.mutable_node());
    v1::RegisterReply reply;
    EMS_RETURN_IF_ERROR(client.Register(request, &reply, Soon()));
    auto locked = members.Lock();
    Member& member = locked->emplace_back();
    member.id = NodeId(reply.node_id());
    member.boot_id = info.boot_id;
    return OkStatus();
  }

  const std::function<ViewCache::View()> newest;
  ControllerClient client;
  uint32_t next_number = 1;
  std::atomic<uint64_t> failed{0};
  Guarded<std::deque<Member>> members;
  StopFlag stop;
  ThreadPool callers;
  Thread thread;  // first to end
};

ServerLoad::ServerLoad(const std::string& controller, std::function<ViewCache::View()> newest)
    : impl_(std::make_unique<Impl>(controller, std::move(newest))) {}

ServerLoad::~ServerLoad() { impl_->stop.Set(); }

Status ServerLoad::Join(size_t count) {
  for (size_t i = 0; i < count; ++i)
    EMS_RETURN_IF_ERROR(impl_->Register(SimulatedNode(impl_->next_number++)));
  return OkStatus();
}

Status ServerLoad::LeaveLast() {
  Member last;
  {
    auto locked = impl_->members.Lock();
    EMS_CHECK(!locked->empty(), "no server is left");
    last = locked->back();
    locked->pop_back();
  }
  return impl_->client.Leave(last.id, last.boot_id, /*keeps_slots=*/false, Soon());
}

uint64_t ServerLoad::failed_beats() const { return impl_->failed.load(std::memory_order_relaxed); }

}  // namespace ems::bench
