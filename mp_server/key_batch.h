#pragma once
// Looks the keys of one request up many at a time, which costs less than one after the other: see
// ObjectIndex::FindMany. Bound: TieredNamespace::kFindMax keys wait to be looked up.
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "mp_server/store/tiered_store.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: one thread.
class KeyBatch final {
 public:
  using Found = TieredNamespace::Found;

  // `touch`: they are used.
  KeyBatch(const TieredNamespace* objects, bool touch) : objects_(*objects), touch_(touch) {}
  // Key and result must stay until Finish, which every batch ends with.
  void Add(std::string_view key, wire::ItemResult* result);
  void Finish();

  // What a request that only asks is answered.
  static void Say(const std::optional<Found>& found, wire::ItemResult* result);

 private:
  const TieredNamespace& objects_;
  const bool touch_;
  size_t count_ = 0;
  std::array<std::string_view, TieredNamespace::kFindMax> keys_;
  std::array<wire::ItemResult*, TieredNamespace::kFindMax> results_;
  std::array<std::optional<Found>, TieredNamespace::kFindMax> found_;
};

}  // namespace ems::server
