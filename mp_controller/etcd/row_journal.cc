// Format: records of a kind and one or two texts, each with its length in front (4 bytes, little
// endian).
#include "mp_controller/etcd/row_journal.h"

#include <cstdint>
#include <cstring>

namespace ems::controller {
namespace {

constexpr char kPut = 'P', kDrop = 'D', kRange = 'R';

void Append(std::string_view text, std::string* journal) {
  const auto size = static_cast<uint32_t>(text.size());
  journal->append(reinterpret_cast<const char*>(&size), sizeof(size));
  journal->append(text);
}

Result<std::string> Take(std::string_view* text) {
  uint32_t size = 0;
  if (text->size() >= sizeof(size)) {
    std::memcpy(&size, text->data(), sizeof(size));
    text->remove_prefix(sizeof(size));
    if (size <= text->size()) {
      std::string taken(text->substr(0, size));
      text->remove_prefix(size);
      return taken;
    }
  }
  return Error(StatusCode::kDataLoss, "the journal in etcd ends in the middle");
}

}  // namespace

std::string ToJournal(const EtcdTransaction& change) {
  std::string journal;
  for (const auto& [key, value] : change.put) {
    journal += kPut;
    Append(key, &journal);
    Append(value, &journal);
  }
  for (const std::string& key : change.drop) {
    journal += kDrop;
    Append(key, &journal);
  }
  for (const auto& [first, end] : change.drop_range) {
    journal += kRange;
    Append(first, &journal);
    Append(end, &journal);
  }
  return journal;
}

Result<EtcdTransaction> FromJournal(std::string_view text) {
  EtcdTransaction change;
  while (!text.empty()) {
    const char kind = text.front();
    text.remove_prefix(1);
    EMS_ASSIGN_OR_RETURN(std::string key, Take(&text));
    if (kind == kDrop) {
      change.drop.push_back(std::move(key));
      continue;
    }
    EMS_ASSIGN_OR_RETURN(std::string other, Take(&text));
    if (kind == kPut) {
      change.put.emplace_back(std::move(key), std::move(other));
    } else if (kind == kRange) {
      change.drop_range.emplace_back(std::move(key), std::move(other));
    } else {
      return Error(StatusCode::kDataLoss, "the journal in etcd holds a record of no kind");
    }
  }
  return change;
}

}  // namespace ems::controller
