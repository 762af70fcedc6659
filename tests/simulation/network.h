#pragma once
// Messages between machines: late, lost, sent twice, in any order, one way only.
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "tests/simulation/world.h"

namespace ems::simulation {

// 0 is the controller, servers follow, then clients.
using Machine = int;

// Threading: one thread.
class Network final {
 public:
  explicit Network(World* world) : world_(*world) {}

  // How badly all links behave from now on.
  struct Weather {
    double loss = 0;
    double twice = 0;
    Duration delay_most = std::chrono::milliseconds(2);
  };
  void SetWeather(Weather weather) { weather_ = weather; }
  // Nothing goes from one to the other, as often as it has been cut.
  void Cut(Machine from, Machine to) { ++cuts_[{from, to}]; }
  void Mend(Machine from, Machine to) { --cuts_[{from, to}]; }

  // `arrive` runs at the receiver, once, twice or never.
  void Send(Machine from, Machine to, std::function<void()> arrive) {
    if (IsCut(from, to) || world_.Chance(weather_.loss)) return;
    if (world_.Chance(weather_.twice)) world_.After(Delay(), arrive);
    world_.After(Delay(), std::move(arrive));
  }
  // On a connection: never twice.
  void SendOnce(Machine from, Machine to, std::function<void()> arrive) {
    if (IsCut(from, to) || world_.Chance(weather_.loss)) return;
    world_.After(Delay(), std::move(arrive));
  }

 private:
  bool IsCut(Machine from, Machine to) const {
    const auto it = cuts_.find({from, to});
    return it != cuts_.end() && it->second > 0;
  }
  Duration Delay() { return world_.Between(std::chrono::microseconds(50), weather_.delay_most); }

  World& world_;
  Weather weather_;
  std::map<std::pair<Machine, Machine>, int> cuts_;
};

}  // namespace ems::simulation
