#pragma once
// Servers that forward to each other over real sockets, with the real rules of views, eras and
// storage; whom slots belong to is said by the test, and time by a clock of its own.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "fabric/rpc/rpc_server.h"
#include "mp_controller/publish/next_history.h"
#include "mp_server/data_service.h"
#include "mp_server/forward/forwarder.h"
#include "mp_server/forward/migrator.h"
#include "mp_server/forward/replicator.h"
#include "mp_server/hot/hot_copier.h"
#include "mp_server/lease/view_grant.h"
#include "mp_server/lease/view_installer.h"
#include "tests/support/eventually.h"

namespace ems::server {

// A server's sessions, but of an older version, while it is told so.
class AgedService final : public fabric::SessionFactory {
 public:
  explicit AgedService(fabric::SessionFactory* now) : now_(*now) {}
  std::unique_ptr<fabric::Session> NewSession() override {
    return std::make_unique<AgedSession>(now_.NewSession(), &lists_kept);
  }
  std::atomic<bool> lists_kept{true};

 private:
  class AgedSession final : public fabric::Session {
   public:
    AgedSession(std::unique_ptr<fabric::Session> now, const std::atomic<bool>* lists_kept)
        : now_(std::move(now)), lists_kept_(*lists_kept) {}
    fabric::Outcome Handle(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                           fabric::Answer* answer) override {
      if (request.op == wire::Op::kScanKept && !lists_kept_)
        return {wire::WireStatus::kUnimplemented};
      return now_->Handle(request, key, body, answer);
    }
    fabric::Outcome BeginPut(const fabric::PutRequest& put, fabric::PutTarget* target) override {
      return now_->BeginPut(put, target);
    }
    wire::WireStatus EndPut(uint64_t checksum, uint64_t expected) override {
      return now_->EndPut(checksum, expected);
    }
    void AbortPut() override { now_->AbortPut(); }
    void SetWaker(std::function<void()> waker) override { now_->SetWaker(std::move(waker)); }
    std::string_view ErrorText() override { return now_->ErrorText(); }
    uint32_t retry_ms() override { return now_->retry_ms(); }
    ViewVersion view_version() override { return now_->view_version(); }
    void Sent() override { now_->Sent(); }

   private:
    const std::unique_ptr<fabric::Session> now_;
    const std::atomic<bool>& lists_kept_;
  };
  fabric::SessionFactory& now_;
};

// One server's process. Threading: one thread (the test's), beside its own.
class ForwardNode final : public Holdings, public KeptNumbers {
 public:
  static constexpr NamespaceRef kNs{NamespaceId(1), 3};
  static constexpr Duration kKeepFor = std::chrono::seconds(100);
  static constexpr Duration kHotFor = std::chrono::seconds(20);

  ForwardNode(NodeId id, uint64_t boot_id, ViewIdentity highest, ManualClock* clock,
              bool immutable = false, uint32_t replicas = 1, size_t queue_max = 65536)
      : id_(id),
        boot_id_(boot_id),
        clock_(*clock),
        highest_(highest),
        moved_(kKeepFor, clock),
        pool_([] {
          SegmentPool::Options options;
          options.bytes = 8 * kMiB;
          options.segment_bytes = 2 * kMiB;
          options.huge_pages = HugePages::kOff;
          return options;
        }()),
        dram_(ObjectStore::Options{.pool = &pool_, .clock = clock, .moved = &moved_}),
        store_(&dram_, nullptr),
        ownership_(clock),
        service_(&store_, &ownership_, &metrics_, boot_id, 8 * kMiB, [] { return std::string(); }),
        installer_(&views_, boot_id, this, &ownership_, this) {
    EXPECT_TRUE(pool_.WaitReady(8 * kMiB, Deadline::After(std::chrono::seconds(20))).ok());
    replicator_ =
        std::make_unique<Replicator>(Replicator::Options{.store = &store_,
                                                         .ownership = &ownership_,
                                                         .metrics = metrics_.copies(),
                                                         .queue_max = queue_max,
                                                         .timeout = std::chrono::seconds(5),
                                                         .clock = clock});
    dram_.copies().SetSink(replicator_.get());
    service_.SetCopySink(replicator_.get());
    service_.SetHot(&hot_keys_, &hot_guests_);
    Know({kNs}, immutable, replicas);
    ownership_.SetSelf(id);
    RenewLease();
    Forward({});
    fabric::RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.io_threads = 1;
    rpc_ = std::move(*fabric::RpcServer::Start(options, &aged_, metrics_.rpc()));
  }
  ~ForwardNode() override {
    session_.reset();
    rpc_.reset();
    migrator_.reset();
    forwarder_.reset();
  }
  // The namespaces that there are.
  void Know(const std::vector<NamespaceRef>& namespaces, bool immutable = false,
            uint32_t replicas = 1) {
    NamespaceTable table;
    table.version = 1;
    for (const NamespaceRef ref : namespaces) {
      NamespaceInfo info;
      info.ref = ref;
      info.name = "kv" + std::to_string(ref.id.value());
      info.immutable = immutable;
      info.replicas = replicas;
      table.by_id[ref.id] = info;
    }
    dram_.SetNamespaces(table, 1.0);
    replicator_->SetNamespaces(table);
  }
  // As the configuration says it.
  void Forward(Forwarder::Options options) {
    session_.reset();
    migrator_.reset();
    forwarder_.reset();
    options.store = &store_;
    options.ownership = &ownership_;
    options.moved = &moved_;
    options.copies = &sources_;
    options.metrics = metrics_.forward();
    if (options.timeout == Forwarder::Options().timeout) options.timeout = std::chrono::seconds(5);
    forwarder_ = std::make_unique<Forwarder>(options);
    service_.SetForwarder(forwarder_.get());
    session_ = service_.NewSession();
    session_->SetWaker([] {});
    if (views_.view() != nullptr) forwarder_->SetNodes(*views_.view());
  }

  // The same, without a thread: the test makes the steps.
  void Migrate(Migrator::Options options = {}) {
    options.store = &store_;
    options.ownership = &ownership_;
    options.moved = &moved_;
    options.forwarder = forwarder_.get();
    options.metrics = metrics_.migrate();
    options.clock = &clock_;
    if (options.linger == Migrator::Options().linger) options.linger = Duration::zero();
    migrator_ = std::make_unique<Migrator>(options);
  }
  // Steps until nothing is to be done for a while; how long that took by the rate.
  Duration StepAll() {
    Duration took{}, waited{};
    while (true) {
      const Duration pause = migrator_->Step();
      if (pause == Duration::zero()) {
        took += std::exchange(waited, pause);
        continue;
      }
      if (waited > Duration::zero()) return took;
      waited = pause;
      clock_.Advance(pause);
    }
  }
  Migrator& migrator() { return *migrator_; }
  // Sends copies of what is read more often than that, without a thread: the test makes the steps.
  void SpreadHot(double reads_per_s) {
    copier_ = std::make_unique<HotCopier>(
        HotCopier::Options{.store = &store_,
                           .ownership = &ownership_,
                           .views = &views_,
                           .keys = &hot_keys_,
                           .guests = &hot_guests_,
                           .metrics = metrics_.hot(),
                           .hot = {.reads_per_s = reads_per_s, .keep_for = kHotFor},
                           .timeout = std::chrono::seconds(5),
                           .clock = &clock_});
  }
  HotCopier& copier() { return *copier_; }
  HotKeys& hot_keys() { return hot_keys_; }
  HotGuests& hot_guests() { return hot_guests_; }
  Replicator& replicator() { return *replicator_; }
  // Copies until nothing waits, as the rate says.
  void CopyAll() {
    while (true) {
      const Duration pause = replicator_->Step();
      if (pause >= std::chrono::milliseconds(250)) return;
      clock_.Advance(pause);
    }
  }

  NodeInfo info() const {
    NodeInfo info;
    info.id = id_;
    info.name = "n" + std::to_string(id_.value());
    info.boot_id = boot_id_;
    info.data_address = rpc_->address();
    return info;
  }
  void RenewLease() { ownership_.RenewLease(clock_.Now() + std::chrono::hours(1)); }
  void Install(const std::shared_ptr<const DhtView>& view) {
    ASSERT_TRUE(views_.Install(view));
    const auto begun = installer_.Begin();
    if (!begun) return;
    highest_ = *begun;
    installer_.Finish(OkStatus());
    replicator_->SetView(view);
  }

  // What a client is answered; a value only with kOk.
  struct Answered {
    wire::WireStatus status = wire::WireStatus::kInternal;
    std::string value;
    uint16_t copies = 0;  // as the header says it
  };
  Answered Get(SlotId slot, const std::string& key) {
    const wire::WireStatus status = Ask(wire::Op::kGet, slot, key, {}, &answer_);
    const Answered answered{status, Payload(), answer_.flags};
    session_->Sent();
    return answered;
  }
  // Where a copy will do.
  Answered GetCopy(SlotId slot, const std::string& key) {
    wire::FrameHeader header = Header(wire::Op::kGet, slot);
    header.flags |= wire::kFlagCopy;
    const Answered answered{Settle(header, key, {}, &answer_), Payload(), answer_.flags};
    session_->Sent();
    return answered;
  }
  wire::WireStatus Remove(SlotId slot, const std::string& key) {
    return Ask(wire::Op::kRemove, slot, key, {}, &answer_);
  }
  wire::WireStatus Put(SlotId slot, const std::string& key, std::string_view value,
                       bool overwrite = true) {
    return PutIn(kNs, slot, key, value, overwrite);
  }
  wire::WireStatus PutIn(NamespaceRef ns, SlotId slot, const std::string& key,
                         std::string_view value, bool overwrite = true) {
    wire::FrameHeader header = Header(wire::Op::kPut, slot);
    header.namespace_id = ns.id.value();
    header.namespace_generation = ns.generation;
    if (overwrite) header.flags |= wire::kFlagOverwrite;
    fabric::PutTarget target;
    const fabric::Outcome begun = session_->BeginPut({&header, key, slot, value.size()}, &target);
    if (begun.status != wire::WireStatus::kOk) return begun.status;
    PieceHasher hasher;
    hasher.Start(target.piece_sums);
    hasher.Update(AsBytes(value));
    if (!target.discard) std::memcpy(target.value.data(), value.data(), value.size());
    wire::WireStatus status = session_->EndPut(hasher.Finish(), Checksum(AsBytes(value)));
    (void)session_->AwaitPuts(std::span(&status, 1));
    session_->Sent();
    return status;
  }
  // By key: how many bytes; absent: a miss.
  std::map<std::string, uint64_t> Exist(SlotId slot, const std::vector<std::string>& keys) {
    std::string body;
    for (const std::string& key : keys) {
      body += AsText(wire::RawBytes(
          wire::ItemHead{.slot = slot.value(), .key_bytes = static_cast<uint16_t>(key.size())}));
    }
    for (const std::string& key : keys) body += key;
    wire::FrameHeader header = Header(wire::Op::kMultiExists, slot);
    header.item_count = static_cast<uint16_t>(keys.size());
    EXPECT_EQ(Settle(header, {}, AsBytes(body), &answer_), wire::WireStatus::kOk);
    std::map<std::string, uint64_t> found;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto result = wire::ReadRaw<wire::ItemResult>(
          ConstBytes(answer_.body).subspan(i * sizeof(wire::ItemResult)));
      if (result.status == wire::WireStatus::kOk) found[keys[i]] = result.value_bytes;
    }
    session_->Sent();
    return found;
  }
  bool ExistsOne(SlotId slot, const std::string& key) {
    const wire::WireStatus status = Ask(wire::Op::kExists, slot, key, {}, &answer_);
    session_->Sent();
    return status == wire::WireStatus::kOk;
  }
  // As another server asks.
  wire::WireStatus AskKept(SlotId slot, const std::string& key, Era era, wire::KeptHead* head) {
    const wire::KeptBody body{era.history, era.since};
    const wire::WireStatus status =
        Ask(wire::Op::kGetKept, slot, key, wire::RawBytes(body), &answer_);
    if (status == wire::WireStatus::kOk) *head = wire::ReadRaw<wire::KeptHead>(answer_.body);
    return status;
  }
  // As one that does not know ScanKept.
  void SetLists(bool lists_kept) { aged_.lists_kept = lists_kept; }
  // As a server that is about to stop.
  void Drain() { service_.Drain(); }
  // Drops it from memory, as an eviction does.
  void Evict(const std::string& key) {
    ObjectPin pin = dram_.Get(kNs, key, false);
    if (pin) pin.Withdraw();
  }
  bool HasItself(const std::string& key) { return dram_.Find(kNs, key, false).has_value(); }
  NamespaceUsage Usage() { return dram_.Usage().front(); }
  std::string Payload() const {
    std::string all;
    for (const ConstBytes part : answer_.payload) all += AsText(part);
    return all;
  }
  wire::WireStatus Settle(const wire::FrameHeader& header, std::string_view key, ConstBytes body,
                          fabric::Answer* answer) {
    session_->Sent();
    fabric::Outcome outcome;
    EXPECT_TRUE(ems::testing::Eventually([&] {
      answer->Clear();
      outcome = session_->Handle(header, key, body, answer);
      return !outcome.again && outcome.wait == Duration::zero();
    }));
    return outcome.status;
  }
  wire::FrameHeader Header(wire::Op op, SlotId slot) const {
    wire::FrameHeader header;
    header.op = op;
    header.namespace_id = kNs.id.value();
    header.namespace_generation = kNs.generation;
    header.view = ownership_.version().packed();
    header.slot = slot.value();
    return header;
  }
  wire::WireStatus Ask(wire::Op op, SlotId slot, const std::string& key, ConstBytes body,
                       fabric::Answer* answer) {
    return Settle(Header(op, slot), key, body, answer);
  }

  Ownership& ownership() { return ownership_; }
  ObjectStore& dram() { return dram_; }
  TieredStore& store() { return store_; }
  MovedSlots& moved() { return moved_; }
  Forwarder& forwarder() { return *forwarder_; }
  const ServerMetrics& metrics() const { return metrics_; }
  fabric::RpcServer& rpc() { return *rpc_; }

  // Holdings
  void SetNamespaces(const NamespaceTable&, double) override {}
  void GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                 const std::bitset<kSlotCount>& fresh) override {
    forwarder_->SetNodes(view);
    dram_.copies().SeekUntil(sources_.SetView(view, id_));
    store_.GainSlots(grant, OriginsOf(view, grant, fresh));
  }
  void SetOwnedSlots(const ssd::SlotGrant& grant) override { store_.SetOwnedSlots(grant); }
  void HoldCopies(const DhtView& view, bool widen) override {
    const CopySlots::Columns columns = CopiesOf(view, id_);
    if (!widen) return dram_.SetCopySlots(columns);
    hot_guests_.Clear();
    dram_.copies().Widen(columns);
  }
  void KeepBlocks(const std::bitset<kSlotCount>&) override {}
  void StopReaders() override {}
  // KeptNumbers
  ViewIdentity highest_view() const override { return highest_; }
  uint64_t lineage() const override { return 0; }
  ClusterId cluster() const override { return kNoCluster; }

 private:
  const NodeId id_;
  const uint64_t boot_id_;
  ManualClock& clock_;
  ViewIdentity highest_;
  MovedSlots moved_;
  SegmentPool pool_;
  ObjectStore dram_;
  TieredStore store_;
  Ownership ownership_;
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
  DataService service_;
  AgedService aged_{&service_};
  ViewCache views_;
  ViewInstaller installer_;
  CopySources sources_{kKeepFor, &clock_};
  HotKeys hot_keys_;
  HotGuests hot_guests_{&store_, &ownership_, kHotFor, &clock_};
  std::unique_ptr<HotCopier> copier_;
  std::unique_ptr<Replicator> replicator_;
  std::unique_ptr<Forwarder> forwarder_;
  std::unique_ptr<Migrator> migrator_;
  std::unique_ptr<fabric::RpcServer> rpc_;
  std::unique_ptr<fabric::Session> session_;
  fabric::Answer answer_;
};

// Up to four servers and who owns what. Views are made by the controller's rules.
class ForwardTest : public ::testing::Test {
 protected:
  static constexpr SlotId kSlot{77};
  static constexpr uint64_t kHistory = 5;

  ForwardNode& Node(uint32_t id) { return *nodes_.at(NodeId(id)); }
  // A new process of this name, with the folder of the one before.
  void Start(uint32_t id) {
    ViewIdentity highest;
    if (nodes_.contains(NodeId(id))) highest = Node(id).highest_view();
    Kill(id, highest);
    nodes_[NodeId(id)] = std::make_unique<ForwardNode>(NodeId(id), ++boots_, folders_[NodeId(id)],
                                                       &clock_, immutable_, replicas_, queue_max_);
  }
  void Kill(uint32_t id) { Kill(id, Node(id).highest_view()); }
  // The next view: `shown` are in it, and `owner` has kSlot. Nobody has installed it yet.
  void Publish(const std::set<uint32_t>& shown, uint32_t owner,
               const std::vector<uint32_t>& holders = {}) {
    std::vector<NodeInfo> nodes;
    nodes.reserve(shown.size());
    for (const uint32_t id : shown) nodes.push_back(Node(id).info());
    SlotTable slots;
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(*shown.begin()));
    slots.set_owner(kSlot, NodeId(owner));
    const ViewVersion version(1, ++epoch_);
    SlotHistory history =
        controller::NextHistory(view_.get(), nodes, slots, version.epoch(), kHistory);
    std::vector<NodeId> previous = controller::PreviousOwners(view_.get(), slots, history);
    SlotCopies copies;
    std::vector<NodeId> ids;
    ids.reserve(holders.size());
    for (const uint32_t id : holders) ids.emplace_back(id);
    copies.Set(kSlot, ids);
    auto made = DhtView::Make(version, std::move(nodes), slots, false, std::move(history),
                              kNoCluster, std::move(previous), std::move(copies));
    ASSERT_TRUE(made.ok()) << made.status();
    view_ = *made;
  }
  void Install(uint32_t id) {
    Node(id).Install(view_);
    Node(id).ownership().SetActive(epoch_);
  }
  // Those who may take Puts last: whoever loses slots comes first.
  void Move(const std::set<uint32_t>& shown, uint32_t owner,
            const std::vector<uint32_t>& holders = {}) {
    ASSERT_NO_FATAL_FAILURE(Publish(shown, owner, holders));
    for (const auto& [id, node] : nodes_)
      if (id != NodeId(owner)) Install(id.value());
    if (nodes_.contains(NodeId(owner))) Install(owner);
  }
  Era era() const { return {kHistory, view_->history().since(kSlot)}; }

  ManualClock clock_;
  bool immutable_ = false;
  uint32_t replicas_ = 1;
  size_t queue_max_ = 65536;
  std::map<NodeId, std::unique_ptr<ForwardNode>> nodes_;
  std::shared_ptr<const DhtView> view_;
  uint64_t epoch_ = 0;

 private:
  void Kill(uint32_t id, const ViewIdentity& highest) {
    if (!nodes_.contains(NodeId(id))) return;
    folders_[NodeId(id)] = highest;
    nodes_.erase(NodeId(id));
  }

  std::map<NodeId, ViewIdentity> folders_;
  uint64_t boots_ = 100;
};

}  // namespace ems::server
