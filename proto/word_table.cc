#include "proto/word_table.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace ems::wire {

void AppendTo(const WordTable& table, std::vector<std::byte>* body) {
  const size_t count = std::min<size_t>(table.words.size(), kWordsMax);
  const WordTableHead head{.view = table.view.packed(),
                           .fingerprint = table.fingerprint,
                           .count = static_cast<uint32_t>(count)};
  const ConstBytes raw = RawBytes(head);
  const ConstBytes words = std::as_bytes(std::span(table.words).first(count));
  body->reserve(body->size() + raw.size() + words.size());
  body->insert(body->end(), raw.begin(), raw.end());
  body->insert(body->end(), words.begin(), words.end());
}

Result<WordTable> ParseWordTable(ConstBytes body) {
  if (body.empty()) return WordTable();
  if (body.size() < sizeof(WordTableHead))
    return Error(StatusCode::kDataLoss, "table of words of {} bytes", body.size());
  const auto head = ReadRaw<WordTableHead>(body.first(sizeof(WordTableHead)));
  const ConstBytes words = body.subspan(sizeof(WordTableHead));
  if (head.count > kWordsMax || words.size() != uint64_t{head.count} * sizeof(PeerWord)) {
    return Error(StatusCode::kDataLoss, "{} words in {} bytes: {} at most", head.count,
                 words.size(), kWordsMax);
  }
  WordTable table{.view = ViewVersion::FromPacked(head.view),
                  .fingerprint = head.fingerprint,
                  .words = std::vector<PeerWord>(head.count)};
  if (!words.empty()) std::memcpy(table.words.data(), words.data(), words.size());
  return table;
}

}  // namespace ems::wire
