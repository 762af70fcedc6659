#include "tests/fault/chaos/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ems::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::array<const char*, kFaultKinds> kNames = {
    "cut",    "vanish",    "swallow", "stall", "delay",     "resets",
    "damage", "partition", "stop",    "kill",  "hung disk", "full disk"};
constexpr uint64_t kFaultsMin = 4, kFaultsMost = 9;
constexpr uint64_t kDelayMostMs = 300;

// What links meet everywhere. Damage is for the data plane alone: gRPC has no checksums.
constexpr std::array kLinkFaults = {FaultKind::kCut,   FaultKind::kVanish, FaultKind::kSwallow,
                                    FaultKind::kStall, FaultKind::kDelay,  FaultKind::kResets};

FaultKind LinkFault(Place place, std::mt19937_64* random) {
  if (place == Place::kDataLink && (*random)() % 7 == 0) return FaultKind::kDamage;
  if (place == Place::kControlLink && (*random)() % 2 == 0) return FaultKind::kPartition;
  return kLinkFaults[(*random)() % kLinkFaults.size()];
}

FaultKind DaemonFault(Place place, const ChaosMeans& means, std::mt19937_64* random) {
  const uint64_t dice = (*random)() % 10;
  if (place == Place::kServer && dice == 0 && means.full_disk) return FaultKind::kFullDisk;
  if (dice <= 2 && means.hung_disk) return FaultKind::kHungDisk;
  return dice <= 6 ? FaultKind::kStop : FaultKind::kKill;
}

const char* PlaceName(Place place) {
  switch (place) {
    case Place::kDataLink:
      return "the way to server";
    case Place::kControlLink:
      return "the way to the controller of server";
    case Place::kClientLink:
      return "the way to the controller of client";
    case Place::kServer:
      return "server";
    case Place::kController:
      return "controller";
  }
  return "";
}

}  // namespace

const char* FaultName(FaultKind kind) { return kNames.at(static_cast<size_t>(kind)); }

std::string Fault::ToText() const {
  const bool is_link =
      place == Place::kDataLink || place == Place::kControlLink || place == Place::kClientLink;
  const std::array<const char*, 3> names = {" there", " back", ""};
  return fmt::format("{}{}: {} {}, {} ms", FaultName(kind),
                     is_link ? names.at(static_cast<size_t>(ways)) : "", PlaceName(place), index,
                     length / milliseconds(1));
}

std::vector<Fault> MakeRound(const ChaosMeans& means, Duration span, Duration lease,
                             std::mt19937_64* random) {
  constexpr std::array kPlaces = {Place::kDataLink,   Place::kDataLink,  Place::kControlLink,
                                  Place::kClientLink, Place::kServer,    Place::kServer,
                                  Place::kServer,     Place::kController};
  std::vector<Fault> faults(kFaultsMin + (*random)() % (kFaultsMost - kFaultsMin + 1));
  for (Fault& fault : faults) {
    fault.place = kPlaces[(*random)() % kPlaces.size()];
    const bool is_daemon = fault.place == Place::kServer || fault.place == Place::kController;
    const int among = fault.place == Place::kClientLink ? means.clients : means.servers;
    const auto chosen = static_cast<int>((*random)() % static_cast<uint64_t>(among));
    fault.index = fault.place == Place::kController ? 0 : chosen;
    fault.kind =
        is_daemon ? DaemonFault(fault.place, means, random) : LinkFault(fault.place, random);
    fault.ways = static_cast<int>((*random)() % 3);
    fault.strength = 1 + (*random)() % kDelayMostMs;
    const bool is_partition = fault.kind == FaultKind::kPartition;
    if (is_partition) fault.strength = 1 + fault.strength % ((1ULL << means.clients) - 2);
    fault.begin = Duration((*random)() % static_cast<uint64_t>((span / 2).count()));
    // Up to the lease, or from there to what is left.
    const bool is_short = (*random)() % 2 == 0 && !is_partition;
    const Duration least = is_short ? milliseconds(50) : lease;
    const Duration most = is_short ? lease : span - fault.begin;
    const auto room = static_cast<uint64_t>(std::max<int64_t>((most - least).count(), 1));
    fault.length = std::min<Duration>(least + Duration((*random)() % room), span - fault.begin);
  }
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.begin < b.begin; });
  return faults;
}

}  // namespace ems::testing
