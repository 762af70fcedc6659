#include "model_files/format/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace ems::model {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kFirstGuess = 64 * kKiB;
constexpr uint64_t kKeyBytesMax = 65535;       // the specification's
constexpr uint64_t kTensorEntryBytesMin = 25;  // name of one byte, no dimension
constexpr uint64_t kPairBytesMin = 14;         // key of one byte, value of one
constexpr uint64_t kListedElementsMax = 16;
constexpr std::string_view kAlignmentKey = "general.alignment";

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
struct ValueTraits {
  std::string_view name;
  uint64_t bytes_min;  // a number's size; a string's length; an array's type and length
};
constexpr std::array<ValueTraits, 13> kValueTraits = {{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"float32", 4},
    {"bool", 1},
    {"string", 8},
    {"array", 12},
    {"uint64", 8},
    {"int64", 8},
    {"float64", 8},
}};

struct GgmlType {
  std::string_view removed;  // the name of a type that files no longer may have
  std::optional<DType> dtype;
};
// By ggml's number.
constexpr std::array<GgmlType, 43> kGgmlTypes = {{
    {{}, DType::kF32},    {{}, DType::kF16},   {{}, DType::kQ4_0},   {{}, DType::kQ4_1},   // 0
    {"Q4_2", {}},         {"Q4_3", {}},        {{}, DType::kQ5_0},   {{}, DType::kQ5_1},   // 4
    {{}, DType::kQ8_0},   {{}, DType::kQ8_1},  {{}, DType::kQ2K},    {{}, DType::kQ3K},    // 8
    {{}, DType::kQ4K},    {{}, DType::kQ5K},   {{}, DType::kQ6K},    {{}, DType::kQ8K},    // 12
    {{}, DType::kIQ2XXS}, {{}, DType::kIQ2XS}, {{}, DType::kIQ3XXS}, {{}, DType::kIQ1S},   // 16
    {{}, DType::kIQ4NL},  {{}, DType::kIQ3S},  {{}, DType::kIQ2S},   {{}, DType::kIQ4XS},  // 20
    {{}, DType::kI8},     {{}, DType::kI16},   {{}, DType::kI32},    {{}, DType::kI64},    // 24
    {{}, DType::kF64},    {{}, DType::kIQ1M},  {{}, DType::kBF16},   {"Q4_0_4_4", {}},     // 28
    {"Q4_0_4_8", {}},     {"Q4_0_8_8", {}},    {{}, DType::kTQ1_0},  {{}, DType::kTQ2_0},  // 32
    {"IQ4_NL_4_4", {}},   {"IQ4_NL_4_8", {}},  {"IQ4_NL_8_8", {}},   {{}, DType::kMXFP4},  // 36
    {{}, DType::kNVFP4},  {{}, DType::kQ1_0},  {{}, DType::kQ2_0},                         // 40
}};

template <typename... Args>
Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument,
               std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

// Reads on through the first bytes of the file. What it has too few bytes for is kOutOfRange, and
// then wanted() says how many first bytes would do; no other error has that code.
class Cursor {
 public:
  Cursor(ConstBytes bytes, uint64_t file_bytes) : bytes_(bytes), file_bytes_(file_bytes) {}
  uint64_t position() const { return position_; }
  uint64_t wanted() const { return wanted_; }

  // Checks that a header with `bytes` more bytes is possible.
  Status Expect(uint64_t bytes, std::string_view what) const {
    if (bytes > kGgufHeaderBytesMax || position_ + bytes > kGgufHeaderBytesMax) {
      return Bad("the header is longer than {} bytes: {} at byte {}", kGgufHeaderBytesMax, what,
                 position_);
    }
    if (position_ + bytes > file_bytes_) {
      return Bad("the file ends at byte {}, within {} at byte {}", file_bytes_, what, position_);
    }
    return OkStatus();
  }

  Result<ConstBytes> Take(uint64_t bytes, std::string_view what) {
    EMS_RETURN_IF_ERROR(Expect(bytes, what));
    if (position_ + bytes > bytes_.size()) {
      wanted_ = position_ + bytes;
      return Error(StatusCode::kOutOfRange, std::string_view());
    }
    position_ += bytes;
    return bytes_.subspan(position_ - bytes, bytes);
  }

  template <typename T>
  Result<T> Number(std::string_view what) {
    static_assert(std::endian::native == std::endian::little, "fields are copied as they lie");
    EMS_ASSIGN_OR_RETURN(const ConstBytes raw, Take(sizeof(T), what));
    T value;
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  // A length and that many bytes; the view lasts as long as the first bytes do.
  Result<std::string_view> Text(std::string_view what) {
    EMS_ASSIGN_OR_RETURN(const uint64_t bytes, Number<uint64_t>(what));
    EMS_ASSIGN_OR_RETURN(const ConstBytes raw, Take(bytes, what));
    return AsText(raw);
  }

 private:
  const ConstBytes bytes_;
  const uint64_t file_bytes_;
  uint64_t position_ = 0;
  uint64_t wanted_ = 0;
};

class Parser {
 public:
  Parser(ConstBytes bytes, uint64_t file_bytes, TensorTable* table)
      : cursor_(bytes, file_bytes), file_bytes_(file_bytes), table_(table) {}
  uint64_t wanted() const { return cursor_.wanted(); }

  Status Run() {
    EMS_RETURN_IF_ERROR(Preamble());
    for (uint64_t i = 0; i < pairs_; ++i) EMS_RETURN_IF_ERROR(Pair(i));
    for (uint64_t i = 0; i < tensors_; ++i) EMS_RETURN_IF_ERROR(Tensor(i));
    // A file without tensors may end where its header does, unpadded.
    table_->data_begin = std::min(RoundUp(cursor_.position(), alignment_), file_bytes_);
    for (TensorInfo& tensor : table_->tensors) {
      if (__builtin_add_overflow(tensor.offset, table_->data_begin, &tensor.offset)) {
        return Bad("tensor '{}' begins beyond 2^64 - 1", Printable(tensor.name));
      }
    }
    return SortAndCheck(file_bytes_, table_);
  }

 private:
  Status Preamble() {
    EMS_ASSIGN_OR_RETURN(const ConstBytes magic, cursor_.Take(kMagic.size(), "the magic number"));
    if (AsText(magic) != kMagic)
      return Bad("no GGUF file: it begins with '{}'", Printable(AsText(magic)));
    EMS_ASSIGN_OR_RETURN(const auto version, cursor_.Number<uint32_t>("the version"));
    if (version != 0 && version % 65536 == 0) {
      return Error(StatusCode::kUnimplemented,
                   "big-endian GGUF (version bytes {:#010x}); little-endian only", version);
    }
    if (version == 1)
      return Error(StatusCode::kUnimplemented, "GGUF version 1; versions 2 and 3 are understood");
    if (version != 2 && version != 3)
      return Bad("GGUF version {}; versions 2 and 3 are understood", version);
    EMS_ASSIGN_OR_RETURN(tensors_, cursor_.Number<uint64_t>("the number of tensors"));
    EMS_ASSIGN_OR_RETURN(pairs_, cursor_.Number<uint64_t>("the number of metadata pairs"));
    if (tensors_ > kTensorsMax) return Bad("{} tensors; at most {}", tensors_, kTensorsMax);
    if (pairs_ > kGgufMetadataMax)
      return Bad("{} metadata pairs; at most {}", pairs_, kGgufMetadataMax);
    return cursor_.Expect(tensors_ * kTensorEntryBytesMin + pairs_ * kPairBytesMin,
                          fmt::format("{} metadata pairs and {} tensors", pairs_, tensors_));
  }

  Status Pair(uint64_t number) {
    EMS_ASSIGN_OR_RETURN(const std::string_view key,
                         cursor_.Text(fmt::format("metadata key {}", number)));
    if (key.empty() || key.size() > kKeyBytesMax || !IsUtf8(key)) {
      return Bad("metadata key {} '{}' of {} bytes is no text of 1 to {} bytes", number,
                 Printable(key), key.size(), kKeyBytesMax);
    }
    key_ = fmt::format("metadata '{}'", Printable(key));
    if (table_->metadata.contains(std::string(key))) return Bad("{} is listed twice", key_);
    EMS_ASSIGN_OR_RETURN(const uint32_t type, Type());
    if (key == kAlignmentKey) return Alignment(type);
    EMS_ASSIGN_OR_RETURN(std::string value, type == kArray ? Array(1) : Scalar(type));
    table_->metadata.emplace(key, std::move(value));
    return OkStatus();
  }

  Status Alignment(uint32_t type) {
    if (type != kUint32)
      return Bad("{} is of type {}; it has to be uint32", key_, kValueTraits[type].name);
    EMS_ASSIGN_OR_RETURN(alignment_, cursor_.Number<uint32_t>(key_));
    // The specification wants a multiple of 8, ggml a power of two.
    if (alignment_ < 8 || !std::has_single_bit(alignment_)) {
      return Bad("{} is {}; it has to be a power of two, at least 8", key_, alignment_);
    }
    table_->metadata.emplace(kAlignmentKey, std::to_string(alignment_));
    return OkStatus();
  }

  Result<uint32_t> Type() {
    EMS_ASSIGN_OR_RETURN(const auto type, cursor_.Number<uint32_t>(key_));
    if (type >= kValueTraits.size()) return Bad("{} has unknown value type {}", key_, type);
    return type;
  }

  template <typename T>
  Result<std::string> NumberText() {
    EMS_ASSIGN_OR_RETURN(const T value, cursor_.Number<T>(key_));
    if constexpr (std::is_floating_point_v<T>) {
      return fmt::format("{}", value);
    } else {
      return std::to_string(value);
    }
  }

  Result<std::string> Scalar(uint32_t type) {
    switch (type) {
      case kUint8:
        return NumberText<uint8_t>();
      case kInt8:
        return NumberText<int8_t>();
      case kUint16:
        return NumberText<uint16_t>();
      case kInt16:
        return NumberText<int16_t>();
      case kUint32:
        return NumberText<uint32_t>();
      case kInt32:
        return NumberText<int32_t>();
      case kFloat32:
        return NumberText<float>();
      case kBool:
        return BoolText();
      case kUint64:
        return NumberText<uint64_t>();
      case kInt64:
        return NumberText<int64_t>();
      case kFloat64:
        return NumberText<double>();
      default:
        break;
    }
    EMS_ASSIGN_OR_RETURN(const std::string_view text, cursor_.Text(key_));
    if (!IsUtf8(text)) return Bad("{} is no UTF-8: '{}'", key_, Printable(text));
    return std::string(text);
  }

  Result<std::string> BoolText() {
    EMS_ASSIGN_OR_RETURN(const auto value, cursor_.Number<uint8_t>(key_));
    if (value > 1) return Bad("{} is a bool of {}; 0 or 1", key_, value);
    return std::string(value == 1 ? "true" : "false");
  }

  // An array's type, length and elements; `depth` arrays are open, this one included.
  Result<std::string> Array(uint32_t depth) {
    if (depth > kGgufArrayDepthMax)
      return Bad("{} is nested deeper than {} arrays", key_, kGgufArrayDepthMax);
    EMS_ASSIGN_OR_RETURN(const uint32_t type, Type());
    EMS_ASSIGN_OR_RETURN(const auto count, cursor_.Number<uint64_t>(key_));
    const uint64_t element_bytes = kValueTraits[type].bytes_min;
    if (count > kGgufHeaderBytesMax / element_bytes) {
      return Bad("{} is an array of {} elements; more than a header holds", key_, count);
    }
    EMS_RETURN_IF_ERROR(cursor_.Expect(count * element_bytes, key_));
    if (count > kListedElementsMax) {
      EMS_RETURN_IF_ERROR(Skip(type, count, depth));
      return fmt::format("[{} x {}]", count, kValueTraits[type].name);
    }
    std::string text = "[";
    for (uint64_t i = 0; i < count; ++i) {
      EMS_ASSIGN_OR_RETURN(const std::string element,
                           type == kArray ? Array(depth + 1) : Scalar(type));
      text.append(i == 0 ? "" : ", ").append(element);
    }
    return text + "]";
  }

  Status Skip(uint32_t type, uint64_t count, uint32_t depth) {
    if (type != kString && type != kArray) {
      return cursor_.Take(count * kValueTraits[type].bytes_min, key_).status();
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == kString) {
        EMS_RETURN_IF_ERROR(cursor_.Text(key_).status());
      } else {
        EMS_RETURN_IF_ERROR(Array(depth + 1).status());
      }
    }
    return OkStatus();
  }

  Status Tensor(uint64_t number) {
    EMS_ASSIGN_OR_RETURN(const std::string_view name,
                         cursor_.Text(fmt::format("the name of tensor {}", number)));
    if (name.empty() || name.size() > kTensorNameBytesMax || !IsUtf8(name)) {
      return Bad("the name of tensor {} '{}' of {} bytes is no text of 1 to {} bytes", number,
                 Printable(name), name.size(), kTensorNameBytesMax);
    }
    const std::string what = fmt::format("tensor '{}'", Printable(name));
    TensorInfo tensor;
    tensor.name = name;
    EMS_ASSIGN_OR_RETURN(const auto dims, cursor_.Number<uint32_t>(what));
    if (dims > kTensorDimsMax)
      return Bad("{} has {} dimensions; at most {}", what, dims, kTensorDimsMax);
    for (uint32_t i = 0; i < dims; ++i) {
      EMS_ASSIGN_OR_RETURN(const auto extent, cursor_.Number<uint64_t>(what));
      tensor.shape.push_back(extent);
    }
    std::ranges::reverse(tensor.shape);
    EMS_ASSIGN_OR_RETURN(const auto type, cursor_.Number<uint32_t>(what));
    EMS_ASSIGN_OR_RETURN(tensor.offset, cursor_.Number<uint64_t>(what));
    return Add(what, type, std::move(tensor));
  }

  Status Add(const std::string& what, uint32_t type, TensorInfo tensor) {
    if (type >= kGgmlTypes.size()) {
      return Error(StatusCode::kUnimplemented, "{} has unknown ggml type {}", what, type);
    }
    if (!kGgmlTypes[type].dtype) {
      return Error(StatusCode::kUnimplemented, "{} has ggml type {} ({}), which ggml removed", what,
                   type, kGgmlTypes[type].removed);
    }
    tensor.dtype = *kGgmlTypes[type].dtype;
    const DTypeTraits& traits = TraitsOf(tensor.dtype);
    const uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % traits.block_elements != 0) {
      return Bad("{} has rows of {} elements, no multiple of {}'s block of {}", what, row,
                 traits.name, traits.block_elements);
    }
    auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return Prefixed(bytes.status(), what);
    tensor.bytes = *bytes;
    if (tensor.offset % alignment_ != 0) {
      return Bad("{} begins at {}, no multiple of the alignment {}", what, tensor.offset,
                 alignment_);
    }
    table_->tensors.push_back(std::move(tensor));
    return OkStatus();
  }

  Cursor cursor_;
  const uint64_t file_bytes_;
  TensorTable* const table_;
  uint64_t tensors_ = 0;
  uint64_t pairs_ = 0;
  uint64_t alignment_ = kGgufDefaultAlignment;
  std::string key_;  // of the pair that is being read, for messages
};

}  // namespace

Result<HeaderParse> ParseGguf(ConstBytes first_bytes, uint64_t file_bytes, std::string_view file) {
  HeaderParse parse;
  // Nothing behind the file's end is read, whatever the caller gives.
  first_bytes = first_bytes.first(std::min<uint64_t>(first_bytes.size(), file_bytes));
  Parser parser(first_bytes, file_bytes, &parse.table);
  const Status status = parser.Run();
  if (status.ok()) return parse;
  if (status.code() != StatusCode::kOutOfRange) return Prefixed(status, file);
  const uint64_t guess = std::max(kFirstGuess, 2 * uint64_t{first_bytes.size()});
  parse.table = {};
  parse.bytes_needed = std::min(file_bytes, std::max(parser.wanted(), guess));
  return parse;
}

}  // namespace ems::model
