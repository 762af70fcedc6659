#pragma once
// gRPC ⇄ ClusterState: unary calls run on the controller's loop, watch streams pull from the
// publisher.
//
// Bound: a request has at most a manifest's 24 MiB, those in transit 256 MiB together,
// EventLoop::kQueueMax calls wait, a watch stream has one message under way.
#include <memory>
#include <string>

#include "common/status.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/publish/view_publisher.h"
#include "proto/cluster_metadata.h"

namespace ems::controller {

class ClusterEvents;
class ModelService;

// Threading: thread-safe.
class ControllerService final {
 public:
  struct Parts {
    EventLoop* loop;
    ClusterState* state;
    ViewPublisher* publisher;
    ControllerMetrics* metrics;
    ModelService* models = nullptr;   // served on the same port; null: not
    ClusterEvents* events = nullptr;  // null: there are none
    FindOtherLeader other = {};       // empty: this controller always leads
  };
  // Serves on `listen` (host:port, port 0: any) at once. All parts must outlive the service.
  // Errors: kInvalidArgument  bad address    kUnavailable  cannot bind
  static Result<std::unique_ptr<ControllerService>> Start(const std::string& listen,
                                                          const Parts& parts);
  // Ends the streams, waits at most 5 s for calls under way. The loop must still run.
  ~ControllerService();
  ControllerService(const ControllerService&) = delete;
  ControllerService& operator=(const ControllerService&) = delete;
  int port() const;

 private:
  struct Impl;
  explicit ControllerService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
