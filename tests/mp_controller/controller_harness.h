#pragma once
// A controller in this process with leases short enough for tests, and servers that only send
// heartbeats.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "cluster/controller_client.h"
#include "common/thread_pool.h"
#include "mp_controller/controller.h"
#include "proto/controller.pb.h"

namespace ems::controller {

inline Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

inline ControllerOptions FastOptions(const std::string& data_dir, int port = 0) {
  using std::chrono::milliseconds;
  ControllerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(port);
  options.data_dir = data_dir;
  options.membership = {.heartbeat = milliseconds(100),
                        .lease = milliseconds(1000),
                        .settle = milliseconds(20),
                        .damping = milliseconds(200)};
  return options;
}

// A server as the controller sees it: registers, then heartbeats until Stop. Threading: one thread
// (the test).
class Beater final {
 public:
  Beater(const std::string& address, const std::string& name, uint64_t boot_id)
      : client_(address, "beater " + name), boot_id_(boot_id) {
    v1::RegisterRequest request;
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_boot_id(boot_id);
    request.mutable_node()->set_data_address("127.0.0.1:1");
    request.mutable_node()->set_capacity_bytes(1 << 30);
    v1::RegisterReply reply;
    const Status status = client_.Register(request, &reply, Soon());
    EXPECT_TRUE(status.ok()) << status;
    id_ = NodeId(reply.node_id());
    thread_ = Thread("beater", [this] { Run(); });
  }
  ~Beater() { Stop(); }
  // As kill -9 looks to the controller.
  void Stop() {
    stop_.Set();
    thread_.Join();
  }
  Status Leave() {
    Stop();
    return client_.Leave(id_, boot_id_, /*keeps_slots=*/false, Soon());
  }
  NodeId id() const { return id_; }

 private:
  void Run() {
    v1::HeartbeatRequest request;
    request.set_node_id(id_.value());
    request.set_boot_id(boot_id_);
    while (!stop_.WaitFor(std::chrono::milliseconds(50))) {
      v1::HeartbeatReply reply;
      if (!client_.Heartbeat(request, &reply, Soon()).ok()) continue;  // it may be down
      request.set_term(reply.term());  // as if it had installed what it heard of
      request.set_epoch(reply.epoch());
    }
  }

  ControllerClient client_;
  const uint64_t boot_id_;
  NodeId id_;
  StopFlag stop_;
  Thread thread_;
};

// Waits until `done(view)` holds for the view in `cache`; the view then, or null.
template <typename Done>
ViewCache::View WaitFor(ViewCache* cache, Done done) {
  const Deadline deadline = Soon();
  ViewVersion next(1, 1);
  while (!deadline.Passed()) {
    const auto view = cache->WaitForView(next, deadline);
    if (view == nullptr) return nullptr;
    if (done(*view)) return view;
    next = ViewVersion::FromPacked(view->version().packed() + 1);
  }
  return nullptr;
}

inline auto HasNodes(size_t count) {
  return [count](const DhtView& view) { return view.nodes().size() == count && !view.frozen(); };
}

}  // namespace ems::controller
