#include "proto/key_page.h"

#include <algorithm>

namespace ems::wire {

void AppendTo(const KeyPage& page, std::vector<std::byte>* body) {
  const auto append = [body](ConstBytes bytes) {
    body->insert(body->end(), bytes.begin(), bytes.end());
  };
  uint64_t bytes = sizeof(ScanHead);
  for (const ListedKey& one : page.keys) bytes += sizeof(KeyHead) + one.key.size();
  body->reserve(body->size() + bytes);
  append(RawBytes(ScanHead{.next = page.next.value_or(kScanBegin),
                           .count = static_cast<uint32_t>(page.keys.size()),
                           .more = page.next ? 1U : 0U}));
  for (const ListedKey& one : page.keys) {
    append(RawBytes(KeyHead{.value_bytes = one.value_bytes,
                            .age_ms = one.age_ms,
                            .idle_ms = one.idle_ms,
                            .key_bytes = static_cast<uint16_t>(one.key.size()),
                            .tier = one.tier}));
  }
  for (const ListedKey& one : page.keys) append(AsBytes(one.key));
}

Result<KeyPage> ParseKeyPage(ConstBytes body) {
  if (body.size() < sizeof(ScanHead))
    return Error(StatusCode::kDataLoss, "list of keys of {} bytes", body.size());
  const auto head = ReadRaw<ScanHead>(body.first(sizeof(ScanHead)));
  const ConstBytes rest = body.subspan(sizeof(ScanHead));
  const uint64_t head_bytes = uint64_t{head.count} * sizeof(KeyHead);
  if (head_bytes > rest.size())
    return Error(StatusCode::kDataLoss, "{} keys in {} bytes", head.count, rest.size());
  KeyPage page;
  if (head.more != 0) page.next = head.next;
  page.keys.reserve(head.count);
  ConstBytes keys = rest.subspan(head_bytes);
  for (uint64_t at = 0; at < head_bytes; at += sizeof(KeyHead)) {
    const auto one = ReadRaw<KeyHead>(rest.subspan(at, sizeof(KeyHead)));
    if (one.key_bytes == 0 || one.key_bytes > std::min<uint64_t>(kKeyBytesMax, keys.size()))
      return Error(StatusCode::kDataLoss, "a listed key of {} bytes", one.key_bytes);
    if (one.tier > ItemTier::kSsd)
      return Error(StatusCode::kDataLoss, "a listed key in tier {}", static_cast<int>(one.tier));
    page.keys.push_back({.key = std::string(AsText(keys.first(one.key_bytes))),
                         .value_bytes = one.value_bytes,
                         .tier = one.tier,
                         .age_ms = one.age_ms,
                         .idle_ms = one.idle_ms});
    keys = keys.subspan(one.key_bytes);
  }
  if (!keys.empty()) return Error(StatusCode::kDataLoss, "{} bytes behind the keys", keys.size());
  return page;
}

}  // namespace ems::wire
