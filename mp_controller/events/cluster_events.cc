#include "mp_controller/events/cluster_events.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/random_id.h"
#include "proto/controller.pb.h"

namespace ems::controller {

ClusterEvents::ClusterEvents(std::function<int64_t()> unix_ms)
    : unix_ms_(std::move(unix_ms)), run_(RandomId()) {}

void ClusterEvents::Add(ClusterEvent event) {
  event.text.resize(std::min(event.text.size(), kTextBytesMax));
  const int64_t now = unix_ms_();
  auto state = state_.Lock();
  if (state->events.size() == kEventsMax) state->events.pop_front();
  state->events.push_back({++state->last, now, std::move(event)});
}

void ClusterEvents::List(const v1::ListEventsRequest& request, v1::ListEventsReply* reply) {
  const int64_t now = unix_ms_();
  const uint64_t after = request.run() == run_ ? request.after() : 0;
  int64_t since = request.since_unix_ms();
  if (request.age_ms_max() > 0)
    since = std::max(
        since, now - static_cast<int64_t>(std::min<uint64_t>(request.age_ms_max(), INT64_MAX / 2)));
  reply->set_run(run_);
  reply->set_now_unix_ms(now);
  auto state = state_.Lock();
  std::vector<const Stored*> wanted;
  for (const Stored& one : state->events)
    if (one.sequence > after && one.unix_ms >= since) wanted.push_back(&one);
  const size_t limit = request.limit() == 0 ? kEventsMax : request.limit();
  for (size_t i = wanted.size() - std::min(limit, wanted.size()); i < wanted.size(); ++i) {
    v1::ClusterEvent* const out = reply->add_events();
    out->set_sequence(wanted[i]->sequence);
    out->set_unix_ms(wanted[i]->unix_ms);
    out->set_kind(std::string(wanted[i]->event.kind));
    out->set_node(wanted[i]->event.node);
    out->set_name_space(wanted[i]->event.name_space);
    out->set_text(wanted[i]->event.text);
  }
}

void AddEvent(ClusterEvents* events, ClusterEvent event) {
  if (events != nullptr) events->Add(std::move(event));
}

}  // namespace ems::controller
