#pragma once
// What runs on the controller while power is cut: namespaces are made and deleted, and the views
// are looked at that clients are given and that the server says it has installed.
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/controller_client.h"
#include "common/ids.h"
#include "common/thread_pool.h"

namespace ems::testing {

// Threading: one thread drives; the load's own thread has all of it between Start and Stop.
class ControlLoad final {
 public:
  // `complain` hears of each broken guarantee.
  ControlLoad(const std::string& address, std::function<void(const std::string&)> complain);
  ~ControlLoad() { Stop(); }

  void Start();
  void Stop();
  // What was acknowledged before is so now, and views have not gone back.
  void Check();
  // The highest view that a server has said it has installed.
  ViewVersion installed() const { return installed_; }
  uint64_t changes() const { return changes_; }  // of namespaces, that were acknowledged

 private:
  enum class Fate : uint8_t { kMade, kGone, kEither };
  void ChangeOne();
  void LookAtViews();

  const std::string address_;
  const std::function<void(const std::string&)> complain_;
  // Of this Start or Check: one that has lost its controller tries again only after a while.
  std::unique_ptr<ControllerClient> controller_;
  std::map<std::string, Fate> namespaces_;
  uint64_t next_ = 0;
  uint64_t changes_ = 0;
  ViewVersion published_, installed_;
  std::unique_ptr<StopFlag> stop_;
  Thread thread_;
};

}  // namespace ems::testing
