#pragma once
// The cluster that ems-chaos breaks: every link between clients, servers and the controller goes
// through a proxy, daemons run under a library that can hang their disks, and SSD tiers lie on file
// systems that can be full (as root).
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mp_sdk/client.h"
#include "tests/fault/chaos/schedule.h"
#include "tests/support/cluster.h"
#include "tests/support/small_disk.h"

namespace ems::testing {

// Threading: one thread (the one that made it), as Cluster.
class ChaosRig final {
 public:
  // `complain` hears of a daemon that ends by itself or does not come back.
  static Result<std::unique_ptr<ChaosRig>> Start(const ChaosMeans& wanted, Duration lease,
                                                 std::function<void(const std::string&)> complain);

  const ChaosMeans& means() const { return means_; }  // what of the wanted this machine can do
  // A client whose way to the controller is client link `index`.
  Result<std::unique_ptr<Client>> Connect(int index, TransportChoice transport);

  void Begin(const Fault& fault);
  void End(const Fault& fault);
  // From time to time: servers that were started again are found where they are now.
  void Tend();
  // Ends all faults and waits until all servers are in the view. Errors: not within `patience`
  Status Heal(Duration patience);
  // The ends of the daemons' logs.
  std::string LogEnds() const;

 private:
  ChaosRig(const ChaosMeans& means, std::function<void(const std::string&)> complain)
      : means_(means), complain_(std::move(complain)) {}
  Status Make(Duration lease);
  std::vector<TcpProxy*> LinksOf(const Fault& fault);
  Daemon& DaemonOf(const Fault& fault);
  void BeginOnLinks(const Fault& fault);
  // Starts it again if it does not run.
  Status Revive(Place place, int index);
  std::vector<std::string> FlagsOf(int server) const;
  void HangDisk(const Fault& fault, bool hangs);

  ChaosMeans means_;
  const std::function<void(const std::string&)> complain_;
  std::vector<std::unique_ptr<SmallDisk>> disks_;  // of servers; they go after the cluster
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<TcpProxy>> client_links_;
  std::vector<bool> starting_;  // servers that are not known to be ready
};

}  // namespace ems::testing
