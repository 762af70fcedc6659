#include "ems_context/key_domain.h"

#include <string_view>

namespace ems::context {
namespace {

constexpr size_t kFieldBytesMax = size_t{64} * 1024;
constexpr size_t kListEntriesMax = 4096;
constexpr std::string_view kMagic = "ems.kv.domain.v1";

// Tags are part of every stored key: a tag keeps its meaning for ever, a new field gets a new one.
enum class Tag : char {
  kModel = 1,
  kDtype = 2,
  kKvLayout = 3,
  kTpRank = 4,
  kTpSize = 5,
  kPpRank = 6,
  kPpSize = 7,
  kLora = 8,
  kCacheSalt = 9,
  kMultimodal = 10,
  kCustom = 11,
};

// Appends tagged fields; keeps the first error. Threading: one thread.
class Encoder final {
 public:
  void AddText(Tag tag, std::string_view name, std::string_view text) {
    AddTag(tag);
    AddSized(name, text);
  }
  void AddNumber(Tag tag, uint32_t number) {
    AddTag(tag);
    AddU32(number);
  }
  void BeginList(Tag tag, std::string_view name, size_t entries) {
    if (entries > kListEntriesMax)
      Fail(Error(StatusCode::kInvalidArgument, "key domain: {} has {} entries, {} are allowed",
                 name, entries, kListEntriesMax));
    AddNumber(tag, static_cast<uint32_t>(entries));
  }
  void AddSized(std::string_view name, std::string_view text) {
    if (text.size() > kFieldBytesMax)
      Fail(Error(StatusCode::kInvalidArgument, "key domain: {} has {} bytes, {} are allowed", name,
                 text.size(), kFieldBytesMax));
    AddU32(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  Result<std::string> Finish() && {
    EMS_RETURN_IF_ERROR(status_);
    return std::move(bytes_);
  }

 private:
  void AddTag(Tag tag) { bytes_.push_back(static_cast<char>(tag)); }
  void AddU32(uint32_t number) {
    for (int shift = 0; shift < 32; shift += 8)
      bytes_.push_back(static_cast<char>(number >> shift & 0xff));
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  std::string bytes_{kMagic};
  Status status_;
};

Status CheckRank(std::string_view name, uint32_t rank, uint32_t size) {
  if (rank < size) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "key domain: {}_rank {} is not below {}_size {}", name,
               rank, name, size);
}

}  // namespace

Result<std::string> EncodeDomain(const KeyDomain& domain) {
  EMS_RETURN_IF_ERROR(CheckRank("tp", domain.tp_rank, domain.tp_size));
  EMS_RETURN_IF_ERROR(CheckRank("pp", domain.pp_rank, domain.pp_size));
  Encoder encoder;
  encoder.AddText(Tag::kModel, "model", domain.model);
  encoder.AddText(Tag::kDtype, "dtype", domain.dtype);
  encoder.AddText(Tag::kKvLayout, "kv_layout", domain.kv_layout);
  encoder.AddNumber(Tag::kTpRank, domain.tp_rank);
  encoder.AddNumber(Tag::kTpSize, domain.tp_size);
  encoder.AddNumber(Tag::kPpRank, domain.pp_rank);
  encoder.AddNumber(Tag::kPpSize, domain.pp_size);
  encoder.AddText(Tag::kLora, "lora", domain.lora);
  encoder.AddText(Tag::kCacheSalt, "cache_salt", domain.cache_salt);
  encoder.BeginList(Tag::kMultimodal, "multimodal_hashes", domain.multimodal_hashes.size());
  for (const std::string& hash : domain.multimodal_hashes)
    encoder.AddSized("multimodal_hashes", hash);
  encoder.BeginList(Tag::kCustom, "custom", domain.custom.size());
  for (const auto& [name, value] : domain.custom) {
    encoder.AddSized("custom name", name);
    encoder.AddSized("custom value", value);
  }
  return std::move(encoder).Finish();
}

}  // namespace ems::context
