#pragma once
// What a server and its holder say to each other on the holder's Unix socket.
//
//   put   kPut{count} · kFds… · the holder: kHeld{count}: it has them, in place of what it had
//   take  kTake · the holder: kHeld{count} · kFds…: it has them no more
// A connection carries one of these. What ends in the middle counts for nothing. Bound: kFdsHeldMax
// descriptors, fabric::kFdsMax a message.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/net/fd_message.h"

namespace ems::server {

inline constexpr size_t kFdsHeldMax = 2048;
inline constexpr Duration kStorePatience = std::chrono::seconds(2);  // for all of a connection

enum class HoldOp : uint32_t { kPut = 1, kTake = 2, kFds = 3, kHeld = 4 };
struct HoldMessage {
  uint32_t magic = 0x484d5345;  // "ESMH" as it lies in memory
  HoldOp op = HoldOp::kFds;
  uint64_t count = 0;  // of all descriptors; of kFds: in this message
};

// One message, and back. Wait until it can be done, `deadline` at most.
// Errors: kUnavailable  the peer is gone    kDeadlineExceeded    kDataLoss  not such a message
Status SendHold(int socket, const HoldMessage& message, std::span<const int> fds,
                Deadline deadline);
Result<HoldMessage> ReceiveHold(int socket, fabric::MessageReceiver* receiver,
                                std::vector<fabric::Fd>* fds, Deadline deadline);
// `count` descriptors as kFds messages.
Status SendHeld(int socket, std::span<const int> fds, Deadline deadline);
Result<std::vector<fabric::Fd>> ReceiveHeld(int socket, fabric::MessageReceiver* receiver,
                                            uint64_t count, Deadline deadline);

// The server's side. Errors: as above, and kPermissionDenied  the holder is another user's
Result<fabric::Fd> ConnectHolder(const std::string& path, Deadline deadline);
Status PutHeld(const std::string& path, std::span<const int> fds, Deadline deadline);
Result<std::vector<fabric::Fd>> TakeHeld(const std::string& path, Deadline deadline);

}  // namespace ems::server
