#pragma once
// How several controllers share an etcd.
#include <string>

#include "common/clock.h"

namespace ems::controller {

struct EtcdOptions {
  std::string endpoints;  // host:port, separated by commas; empty: one controller, without etcd
  std::string prefix = "/ems";
  Duration lease = std::chrono::seconds(5);
  Duration timeout = std::chrono::seconds(2);
};

}  // namespace ems::controller
