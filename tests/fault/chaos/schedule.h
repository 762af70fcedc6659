#pragma once
// Which faults a round of ems-chaos brings, when and for how long: a function of the seed.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ems::testing {

enum class FaultKind : uint8_t {
  kCut,        // a link's connections are closed, and new ones refused
  kVanish,     // a black hole: packets are lost unseen, in one direction or both
  kSwallow,    // what is sent has arrived for the sender, and reaches nobody
  kStall,      // nobody reads
  kDelay,      // each byte is late
  kResets,     // connections are reset in the middle
  kDamage,     // bits flip, pieces of the stream are lost, come twice, or in another order
  kPartition,  // a server and some of the clients lose the controller together
  kStop,       // SIGSTOP, then SIGCONT
  kKill,       // kill -9, then a start
  kHungDisk,   // syncs of a daemon's files do not end
  kFullDisk,   // another user has the rest of the file system
};
inline constexpr size_t kFaultKinds = 12;
const char* FaultName(FaultKind kind);

enum class Place : uint8_t {
  kDataLink,     // clients and other servers to server `index`
  kControlLink,  // server `index` to the controller
  kClientLink,   // client `index` to the controller
  kServer,
  kController,
};

struct Fault {
  FaultKind kind;
  Place place;
  int index;
  int ways;           // of a link, where it matters: 0 to the target, 1 to the client, 2 both
  uint64_t strength;  // of a delay in ms; of noise its seed; of a partition a bit for each client
  Duration begin, length;
  std::string ToText() const;
};

// What there is to break.
struct ChaosMeans {
  int servers = 3;
  int clients = 4;
  bool hung_disk = true;
  bool full_disk = true;
};

// Faults of one round of `span`, in the order of their begins; they end by its end. Half of the
// pauses are shorter than `lease`.
std::vector<Fault> MakeRound(const ChaosMeans& means, Duration span, Duration lease,
                             std::mt19937_64* random);

}  // namespace ems::testing
