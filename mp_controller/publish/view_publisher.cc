#include "mp_controller/publish/view_publisher.h"

#include <algorithm>
#include <utility>

#include "cluster/namespace_codec.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// Up to here a delta is sent without asking whether the view whole would be smaller.
constexpr size_t kSmallDeltaBytes = 16 << 10;

EncodedUpdate::Bytes Encode(const v1::ClusterUpdate& update) {
  return std::make_shared<const std::string>(update.SerializeAsString());
}

std::shared_ptr<EncodedUpdate> WholeOf(ViewCache::View view) {
  return std::make_shared<EncodedUpdate>([view = std::move(view)] {
    v1::ClusterUpdate update;
    update.set_cluster(view->cluster().value());
    view->ToProto(update.mutable_view());
    return Encode(update);
  });
}

// `whole`: of the same view, which takes its place where it is no larger.
std::shared_ptr<EncodedUpdate> DeltaOf(ViewCache::View base, ViewCache::View view,
                                       std::shared_ptr<EncodedUpdate> whole) {
  return std::make_shared<EncodedUpdate>(
      [base = std::move(base), view = std::move(view), whole = std::move(whole)] {
        v1::ClusterUpdate update;
        update.set_cluster(view->cluster().value());
        view->ToDelta(*base, update.mutable_delta());
        EncodedUpdate::Bytes delta = Encode(update);
        if (delta->size() <= kSmallDeltaBytes) return delta;
        EncodedUpdate::Bytes all = whole->Get();
        return all->size() <= delta->size() ? all : delta;
      });
}

}  // namespace

Status ViewPublisher::Subscribe(const std::shared_ptr<Subscriber>& subscriber) {
  auto subscribers = subscribers_.Lock();
  if (subscribers->closed) return Error(StatusCode::kUnavailable, "the controller is stopping");
  if (subscribers->all.size() >= watchers_max_) {
    return Error(StatusCode::kResourceExhausted, "{} watchers are served: that is watchers_max",
                 watchers_max_);
  }
  subscribers->all.insert(subscriber);
  return OkStatus();
}

void ViewPublisher::Unsubscribe(const std::shared_ptr<Subscriber>& subscriber) {
  auto subscribers = subscribers_.Lock();
  subscribers->all.erase(subscriber);
}

size_t ViewPublisher::watchers() {
  auto subscribers = subscribers_.Lock();
  return subscribers->all.size();
}

void ViewPublisher::NotifyAll() {
  std::vector<std::shared_ptr<Subscriber>> all;
  {
    auto subscribers = subscribers_.Lock();
    all.assign(subscribers->all.begin(), subscribers->all.end());
  }
  for (const auto& subscriber : all) subscriber->OnPublished();
}

void ViewPublisher::Publish(ViewCache::View view) {
  std::map<ViewVersion, Encoded> outdated;  // freed outside the lock
  {
    auto published = published_.Lock();
    published->views.push_back(std::move(view));
    if (published->views.size() > kDeltaBasesMax) published->views.pop_front();
    outdated.swap(published->encoded);
    ++published->changes;
  }
  changed_.notify_all();
}

void ViewPublisher::Publish(ViewCache::Namespaces namespaces) {
  const uint64_t version = namespaces->version;
  auto encoded = std::make_shared<EncodedUpdate>([table = std::move(namespaces)] {
    v1::ClusterUpdate update;
    ToProto(*table, update.mutable_namespaces());
    return Encode(update);
  });
  {
    auto published = published_.Lock();
    published->namespaces_version = version;
    published->namespaces.swap(encoded);
    ++published->changes;
  }
  changed_.notify_all();
}

bool ViewPublisher::AwaitChange(uint64_t* seen) {
  auto published = published_.Lock();
  published.Wait(changed_, [&](const Published& p) { return p.closed || p.changes != *seen; });
  *seen = published->changes;
  return !published->closed;
}

void ViewPublisher::Close() {
  std::set<std::shared_ptr<Subscriber>> all;
  {
    auto subscribers = subscribers_.Lock();
    subscribers->closed = true;
    all.swap(subscribers->all);
  }
  {
    auto published = published_.Lock();
    published->closed = true;
  }
  changed_.notify_all();
  for (const auto& subscriber : all) subscriber->OnClosed();
}

ViewCache::View ViewPublisher::view() {
  auto published = published_.Lock();
  return published->views.empty() ? nullptr : published->views.back();
}

PublishedUpdate ViewPublisher::Next(WatchCursor* cursor) {
  Encoded view, namespaces;
  {
    auto published = published_.Lock();
    const auto& views = published->views;
    if (!views.empty() && views.back()->version() > cursor->view) {
      Encoded& whole = published->encoded[ViewVersion()];
      if (whole == nullptr) whole = WholeOf(views.back());
      view = whole;
      const auto base = std::find_if(views.begin(), views.end(), [&](const auto& kept) {
        return kept->version() == cursor->view;
      });
      if (base != views.end()) {
        Encoded& delta = published->encoded[cursor->view];
        if (delta == nullptr) delta = DeltaOf(*base, views.back(), whole);
        view = delta;
      }
      cursor->view = views.back()->version();
    }
    if (published->namespaces_version > cursor->namespaces) {
      namespaces = published->namespaces;
      cursor->namespaces = published->namespaces_version;
    }
  }
  PublishedUpdate update;
  if (view != nullptr) update.view = view->Get();
  if (namespaces != nullptr) update.namespaces = namespaces->Get();
  return update;
}

}  // namespace ems::controller
