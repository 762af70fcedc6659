#pragma once
// Frames ⇄ object store: what each op of the data plane does.
//
// A session belongs to one connection. Once for each request it opens the namespace, reads the
// clock and looks at the view; then it finds or removes key by key, pins what is being sent and
// lets it go when the transport has handed it to the kernel. Puts: put_session.h. A request that
// waits goes on with the keys that it waits for, and with none of the others.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/cluster_id.h"
#include "fabric/rpc/rpc_session.h"
#include "mp_server/forward/forwarder.h"
#include "mp_server/hot/hot_guests.h"
#include "mp_server/hot/hot_keys.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/request_check.h"
#include "mp_server/server_metrics.h"
#include "mp_server/shm/shm_service.h"
#include "mp_server/slow_requests.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// Threading: thread-safe.
class DataService final : public fabric::SessionFactory {
 public:
  // Appends what this server has heard of a view to the answer to Peers; thread-safe.
  using TellPeers = std::function<void(ViewVersion, std::vector<std::byte>*)>;
  // `stats_json` renders the answer to Stats; `cluster` is what this server belongs to, as it tells
  // whoever connects (empty: it does not); without `tell_peers` the answer to Peers is its header.
  // All must outlive the service and its sessions.
  DataService(TieredStore* store, const Ownership* ownership, const ServerMetrics* metrics,
              uint64_t boot_id, uint64_t value_bytes_max, std::function<std::string()> stats_json,
              std::function<ClusterId()> cluster = {}, TellPeers tell_peers = {})
      : store_(store),
        ownership_(ownership),
        check_(store, ownership),
        slow_requests_(store, Duration::zero()),
        metrics_(metrics),
        boot_id_(boot_id),
        value_bytes_max_(value_bytes_max),
        stats_json_(std::move(stats_json)),
        cluster_(std::move(cluster)),
        tell_peers_(std::move(tell_peers)) {}

  // From now on clients on this host may attach; null: they may not, because of `why`. Before the
  // first session.
  void SetShm(ShmService* shm, std::string why) {
    shm_ = shm;
    no_shm_text_ = std::move(why);
  }
  // Who asks other servers for what is not here; null: nobody. Before the first session.
  void SetForwarder(Forwarder* forwarder) { forwarder_ = forwarder; }
  // Appends the view of this server to the answer to View, if it is newer than the one given;
  // thread-safe. Without it the answer is empty. Before the first session.
  void SetTellView(TellPeers tell) { tell_view_ = std::move(tell); }
  // As RequestCheck's.
  void SetOnNewerView(std::function<void()> on_newer) {
    check_.SetOnNewerView(std::move(on_newer));
  }
  // Who hears of keys that are removed, for the copies that others hold; null: nobody. Before the
  // first session.
  void SetCopySink(CopySink* sink) { copy_sink_ = sink; }
  // What reads are counted by and told of hot keys, and who takes copies of others' hot objects;
  // null: nobody does. Before the first session.
  void SetHot(HotKeys* keys, HotGuests* guests) {
    hot_keys_ = keys;
    hot_guests_ = guests;
  }
  // What takes so long is logged; zero: nothing is. Before the first session.
  void SetSlowRequest(Duration slow) { slow_requests_ = SlowRequests(store_, slow); }
  std::unique_ptr<fabric::Session> NewSession() override;
  // As RequestCheck's.
  void Drain() { check_.Drain(); }

 private:
  friend class DataSession;
  // Hello, Stats, Peers and View.
  void Tell(const wire::FrameHeader& request, std::vector<std::byte>* body) const {
    if (request.op == wire::Op::kPeers) {
      if (tell_peers_) tell_peers_(request.view_version(), body);
      return;
    }
    if (request.op == wire::Op::kView) {
      if (tell_view_) tell_view_(request.view_version(), body);
      return;
    }
    wire::HelloBody hello{.boot_id = boot_id_, .value_bytes_max = value_bytes_max_};
    if (cluster_) hello.SetCluster(cluster_());
    const bool stats = request.op == wire::Op::kStats;
    const std::string json = stats ? stats_json_() : std::string();
    const ConstBytes raw = stats ? AsBytes(json) : wire::RawBytes(hello);
    body->assign(raw.begin(), raw.end());
  }

  // A value is being sent; what the answer says of copies of it.
  uint8_t OnRead(const TieredNamespace& objects, NamespaceRef ns, SlotId slot, std::string_view key,
                 uint64_t bytes) const {
    if (hot_keys_ == nullptr || !objects.immutable()) return 0;
    return hot_keys_->OnRead(objects, ns, slot, key, bytes);
  }
  // The copies that others hold of it are to go, too.
  void OnRemoved(const TieredNamespace& objects, NamespaceRef ns, SlotId slot,
                 std::string_view key) const {
    if (!objects.immutable()) return;
    if (copy_sink_ != nullptr && objects.replicas() > 1)
      copy_sink_->OnRemoved(ns, objects.replicas(), slot, key);
    if (hot_keys_ != nullptr) hot_keys_->OnRemoved(objects, ns, slot, key);
  }

  TieredStore* store_;
  const Ownership* ownership_;
  RequestCheck check_;
  SlowRequests slow_requests_;
  const ServerMetrics* metrics_;
  const uint64_t boot_id_;
  const uint64_t value_bytes_max_;
  const std::function<std::string()> stats_json_;
  const std::function<ClusterId()> cluster_;
  const TellPeers tell_peers_;
  TellPeers tell_view_;
  ShmService* shm_ = nullptr;
  Forwarder* forwarder_ = nullptr;
  CopySink* copy_sink_ = nullptr;
  HotKeys* hot_keys_ = nullptr;
  HotGuests* hot_guests_ = nullptr;
  std::string no_shm_text_ = "this server does not share its memory";
};

}  // namespace ems::server
