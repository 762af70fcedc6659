#include "mp_controller/models/model_rows.h"

#include <algorithm>
#include <cstring>

#include "common/parse_number.h"

namespace ems::controller {
namespace {

using model::BlockDigest;

constexpr size_t kIdDigits = 8;
constexpr size_t kDigestBytes = sizeof(uint32_t) + sizeof(BlockDigest);

}  // namespace

std::string ModelKey(std::string_view prefix, uint32_t id) {
  return fmt::format("{}{:08x}", prefix, id);
}

std::string DigestKey(uint32_t id, size_t first) {
  return fmt::format("{}{:08x}/{:08x}", kDigestPrefix, id, first);
}

Result<uint32_t> ParseModelId(std::string_view text) {
  if (const auto value = ParseNumber<uint32_t>(text, 16)) return *value;
  return Error(StatusCode::kDataLoss, "\"{}\" is no number", Printable(text));
}

Result<DigestRowName> ParseDigestRowName(std::string_view text) {
  DigestRowName name;
  EMS_ASSIGN_OR_RETURN(name.id, ParseModelId(text.substr(0, kIdDigits)));
  // One that is too short has no number here, which ParseModelId says.
  EMS_ASSIGN_OR_RETURN(name.first, ParseModelId(text.substr(std::min(kIdDigits + 1, text.size()))));
  return name;
}

void AppendDigest(uint32_t block, const BlockDigest& digest, std::string* row) {
  row->append(reinterpret_cast<const char*>(&block), sizeof(block));
  row->append(AsText(digest));
}

Status ForEachDigest(std::string_view row,
                     const std::function<Status(uint32_t, const BlockDigest&)>& take) {
  for (; row.size() >= kDigestBytes; row.remove_prefix(kDigestBytes)) {
    uint32_t block = 0;
    BlockDigest digest;
    std::memcpy(&block, row.data(), sizeof(block));
    std::memcpy(digest.data(), row.data() + sizeof(block), digest.size());
    EMS_RETURN_IF_ERROR(take(block, digest));
  }
  return OkStatus();
}

}  // namespace ems::controller
