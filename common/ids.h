#pragma once
// Strong types for the numbers that cross interfaces, so that a mix-up does not compile.
#include <compare>
#include <cstdint>
#include <functional>

namespace ems {

template <typename Tag, typename Rep>
class StrongId final {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_ = 0;
};

using NodeId = StrongId<struct NodeIdTag, uint32_t>;            // 0: no node
using NamespaceId = StrongId<struct NamespaceIdTag, uint32_t>;  // 0: no namespace
using SlotId = StrongId<struct SlotIdTag, uint16_t>;            // 0 .. kSlotCount - 1

inline constexpr uint32_t kSlotCount = 16384;
inline constexpr NodeId kNoNode{0};

// The version of a view: term changes with each controller start, epoch with each view. Ordered by
// (term, epoch) and packed into one word, term << 40 | epoch, so that it travels in each frame.
class ViewVersion final {
 public:
  static constexpr int kEpochBits = 40;
  static constexpr uint64_t kEpochMax = (uint64_t{1} << kEpochBits) - 1;
  static constexpr uint64_t kTermMax = (uint64_t{1} << (64 - kEpochBits)) - 1;

  constexpr ViewVersion() = default;
  constexpr ViewVersion(uint64_t term, uint64_t epoch)
      : packed_(term << kEpochBits | (epoch & kEpochMax)) {}
  static constexpr ViewVersion FromPacked(uint64_t packed) {
    ViewVersion v;
    v.packed_ = packed;
    return v;
  }
  constexpr uint64_t packed() const { return packed_; }
  constexpr uint64_t term() const { return packed_ >> kEpochBits; }
  constexpr uint64_t epoch() const { return packed_ & kEpochMax; }
  friend constexpr auto operator<=>(ViewVersion, ViewVersion) = default;

 private:
  uint64_t packed_ = 0;  // 0: no view yet
};

// A namespace as requests name it. The generation changes when a namespace is deleted or purged, so
// that a late request for the old one cannot touch the new one.
struct NamespaceRef {
  NamespaceId id;
  uint32_t generation = 0;
  friend constexpr auto operator<=>(NamespaceRef, NamespaceRef) = default;
};

}  // namespace ems

template <typename Tag, typename Rep>
struct std::hash<ems::StrongId<Tag, Rep>> {
  size_t operator()(ems::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
