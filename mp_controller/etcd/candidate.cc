#include "mp_controller/etcd/candidate.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "common/logging.h"
#include "common/parse_number.h"
#include "common/thread_pool.h"
#include "fabric/http/http_endpoint.h"
#include "mp_controller/etcd/election.h"
#include "mp_controller/etcd/etcd_client.h"
#include "mp_controller/etcd/etcd_rows.h"
#include "mp_controller/etcd/follower_service.h"
#include "mp_controller/etcd/leader_lease.h"
#include "mp_controller/etcd/store_memory.h"

namespace ems::controller {
namespace {

// How often an address is tried that this process had a moment ago.
constexpr int kBindTries = 50;
constexpr Duration kBindEvery = std::chrono::milliseconds(100);

std::string HostOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')); }

ClusterId ClusterOf(const std::string& row) {
  return ClusterId(ParseNumber<uint64_t>(row).value_or(0));
}

}  // namespace

struct Candidate::Impl {
  explicit Impl(Parts parts_in)
      : parts(std::move(parts_in)),
        etcd(parts.etcd.endpoints),
        listen(parts.listen),
        http_listen(parts.http_listen) {}

  std::string BaseOf(StoreMemory::Rows rows) const {
    return parts.etcd.prefix + (rows == StoreMemory::Rows::kCluster ? "/cluster" : "/models");
  }

  std::unique_ptr<RowStore> MakeRows(StoreMemory::Rows which) {
    return std::make_unique<EtcdRows>(EtcdRows::Parts{
        .etcd = &etcd,
        .lease = lease.get(),
        .base = BaseOf(which),
        .check = [this, which](uint64_t changes, const EtcdRows::Values& rows) -> Status {
          EMS_RETURN_IF_ERROR(memory->CheckChanges(which, changes));
          const auto cluster = rows.find(std::string(kClusterKey));
          return cluster == rows.end() ? OkStatus()
                                       : memory->CheckCluster(ClusterOf(cluster->second));
        },
        .note = [this, which](uint64_t changes) { memory->Note(which, changes); },
        .written = parts.written});
  }

  Status BeginTenure() {
    follower_http.reset();
    follower.reset();
    EMS_LOG(kInfo, "mp_controller", "elected: this controller leads");
    const auto other = [this]() -> std::optional<std::string> {
      if (lease->Holds()) return std::nullopt;
      return LeaderName();
    };
    EMS_ASSIGN_OR_RETURN(const ClusterId cluster,
                         parts.lead({.cluster_rows = MakeRows(StoreMemory::Rows::kCluster),
                                     .model_rows = MakeRows(StoreMemory::Rows::kModels),
                                     .listen = listen,
                                     .http_listen = http_listen,
                                     .other = other}));
    return memory->CheckCluster(cluster);
  }

  Status Follow() {
    EMS_ASSIGN_OR_RETURN(follower, FollowerService::Start(listen, [this] { return LeaderName(); }));
    if (http_listen.empty()) return OkStatus();
    const auto healthy = [this] { return Healthy(); };
    EMS_ASSIGN_OR_RETURN(follower_http,
                         fabric::HttpEndpoint::Start(
                             http_listen, parts.registry, [] { return OkStatus(); }, healthy));
    return OkStatus();
  }

  Status FollowAgain() {
    Status status;
    for (int i = 0; i < kBindTries; ++i) {
      status = Follow();
      if (status.ok() || pause.WaitFor(kBindEvery)) return OkStatus();
      follower.reset();
    }
    return status;
  }

  // Its own name is no help while it does not lead.
  std::string LeaderName() {
    if (!started.load(std::memory_order_acquire)) return "";
    std::string name = lease->leader();
    return name == lease->options().address ? "" : name;
  }

  Status Healthy() const {
    return started.load(std::memory_order_acquire) ? lease->Healthy() : OkStatus();
  }

  // What a follower remembers of the store: should that be lost, it does not begin a new cluster.
  Status Look() {
    EMS_ASSIGN_OR_RETURN(
        const EtcdRows::Glance seen,
        EtcdRows::Look(&etcd, BaseOf(StoreMemory::Rows::kCluster), std::string(kClusterKey),
                       Deadline::After(parts.etcd.timeout)));
    EMS_RETURN_IF_ERROR(memory->CheckCluster(ClusterOf(seen.value)));
    memory->Note(StoreMemory::Rows::kCluster, seen.changes);
    return OkStatus();
  }

  const Parts parts;
  EtcdClient etcd;
  std::string listen, http_listen;  // as bound; they do not change after Start
  std::unique_ptr<StoreMemory> memory;
  std::unique_ptr<LeaderLease> lease;
  std::atomic<bool> started{false};  // there is a lease: release by Start, acquire by who serves
  std::unique_ptr<FollowerService> follower;
  std::unique_ptr<fabric::HttpEndpoint> follower_http;
  StopFlag pause;
  std::unique_ptr<Election> election;
};

Candidate::Candidate(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}

Candidate::~Candidate() {
  impl_->pause.Set();
  impl_->election.reset();
}

Status Candidate::Start() {
  Impl& impl = *impl_;
  const Parts& parts = impl.parts;
  EMS_ASSIGN_OR_RETURN(impl.memory, StoreMemory::Open(parts.data_dir));
  const Status usable = impl.etcd.Check(Deadline::After(parts.etcd.timeout));
  if (usable.code() == StatusCode::kUnavailable || usable.code() == StatusCode::kDeadlineExceeded) {
    EMS_LOG(kWarn, "mp_controller", "etcd is waited for: {}", Message(usable));
  } else {
    EMS_RETURN_IF_ERROR(usable);
  }
  EMS_RETURN_IF_ERROR(impl.Follow());
  impl.listen = fmt::format("{}:{}", HostOf(impl.listen), impl.follower->port());
  if (impl.follower_http != nullptr) impl.http_listen = impl.follower_http->address();
  impl.lease = std::make_unique<LeaderLease>(
      &impl.etcd, &Clock::System(),
      LeaderLeaseOptions{.prefix = parts.etcd.prefix,
                         .address = parts.advertise.empty() ? impl.listen : parts.advertise,
                         .lease = parts.etcd.lease,
                         .timeout = parts.etcd.timeout});
  impl.started.store(true, std::memory_order_release);
  impl.election =
      std::make_unique<Election>(Election::Parts{.lease = impl.lease.get(),
                                                 .lead = [&impl] { return impl.BeginTenure(); },
                                                 .end = parts.end,
                                                 .follow = [&impl] { return impl.FollowAgain(); },
                                                 .look = [&impl] { return impl.Look(); },
                                                 .on_error = parts.on_error});
  return OkStatus();
}

Status Candidate::fault() const {
  return impl_->election == nullptr ? OkStatus() : impl_->election->fault();
}

int Candidate::port() const {
  return ParseNumber<int>(impl_->listen.substr(impl_->listen.rfind(':') + 1)).value_or(0);
}

std::string Candidate::http_address() const { return impl_->http_listen; }

}  // namespace ems::controller
