#include "mp_server/answer_tally.h"

#include <algorithm>
#include <utility>

namespace ems::server {

using wire::ItemResult;
using wire::ItemTier;
using wire::Op;
using wire::WireStatus;

void AnswerTally::OnAnswer(Op op, std::span<const ItemResult> results,
                           const TieredNamespace& asked) {
  metrics_->OnAnswers(op, results);
  for (const ItemResult& result : results)
    if (result.status == WireStatus::kOk) tier_ = std::max(tier_, result.tier);
  if (op == Op::kRemove || op == Op::kMultiRemove || !asked) return;
  const bool only_looks = op == Op::kExists || op == Op::kMultiExists;
  LookupCounts counts;
  for (const ItemResult& result : results) {
    if (result.status == WireStatus::kMiss) ++(only_looks ? counts.absent : counts.misses);
    if (result.status != WireStatus::kOk) continue;
    ++(only_looks ? counts.found : counts.hits);
    if (only_looks) continue;
    counts.bytes += result.value_bytes;
    metrics_->OnRead(result.value_bytes, result.tier == ItemTier::kSsd);
  }
  if (lookups_ == nullptr || lookups_->name() != asked.name())
    lookups_ = &metrics_->lookups().For(asked.name());
  lookups_->Add(LookupPath::kSocket, counts);
}

void AnswerTally::OnServed(const wire::FrameHeader& request, const fabric::Served& served) {
  ItemTier tier = std::exchange(tier_, ItemTier::kUnknown);
  const bool put = request.op == Op::kPut || request.op == Op::kMultiPut ||
                   request.op == Op::kPutStaged || request.op == Op::kMultiPutStaged;
  const bool durable = (request.flags & wire::kFlagDurableSsd) != 0;
  if (put) tier = durable ? ItemTier::kSsd : ItemTier::kDram;
  metrics_->OnServed(request.op, tier, served.local, served.took);
  if (slow_ != nullptr) slow_->OnServed(request, served);
}

}  // namespace ems::server
