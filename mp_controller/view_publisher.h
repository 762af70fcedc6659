#pragma once
// What is published now, and who wants to hear of changes.
//
// Nothing is queued for a subscriber: each asks for the difference between what it sent last and
// what holds now when it can take it. So a slow one holds up nobody and costs no memory; it skips
// views. Bound: watchers_max subscribers, kViewsKept views as bases of deltas.
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"
#include "mp_controller/view/view_cache.h"

namespace ems::v1 {
class ClusterUpdate;
}

namespace ems::controller {

class Subscriber {
 public:
  virtual ~Subscriber() = default;
  // Something changed. Called on the publishing thread without a lock; must not block.
  virtual void OnPublished() = 0;
  // The publisher is closing: end the stream.
  virtual void OnClosed() = 0;
};

// What one subscriber has sent. Threading: caller locks.
struct WatchCursor {
  ViewVersion view;
  uint64_t namespaces = 0;
};

// Threading: thread-safe.
class ViewPublisher final {
 public:
  explicit ViewPublisher(size_t watchers_max) : watchers_max_(watchers_max) {}

  // Errors: kResourceExhausted  watchers_max are there    kUnavailable  closed
  Status Subscribe(const std::shared_ptr<Subscriber>& subscriber);
  void Unsubscribe(const std::shared_ptr<Subscriber>& subscriber);
  size_t watchers();

  // Versions must grow.
  void Publish(ViewCache::View view);
  void Publish(ViewCache::Namespaces namespaces);
  // Ends all streams; later subscribers are refused.
  void Close();

  ViewCache::View view();
  // Fills `update` with what lies between `cursor` and now and moves the cursor; false when there
  // is nothing. A subscriber that has nothing yet, or lags by more than kViewsKept views, gets the
  // view whole. Cost: O(4096).
  bool Next(WatchCursor* cursor, v1::ClusterUpdate* update);

 private:
  struct State {
    std::deque<ViewCache::View> views;  // oldest first, the last one holds now
    ViewCache::Namespaces namespaces;
    std::set<std::shared_ptr<Subscriber>> subscribers;
    bool closed = false;
  };
  void NotifyAll();

  const size_t watchers_max_;
  Guarded<State> state_;
};

}  // namespace ems::controller
