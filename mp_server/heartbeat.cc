#include "mp_server/heartbeat.h"

#include <utility>

#include "common/logging.h"
#include "common/retry.h"
#include "proto/controller.pb.h"

namespace ems::server {
namespace {

constexpr Duration kRegisterDeadline = std::chrono::seconds(2);
constexpr Duration kBeatDeadlineMax = std::chrono::seconds(1);

}  // namespace

Heartbeat::Heartbeat(Options options) : options_(std::move(options)) {}

Heartbeat::~Heartbeat() { stop_.Set(); }

void Heartbeat::Start() {
  thread_ = Thread("ems-beat", [this] { Run(); });
}

void Heartbeat::Leave(Duration patience) {
  stop_.Set();
  thread_.Join();
  const NodeId self = options_.ownership->self();
  if (self == kNoNode || replaced_.load(std::memory_order_acquire)) return;
  const Status left =
      options_.controller->Leave(self, options_.self.boot_id, Deadline::After(patience));
  if (!left.ok()) EMS_LOG(kWarn, "mp_server", "could not leave in order: {}", ToString(left));
}

void Heartbeat::Run() {
  Backoff backoff(options_.self.boot_id, std::chrono::milliseconds(50));
  bool registered = false;
  while (true) {
    const Status status = registered ? Beat() : Register();
    options_.on_beat(status.ok());
    if (status.ok()) {
      backoff.Reset();
      // The first heartbeat follows at once: it brings the lease.
      if (registered && stop_.WaitFor(heartbeat_)) return;
      registered = true;
      continue;
    }
    if (status.code() == StatusCode::kNotFound) {
      registered = false;
      if (std::exchange(admitted_, false)) options_.on_expelled();
    } else if (status.code() == StatusCode::kAborted) {
      EMS_LOG(kError, "mp_server",
              "another mp-server has registered as \"{}\": this one serves no more. Give each a "
              "name of its own",
              options_.self.name);
      options_.ownership->Revoke();
      replaced_.store(true, std::memory_order_release);
      options_.on_replaced();
      return;
    } else {
      EMS_LOG(kWarn, "mp_server", "{} failed: {}", registered ? "heartbeat" : "register",
              ToString(status));
    }
    if (stop_.WaitFor(registered ? std::min(backoff.Next(), heartbeat_) : backoff.Next())) return;
  }
}

Status Heartbeat::Register() {
  const NodeInfo& self = options_.self;
  v1::RegisterRequest request;
  v1::Node* node = request.mutable_node();
  node->set_name(self.name);
  node->set_boot_id(self.boot_id);
  node->set_data_address(self.data_address);
  node->set_unix_path(self.unix_path);
  node->set_host_id(self.host_id);
  node->set_capacity_bytes(self.capacity_bytes);
  node->set_http_address(self.http_address);
  node->set_lineage(self.lineage);
  v1::RegisterReply reply;
  EMS_RETURN_IF_ERROR(
      options_.controller->Register(request, &reply, Deadline::After(kRegisterDeadline)));
  heartbeat_ = std::chrono::milliseconds(reply.heartbeat_ms());
  lease_ = std::chrono::milliseconds(reply.lease_ms());
  options_.ownership->SetSelf(NodeId(reply.node_id()));
  EMS_LOG(kInfo, "mp_server", "registered name={} node={} lease_ms={}", self.name, reply.node_id(),
          reply.lease_ms());
  options_.on_registered();
  return OkStatus();
}

Status Heartbeat::Beat() {
  const NodeUsage usage = options_.usage();
  const ViewVersion installed = options_.ownership->version();
  v1::HeartbeatRequest request;
  request.set_node_id(options_.ownership->self().value());
  request.set_boot_id(options_.self.boot_id);
  request.set_term(installed.term());
  request.set_epoch(installed.epoch());
  ToProto(usage, request.mutable_usage());
  v1::HeartbeatReply reply;
  const TimePoint sent = Clock::System().Now();
  EMS_RETURN_IF_ERROR(options_.controller->Heartbeat(
      request, &reply,
      Deadline::After(std::min(std::max(heartbeat_, kBeatDeadlineMax / 4), kBeatDeadlineMax))));
  if (reply.admitted()) options_.ownership->RenewLease(sent + lease_);
  if (std::exchange(admitted_, reply.admitted()) && !reply.admitted()) options_.on_expelled();
  const ViewVersion newest(reply.term(), reply.epoch());
  if (newest > installed) options_.on_behind(newest);
  if (newest < installed) options_.on_older(newest);
  return OkStatus();
}

}  // namespace ems::server
