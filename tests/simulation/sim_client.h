#pragma once
// A client that puts, gets and removes a few keys, with whatever view it has.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/key_log.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_server.h"

namespace ems::simulation {

// Threading: one thread.
class SimClient final {
 public:
  using Servers = std::vector<std::unique_ptr<SimServer>>;
  // `stubborn`: it keeps its view until a server tells it of a newer one.
  SimClient(World* world, Network* network, SimController* controller, Machine machine,
            bool stubborn, const Servers* servers, KeyLog* log,
            std::function<void(std::string)> on_violation);

  // Asks for something now and then, from now on.
  void Start();
  void TakeView(const ViewCache::View& view);
  // Calls that were answered with what was asked for.
  uint64_t served() const { return served_; }

 private:
  void Ask();
  void AskServer(SimServer* server, Machine at, int key);
  void OnAnswer(const Answer& answer);
  void Refresh();

  World& world_;
  Network& network_;
  SimController& controller_;
  const Machine machine_;
  const bool stubborn_;
  const Servers& servers_;
  KeyLog& log_;
  const std::function<void(std::string)> on_violation_;
  ViewCache::View view_;
  uint64_t served_ = 0;
};

}  // namespace ems::simulation
