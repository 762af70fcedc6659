#include "mp_controller/view_publisher.h"

#include <algorithm>
#include <utility>

#include "mp_controller/controller_store.h"
#include "mp_controller/view/namespace_codec.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// A delta that names more slots than this is larger than the whole view.
constexpr int kDeltaSlotsMax = kSlotCount / 2;

// Whole when there is no base, or when the delta would be no smaller.
void FillView(const DhtView& view, const DhtView* base, v1::ClusterUpdate* update) {
  if (base != nullptr) {
    view.ToDelta(*base, update->mutable_delta());
    if (update->delta().slots_size() <= kDeltaSlotsMax) return;
  }
  view.ToProto(update->mutable_view());
}

}  // namespace

Status ViewPublisher::Subscribe(const std::shared_ptr<Subscriber>& subscriber) {
  auto state = state_.Lock();
  if (state->closed) return Error(StatusCode::kUnavailable, "the controller is stopping");
  if (state->subscribers.size() >= watchers_max_) {
    return Error(StatusCode::kResourceExhausted, "{} watchers are served: that is watchers_max",
                 watchers_max_);
  }
  state->subscribers.insert(subscriber);
  return OkStatus();
}

void ViewPublisher::Unsubscribe(const std::shared_ptr<Subscriber>& subscriber) {
  auto state = state_.Lock();
  state->subscribers.erase(subscriber);
}

size_t ViewPublisher::watchers() {
  auto state = state_.Lock();
  return state->subscribers.size();
}

void ViewPublisher::NotifyAll() {
  std::vector<std::shared_ptr<Subscriber>> all;
  {
    auto state = state_.Lock();
    all.assign(state->subscribers.begin(), state->subscribers.end());
  }
  for (const auto& subscriber : all) subscriber->OnPublished();
}

void ViewPublisher::Publish(ViewCache::View view) {
  {
    auto state = state_.Lock();
    state->views.push_back(std::move(view));
    if (state->views.size() > kViewsKept) state->views.pop_front();
  }
  NotifyAll();
}

void ViewPublisher::Publish(ViewCache::Namespaces namespaces) {
  {
    auto state = state_.Lock();
    state->namespaces = std::move(namespaces);
  }
  NotifyAll();
}

void ViewPublisher::Close() {
  std::set<std::shared_ptr<Subscriber>> all;
  {
    auto state = state_.Lock();
    state->closed = true;
    all.swap(state->subscribers);
  }
  for (const auto& subscriber : all) subscriber->OnClosed();
}

ViewCache::View ViewPublisher::view() {
  auto state = state_.Lock();
  return state->views.empty() ? nullptr : state->views.back();
}

bool ViewPublisher::Next(WatchCursor* cursor, v1::ClusterUpdate* update) {
  ViewCache::View now, base;
  ViewCache::Namespaces namespaces;
  {
    auto state = state_.Lock();
    if (!state->views.empty()) now = state->views.back();
    for (const auto& view : state->views) {
      if (view->version() == cursor->view) base = view;
    }
    namespaces = state->namespaces;
  }
  update->Clear();
  bool filled = false;
  if (now != nullptr && now->version() > cursor->view) {
    FillView(*now, base.get(), update);
    cursor->view = now->version();
    filled = true;
  }
  if (namespaces != nullptr && namespaces->version > cursor->namespaces) {
    ToProto(*namespaces, update->mutable_namespaces());
    cursor->namespaces = namespaces->version;
    filled = true;
  }
  return filled;
}

}  // namespace ems::controller
