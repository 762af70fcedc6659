#pragma once
// The current view and namespaces, and the subscribers to their changes.
//
// Nothing is queued for a subscriber: each asks for the difference between what it sent last and
// what holds now when it can take it. So a slow one holds up nobody and costs no memory; it skips
// views. A difference is encoded once, and all who send it share its bytes. Whoever publishes
// neither encodes nor calls a subscriber: a thread of its own does (view_fanout.h).
// Bound: watchers_max subscribers, kDeltaBasesMax views as bases of deltas, one encoding for each.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "cluster/view_cache.h"
#include "common/guarded.h"
#include "common/status.h"
#include "mp_controller/publish/encoded_update.h"

namespace ems::controller {

// Views that deltas lead from; who has an older one gets the view whole.
inline constexpr size_t kDeltaBasesMax = 16;

class Subscriber {
 public:
  virtual ~Subscriber() = default;
  // Something changed. Called by NotifyAll without a lock; must not block.
  virtual void OnPublished() = 0;
  // The publisher is closing: end the stream.
  virtual void OnClosed() = 0;
};

// What one subscriber has sent. Threading: caller locks.
struct WatchCursor {
  ViewVersion view;
  uint64_t namespaces = 0;
};

// What to send next: each part is a v1::ClusterUpdate in bytes, and so are both, one after the
// other. Null: that did not change.
struct PublishedUpdate {
  EncodedUpdate::Bytes view;
  EncodedUpdate::Bytes namespaces;
  bool empty() const { return view == nullptr && namespaces == nullptr; }
};

// Threading: thread-safe.
class ViewPublisher final {
 public:
  explicit ViewPublisher(size_t watchers_max) : watchers_max_(watchers_max) {}

  // Errors: kResourceExhausted  watchers_max are there    kUnavailable  closed
  Status Subscribe(const std::shared_ptr<Subscriber>& subscriber);
  void Unsubscribe(const std::shared_ptr<Subscriber>& subscriber);
  size_t watchers();

  // Versions must grow. Cost: O(1), whatever the number of subscribers.
  void Publish(ViewCache::View view);
  void Publish(ViewCache::Namespaces namespaces);
  // Waits until something is published that `seen` (0 at first) does not count yet, and counts it.
  // False: closed. Each thread that waits has a count of its own.
  bool AwaitChange(uint64_t* seen);
  // Tells each subscriber that something has changed. Cost: that of their OnPublished.
  void NotifyAll();
  // Ends all streams; later subscribers are refused.
  void Close();

  ViewCache::View view();
  // What lies between `cursor` and now, and moves the cursor; empty when there is nothing. A
  // subscriber that has nothing yet, or lags by more than kDeltaBasesMax views, gets the view
  // whole. Cost: O(kDeltaBasesMax); the first one to ask for a difference encodes it, O(kSlotCount
  // + nodes).
  PublishedUpdate Next(WatchCursor* cursor);

 private:
  using Encoded = std::shared_ptr<EncodedUpdate>;
  struct Published {
    std::deque<ViewCache::View> views;  // oldest first, the last one holds now
    // Of the newest view: what leads there from the view of that version; from none, it whole.
    std::map<ViewVersion, Encoded> encoded;
    uint64_t namespaces_version = 0;
    Encoded namespaces;
    uint64_t changes = 0;
    bool closed = false;
  };
  struct Subscribers {
    std::set<std::shared_ptr<Subscriber>> all;
    bool closed = false;
  };

  const size_t watchers_max_;
  Guarded<Published> published_;
  std::condition_variable changed_;
  Guarded<Subscribers> subscribers_;
};

}  // namespace ems::controller
