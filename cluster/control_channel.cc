#include "cluster/control_channel.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "common/host_port.h"

namespace ems {
namespace {

constexpr Duration kDriveMost = std::chrono::milliseconds(20);

gpr_timespec In(Duration time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(time.count(), GPR_TIMESPAN));
}

}  // namespace

Status CheckControllerAddress(const std::string& address) {
  const Result<HostPort> parsed = ParseHostPort(address);
  if (parsed.ok() && parsed->port != 0) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "controller {}; 7400 is its port unless told otherwise",
               parsed.ok() ? fmt::format("address \"{}\": nobody listens on port 0", address)
                           : Message(parsed.status()));
}

std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address,
                                                  int message_bytes_max) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(message_bytes_max);
  args.SetMaxSendMessageSize(message_bytes_max);
  // A restarted controller is noticed within a second, a vanished one by pings on the open watch.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The control plane is never reached through a web proxy that happens to be in the environment.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // What an answer means is decided here alone. gRPC's retries also end the process when an answer
  // names no status (gRPC 1.51), and connect a thousand times a second to a peer that goes away.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

void DriveChannel(grpc::Channel* channel, Deadline deadline) {
  if (channel->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  channel->WaitForConnected(In(std::min(deadline.Remaining(), kDriveMost)));
}

bool IsConnected(grpc::Channel* channel, Deadline deadline) {
  DriveChannel(channel, deadline);
  while (true) {
    const grpc_connectivity_state state = channel->GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (!channel->WaitForStateChange(state, In(deadline.Remaining()))) return false;
  }
}

void SetDeadline(Deadline deadline, grpc::ClientContext* context) {
  context->set_deadline(In(deadline.Remaining()));
}

}  // namespace ems
