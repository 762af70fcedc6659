#include "mp_controller/models/known_digests.h"

#include <algorithm>

#include "common/check.h"
#include "mp_controller/models/model_rows.h"
#include "proto/model.pb.h"

namespace ems::controller {

using model::BlockDigest;

Result<bool> KnownDigests::Learn(uint32_t block, const BlockDigest& digest) {
  if (block >= digests_.size())
    return Error(StatusCode::kInvalidArgument, "block {} of {}", block, digests_.size());
  if (!digests_[block]) {
    digests_[block] = digest;
    known_.push_back(block);
    return true;
  }
  if (*digests_[block] == digest) return false;
  const model::ManifestBlock& at = manifest_.blocks[block];
  return Error(StatusCode::kFailedPrecondition,
               "the source has changed: bytes {}+{} of {} are not those read before; add it as "
               "another version",
               at.offset, at.bytes, manifest_.files[at.file].path);
}

Status KnownDigests::Load(uint32_t first, std::string_view row) {
  rows_.push_back(first);
  return ForEachDigest(row, [this](uint32_t block, const BlockDigest& digest) {
    return Learn(block, digest).status();
  });
}

Status KnownDigests::Take(const Digests& digests, RowStore* rows) {
  const size_t before = known_.size();
  Status refused;
  for (const auto& [block, digest] : digests) {
    const Status learned = Learn(block, digest).status();
    if (refused.ok()) refused = learned;
  }
  if (known_.size() == before) return refused;
  RowChange change;
  const size_t rows_before = rows_.size();
  for (size_t first = before; first < known_.size(); first += kRowMax) {
    std::string row;
    for (size_t i = first; i < std::min<size_t>(first + kRowMax, known_.size()); ++i)
      AppendDigest(known_[i], *digests_[known_[i]], &row);
    change.put.emplace_back(DigestKey(id_, first), std::move(row));
    rows_.push_back(first);
  }
  EMS_CHECK(rows_.size() > rows_before, "{} digests and no row", known_.size() - before);
  const Status written = rows->Write(change);
  if (written.ok()) return refused;
  rows_.resize(rows_before);
  for (; known_.size() > before; known_.pop_back()) digests_[known_.back()].reset();
  return written;
}

bool KnownDigests::Fill(uint32_t since, v1::GetDigestsReply* reply) const {
  const size_t first = std::min<size_t>(since, known_.size());
  const size_t end = std::min<size_t>(known_.size(), first + kRowMax);
  for (size_t i = first; i < end; ++i) {
    reply->add_blocks(known_[i]);
    reply->mutable_digests()->append(AsText(*digests_[known_[i]]));
  }
  reply->set_known(static_cast<uint32_t>(known_.size()));
  return end > first;
}

void KnownDigests::AppendKeys(std::vector<std::string>* keys) const {
  for (const size_t first : rows_) keys->push_back(DigestKey(id_, first));
}

}  // namespace ems::controller
