#pragma once
// How this process reaches the controller's gRPC services: one way to dial, one way to end in time.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace ems {

// That `address` says where a controller is: host:port.   Errors: kInvalidArgument  what is missing
Status CheckControllerAddress(const std::string& address);

// How long after a controller is back a live server may not have reached it: the longest pause
// between two attempts (1.2 s), the attempt, and the call, on a busy machine.
inline constexpr Duration kReconnectMost = std::chrono::seconds(2);

// Nothing is connected yet. Messages of more than `message_bytes_max` are refused on this side.
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address,
                                                  int message_bytes_max);
// For calls that fail at once without a connection, before each of them: when the last attempt to
// connect has failed, looks whether the next one has come off. gRPC sees that only while a thread
// waits: otherwise a controller that is back is found after five seconds. Cost: nothing while
// connected; up to 20 ms, within the deadline, while not.
void DriveChannel(grpc::Channel* channel, Deadline deadline);
// Whether it is connected, or becomes so by `deadline`; an attempt that fails ends the wait.
bool IsConnected(grpc::Channel* channel, Deadline deadline);
// On the monotonic clock: a stepped wall clock changes no deadline.
void SetDeadline(Deadline deadline, grpc::ClientContext* context);

}  // namespace ems
