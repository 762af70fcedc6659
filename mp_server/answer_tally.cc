#include "mp_server/answer_tally.h"

namespace ems::server {

using wire::ItemResult;
using wire::Op;
using wire::WireStatus;

void AnswerTally::OnAnswer(Op op, std::span<const ItemResult> results,
                           const TieredNamespace& asked) {
  metrics_->OnAnswers(op, results);
  if (op == Op::kRemove || op == Op::kMultiRemove || !asked) return;
  const bool only_looks = op == Op::kExists || op == Op::kMultiExists;
  LookupCounts counts;
  for (const ItemResult& result : results) {
    if (result.status == WireStatus::kMiss) ++(only_looks ? counts.absent : counts.misses);
    if (result.status != WireStatus::kOk) continue;
    ++(only_looks ? counts.found : counts.hits);
    if (only_looks) continue;
    counts.bytes += result.value_bytes;
    metrics_->OnRead(result.value_bytes, result.tier == wire::ItemTier::kSsd);
  }
  if (lookups_ == nullptr || lookups_->name() != asked.name())
    lookups_ = &metrics_->lookups().For(asked.name());
  lookups_->Add(LookupPath::kSocket, counts);
}

}  // namespace ems::server
