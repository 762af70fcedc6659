#pragma once
// gRPC ⇄ ModelState: calls run on the service's own loop, "ems-models", so that what models write
// to the disk delays no heartbeat; one that waits for news is kept there and answered by the
// change, or when its time is over.
//
// Bound: EventLoop::kQueueMax calls are queued; kWaitingMax wait for news, each 30 s at most, and
// beyond it are answered at once.
#include <functional>
#include <memory>

#include "common/cluster_id.h"
#include "proto/cluster_metadata.h"

namespace grpc {
class Service;
}

namespace ems {
class Clock;
namespace v1 {
class ListModelsReply;
}
}  // namespace ems

namespace ems::controller {

class ModelState;

// Threading: thread-safe.
class ModelService final {
 public:
  static constexpr size_t kWaitingMax = 4096;

  // From now on `state`, started, belongs to the loop. Both must outlive the service. Calls for
  // another cluster than `cluster` are refused, and all when this controller does not lead
  // (proto/cluster_metadata.h).
  ModelService(ModelState* state, const Clock* clock, ClusterId cluster,
               FindOtherLeader other = {});
  ~ModelService();
  ModelService(const ModelService&) = delete;
  ModelService& operator=(const ModelService&) = delete;

  // To be registered with a server, which must be gone before this is.
  grpc::Service* service();
  // Gives all versions to `take`, on the loop. False, and nothing happens, when its queue is full.
  [[nodiscard]] bool TryList(std::function<void(v1::ListModelsReply&& models)> take);
  // Answers all that wait, and later ones at once. Before the server shuts down.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
