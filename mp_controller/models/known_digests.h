#pragma once
// The digests of one version's blocks that are known for good, in the order in which they became
// known, and the rows that keep them.
//
// Invariant: a digest does not change, and is stored before it is known. Bound: 36 bytes a block, a
// row for each kRowMax or fewer.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model_files/format/manifest.h"
#include "mp_controller/rows/row_store.h"

namespace ems::v1 {
class GetDigestsReply;
}  // namespace ems::v1

namespace ems::controller {

// Threading: one thread.
class KnownDigests final {
 public:
  static constexpr uint32_t kRowMax = 16'384;  // also of a report and of a reply
  using Digests = std::vector<std::pair<uint32_t, model::BlockDigest>>;  // block, digest

  // `manifest` must outlive it.
  KnownDigests(uint32_t id, const model::Manifest& manifest)
      : id_(id), manifest_(manifest), digests_(manifest.blocks.size()) {}

  // A row that is stored. Errors: kDataLoss  kInvalidArgument  kFailedPrecondition
  Status Load(uint32_t first, std::string_view row);
  // Stores and knows those that are new. Errors: of the first that is refused, which says nothing
  // of the others: kInvalidArgument  no such block    kFailedPrecondition  the digest that is known
  // is another one: the source has changed; of all: kUnavailable  the disk refuses
  Status Take(const Digests& digests, RowStore* rows);

  size_t count() const { return known_.size(); }
  const std::vector<uint32_t>& blocks() const { return known_; }
  // From the `since`-th on, kRowMax at most. True if there is any.
  bool Fill(uint32_t since, v1::GetDigestsReply* reply) const;
  // Appends the keys of all rows.
  void AppendKeys(std::vector<std::string>* keys) const;

 private:
  // True when it is new.
  Result<bool> Learn(uint32_t block, const model::BlockDigest& digest);

  const uint32_t id_;
  const model::Manifest& manifest_;
  std::vector<uint32_t> known_;
  std::vector<std::optional<model::BlockDigest>> digests_;  // by block
  std::vector<size_t> rows_;  // how many were known when each of them was written
};

}  // namespace ems::controller
