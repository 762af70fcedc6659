#pragma once
// The Puts of one connection: each value is admitted, received into room that is reserved for it,
// checked and published; those of a request are settled together, when the SSD tier has what it was
// to have.
//
// Invariant: at most one value is being received at a time. A Put that is abandoned, also by the
// end of the session, leaves nothing behind. Bound: one reservation, which with those of all other
// connections is within what the namespace gives to values that are being received; a ticket for
// each Put of a request.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mp_server/hot/hot_guests.h"
#include "mp_server/request_check.h"
#include "mp_server/server_metrics.h"

namespace ems::server {

// Threading: one thread (the connection's "ems-io").
class PutSession final {
 public:
  // All must outlive it. `refusal` says why a Put was refused. `guests` null: copies of hot objects
  // are not taken.
  PutSession(TieredStore* store, const RequestCheck* check, const ServerMetrics* metrics,
             Refusal* refusal, HotGuests* guests = nullptr)
      : store_(store), check_(check), metrics_(metrics), refusal_(refusal), guests_(guests) {}

  // As Session's.
  void SetWaker(std::function<void()> waker) { waker_ = std::move(waker); }
  fabric::Outcome Begin(const fabric::PutRequest& put, fabric::PutTarget* target);
  wire::WireStatus End(uint64_t checksum, uint64_t expected);
  void Abort() { put_.reset(); }
  fabric::Outcome Await(std::span<wire::WireStatus> statuses);
  // The request has been answered.
  void Sent();

 private:
  struct Put {  // the one under way
    wire::Op op;
    SlotId slot;
    uint32_t index;  // in its request
    uint64_t bytes;
    bool overwrite;
    bool durable;
    bool copy;  // of what another server owns
    bool hot;   // a copy, wherever its slot is
    Hold filling{};
    Reservation room{};  // empty: the key is in DRAM, so the value is compared, and not stored
    std::optional<ObjectInfo> existing{};  // under the key: only the same content is welcome
  };
  wire::WireStatus CheckDurable(std::string_view key, const Put& put);
  wire::WireStatus CheckWrite(const Put& put);
  fabric::Outcome RefuseRoom(const Status& why);
  fabric::Outcome Reserve(std::string_view key, Put* put, fabric::PutTarget* target);
  wire::WireStatus Store(Put put, uint64_t checksum);

  TieredStore* const store_;
  const RequestCheck* const check_;
  const ServerMetrics* const metrics_;
  Refusal* const refusal_;
  HotGuests* const guests_;
  std::function<void()> waker_;
  TieredNamespace objects_;
  std::optional<Put> put_;
  std::string key_;  // of a Put that is compared
  // Of this request, with the index of the Put; null once it is settled.
  std::vector<std::pair<uint32_t, ssd::TicketPtr>> tickets_;
  bool awaited_ = false;
  bool held_back_ = false;  // the request has waited for others' values, and is counted
};

}  // namespace ems::server
