// Invariant: a task that comes too late finds what it fills still there.
#include "mp_controller/fact_finder.h"

#include <condition_variable>
#include <memory>
#include <optional>
#include <utility>

#include "common/guarded.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/model_service.h"
#include "mp_controller/page/cluster_json.h"
#include "proto/controller.pb.h"
#include "proto/model.pb.h"

namespace ems::controller {
namespace {

struct Found {
  struct Facts {
    bool has_cluster = false, has_models = false;
    ViewCache::View view;
    v1::ListNodesReply nodes;
    v1::ListNamespacesReply namespaces;
    v1::ListModelsReply models;
  };
  Guarded<Facts> facts;
  std::condition_variable more;
};

}  // namespace

Result<std::string> FactFinder::Json() const {
  const auto found = std::make_shared<Found>();
  const bool asked = parts_.loop->TryPost([parts = parts_, found] {
    v1::ListNodesReply nodes;
    v1::ListNamespacesReply namespaces;
    (void)parts.state->ListNodes({}, &nodes);  // neither has errors
    (void)parts.state->ListNamespaces({}, &namespaces);
    {
      auto facts = found->facts.Lock();
      facts->nodes = std::move(nodes);
      facts->namespaces = std::move(namespaces);
      facts->view = parts.publisher->view();
      facts->has_cluster = true;
    }
    found->more.notify_one();
  });
  const bool asked_models = parts_.models->TryList([found](v1::ListModelsReply&& models) {
    {
      auto facts = found->facts.Lock();
      facts->models = std::move(models);
      facts->has_models = true;
    }
    found->more.notify_one();
  });
  auto facts = found->facts.Lock();
  if (!asked || !asked_models ||
      !facts.WaitFor(found->more, parts_.patience,
                     [](const Found::Facts& f) { return f.has_cluster && f.has_models; })) {
    return Error(StatusCode::kUnavailable,
                 "the controller is busy or waits for its disk: the {} "
                 "do not answer",
                 facts->has_cluster ? "models" : "servers");
  }
  const Found::Facts all = std::move(*facts);
  facts.Unlock();
  v1::ListEventsRequest newest;
  newest.set_limit(kEventsShown);
  v1::ListEventsReply events;
  if (parts_.events != nullptr) parts_.events->List(newest, &events);
  return ClusterJson({.view = all.view.get(),
                      .nodes = &all.nodes,
                      .namespaces = &all.namespaces,
                      .models = &all.models,
                      .events = &events});
}

}  // namespace ems::controller
