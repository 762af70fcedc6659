#pragma once
// The GetKept, MultiHasKept and ScanKept requests of one connection: what this server has kept of
// slots that it has lost, for the server that owns them now (store/moved_slots.h).
//
// It is answered without a lease: what is kept does not change. Bound: one value, pinned within
// what the namespace's answers may pin; a page of keys.
#include <optional>
#include <vector>

#include "mp_server/request_check.h"

namespace ems::server {

// Threading: one thread (the connection's "ems-io").
class KeptAnswer final {
 public:
  // Both must outlive it. `refusal` says why a request was refused.
  KeptAnswer(const RequestCheck* check, Refusal* refusal) : check_(check), refusal_(refusal) {}

  // As Session's.
  fabric::Outcome Handle(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                         fabric::Answer* answer);
  void Sent();

 private:
  fabric::Outcome HandleOne(const wire::FrameHeader& request, std::string_view key, ConstBytes body,
                            fabric::Answer* answer);
  fabric::Outcome HandleMany(const wire::FrameHeader& request, ConstBytes body,
                             fabric::Answer* answer);
  const RequestCheck* const check_;
  Refusal* const refusal_;
  TieredNamespace objects_;
  Hold hold_;
  ObjectPin pin_;  // what is being sent
  // Of a MultiHasKept, which takes as many turns as it needs.
  std::optional<wire::ItemReader> items_;
  std::vector<wire::ItemResult> results_;
};

}  // namespace ems::server
