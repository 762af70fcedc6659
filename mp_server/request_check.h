#pragma once
// May a request be answered by this server, now? Draining, namespace, view, slot and lease.
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "fabric/rpc/rpc_session.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// How soon to look again for a view, a namespace or room that is on its way.
inline constexpr Duration kLookAgain = std::chrono::milliseconds(2);
// How long a wait lasts that a waker ends, when it does not.
inline constexpr Duration kWakeSoon = std::chrono::milliseconds(100);
// How long a Put or Remove waits for the SSD tier, and when a client that may repeat it does.
inline constexpr Duration kDurablePatience = std::chrono::seconds(5);
inline constexpr uint32_t kRetryDurableMs = 200;

// The fields of an answer that is not kOk, beside its status.
struct Refusal {
  std::string text;
  uint32_t retry_ms = 0;
  wire::WireStatus Say(wire::WireStatus status, std::string why, uint32_t retry_after_ms = 0) {
    text = std::move(why);
    if (retry_after_ms != 0) retry_ms = retry_after_ms;
    return status;
  }
  void Clear() {
    text.clear();
    retry_ms = 0;
  }
};

// Threading: thread-safe.
class RequestCheck final {
 public:
  // Both must outlive it.
  RequestCheck(TieredStore* store, const Ownership* ownership)
      : store_(store), ownership_(ownership) {}

  // What is called when a request has a newer view than this server; thread-safe, and quick. Before
  // the first request.
  void SetOnNewerView(std::function<void()> on_newer) { on_newer_view_ = std::move(on_newer); }

  // From now on every request is answered with kRetryLater: the server is about to stop.
  void Drain() { draining_.store(true, std::memory_order_release); }

  // What holds for all keys of a request: opens its namespace. With a wait: what it needs is on its
  // way here.
  fabric::Outcome Open(const wire::FrameHeader& request, TieredNamespace* objects,
                       Refusal* refusal) const;
  // What another server keeps for who asks. It needs no lease: it does not change.
  static bool IsOfKept(wire::Op op) {
    return op == wire::Op::kGetKept || op == wire::Op::kMultiHasKept || op == wire::Op::kScanKept;
  }
  // The part of Open that is about the server: it is not stopping, and has the view of the request.
  fabric::Outcome Reached(const wire::FrameHeader& request, Refusal* refusal) const;
  ObjectStore& dram() const { return store_->dram(); }
  // Of one key, after Open. A write reads the clock: the lease may end between two keys.
  wire::WireStatus Read(SlotId slot, Refusal* refusal) const {
    const Verdict verdict = ownership_->CheckRead(slot, ViewVersion());
    if (verdict == Verdict::kYes) [[likely]]
      return wire::WireStatus::kOk;
    return Refuse(verdict, slot, refusal);
  }
  // The same for a request that a copy may do for.
  wire::WireStatus Read(const wire::FrameHeader& request, const TieredNamespace& objects,
                        SlotId slot, Refusal* refusal) const {
    const Verdict verdict = ownership_->CheckRead(slot, ViewVersion());
    if (verdict == Verdict::kYes) [[likely]]
      return wire::WireStatus::kOk;
    if (IsOfCopy(request) && objects.HoldsCopies(slot)) return wire::WireStatus::kOk;
    return Refuse(verdict, slot, refusal);
  }
  static bool IsOfCopy(const wire::FrameHeader& request) {
    return (request.flags & wire::kFlagCopy) != 0;
  }
  bool Owns(SlotId slot) const {
    return ownership_->CheckRead(slot, ViewVersion()) == Verdict::kYes;
  }
  // Of a copy that another server stores or removes here: there is no other value, so it needs no
  // lease. The slot may have become this server's meanwhile.
  wire::WireStatus WriteCopy(const TieredNamespace& objects, SlotId slot, Refusal* refusal) const {
    if (draining_.load(std::memory_order_acquire)) [[unlikely]]
      return SayDraining(refusal);
    if (objects.HoldsCopies(slot) || (objects.replicas() > 1 && Owns(slot)))
      return wire::WireStatus::kOk;
    return Refuse(Verdict::kWrongOwner, slot, refusal);
  }
  // Of a copy of a hot object (kFlagHot), which comes into whatever slot but this server's own.
  wire::WireStatus WriteHot(const TieredNamespace& objects, SlotId slot, Refusal* refusal) const {
    if (draining_.load(std::memory_order_acquire)) [[unlikely]]
      return SayDraining(refusal);
    if (objects.immutable() && !Owns(slot)) return wire::WireStatus::kOk;
    return Refuse(Verdict::kWrongOwner, slot, refusal);
  }
  wire::WireStatus Write(const wire::FrameHeader& request, const TieredNamespace& objects,
                         SlotId slot, Refusal* refusal) const {
    return IsOfCopy(request) ? WriteCopy(objects, slot, refusal) : Write(slot, refusal);
  }
  wire::WireStatus Write(SlotId slot, Refusal* refusal) const {
    if (draining_.load(std::memory_order_acquire)) [[unlikely]]
      return SayDraining(refusal);
    return Refuse(ownership_->CheckWrite(slot, ViewVersion()), slot, refusal);
  }
  // The slot has not been lost since it had been lost so often: what was changed in it meanwhile
  // was changed here.
  uint32_t losses(SlotId slot) const { return ownership_->losses(slot); }
  wire::WireStatus WriteSince(SlotId slot, uint32_t losses, Refusal* refusal) const {
    if (losses != ownership_->losses(slot)) return Refuse(Verdict::kWrongOwner, slot, refusal);
    return Write(slot, refusal);
  }
  // What Write allowed is allowed for so long.
  Duration LeaseLeft() const { return ownership_->LeaseLeft(); }

 private:
  bool HasView(const wire::FrameHeader& request) const;
  fabric::Outcome SayBehind(const wire::FrameHeader& request, Refusal* refusal) const;
  static wire::WireStatus SayDraining(Refusal* refusal);
  // kOk for kYes.
  wire::WireStatus Refuse(Verdict verdict, SlotId slot, Refusal* refusal) const;

  TieredStore* const store_;
  const Ownership* const ownership_;
  std::function<void()> on_newer_view_;
  std::atomic<bool> draining_{false};
};

}  // namespace ems::server
