#include "model_files/format/safetensors.h"

#include <optional>
#include <utility>

#include "model_files/format/internal/json_walk.h"

namespace ems::model {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

template <typename... Args>
Status Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(StatusCode::kInvalidArgument,
               std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

// The header's object: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, …}.
// Other fields of a tensor are skipped, as the reference does.
class HeaderVisitor final : public JsonVisitor {
 public:
  // Offsets in the header count from `data_begin`.
  HeaderVisitor(uint64_t data_begin, TensorTable* table) : data_begin_(data_begin), table_(table) {}

  Status OnOpen(const JsonPlace& place, bool is_object) override {
    switch (place.keys.size()) {
      case 0:
        return is_object && place.arrays == 0 ? OkStatus() : Bad("the header is no JSON object");
      case 1:
        if (!is_object) return Bad("'{}' is no JSON object", Printable(place.keys[0]));
        if (place.keys[0] != kMetadataKey) return BeginTensor(place.keys[0]);
        return OkStatus();
      default:
        return OpenField(place, is_object);
    }
  }

  Status OnClose(const JsonPlace& place, bool is_object) override {
    const bool ends_tensor = place.keys.size() == 1 && is_object && place.keys[0] != kMetadataKey;
    return ends_tensor ? EndTensor() : OkStatus();
  }

  Status OnScalar(const JsonPlace& place, const JsonScalar& value) override {
    if (place.keys.size() < 2) {
      return Bad("'{}' is no JSON object",
                 place.keys.empty() ? "header" : Printable(place.keys[0]));
    }
    if (place.keys[0] == kMetadataKey) {
      const auto* text = std::get_if<std::string_view>(&value);
      if (text == nullptr) return Bad("metadata '{}' is no text", Printable(place.keys[1]));
      table_->metadata.emplace(place.keys[1], *text);
      return OkStatus();
    }
    if (place.keys.size() > 2) return OkStatus();
    const std::string& field = place.keys[1];
    if (field == "dtype") return SetDType(value);
    if (field == "shape") return Append(field, place, value, kTensorDimsMax, &shape_);
    if (field == "data_offsets") return Append(field, place, value, 2, &offsets_);
    return OkStatus();
  }

 private:
  Status BeginTensor(const std::string& name) {
    if (table_->tensors.size() == kTensorsMax) return Bad("more than {} tensors", kTensorsMax);
    if (name.size() > kTensorNameBytesMax) {
      return Bad("tensor '{}' has a name of {} bytes; at most {}", Printable(name), name.size(),
                 kTensorNameBytesMax);
    }
    name_ = name;
    dtype_.reset();
    shape_.clear();
    offsets_.clear();
    has_shape_ = false;
    return OkStatus();
  }

  Status OpenField(const JsonPlace& place, bool is_object) {
    const std::string& field = place.keys[1];
    if (place.keys[0] == kMetadataKey) return Bad("metadata '{}' is no text", Printable(field));
    if (place.keys.size() > 2) return OkStatus();
    if (field == "dtype") return Bad("tensor '{}': dtype is no text", Printable(name_));
    if (field != "shape" && field != "data_offsets") return OkStatus();
    if (is_object || place.arrays > 0) {
      return Bad("tensor '{}': {} is no list of whole numbers", Printable(name_), field);
    }
    has_shape_ = has_shape_ || field == "shape";
    return OkStatus();
  }

  Status SetDType(const JsonScalar& value) {
    const auto* text = std::get_if<std::string_view>(&value);
    if (text == nullptr) return Bad("tensor '{}': dtype is no text", Printable(name_));
    dtype_ = DTypeByName(*text);
    if (!dtype_ || *dtype_ >= DType::kQ1_0) {  // from there on they are ggml's
      return Bad("tensor '{}': unknown dtype '{}'", Printable(name_), Printable(*text));
    }
    return OkStatus();
  }

  Status Append(const std::string& field, const JsonPlace& place, const JsonScalar& value,
                uint64_t count_max, std::vector<uint64_t>* list) {
    const auto* number = std::get_if<uint64_t>(&value);
    if (number == nullptr || place.arrays != 1) {
      return Bad("tensor '{}': {} is no list of whole numbers", Printable(name_), field);
    }
    if (list->size() == count_max) {
      return Bad("tensor '{}': {} has more than {} numbers", Printable(name_), field, count_max);
    }
    list->push_back(*number);
    return OkStatus();
  }

  Status EndTensor() {
    if (!dtype_ || !has_shape_ || offsets_.size() != 2) {
      const std::string_view missing = !dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
      return Bad("tensor '{}' has no {}", Printable(name_),
                 !offsets_.empty() && missing == "data_offsets" ? "second number in data_offsets"
                                                                : missing);
    }
    const uint64_t begin = offsets_[0];
    const uint64_t end = offsets_[1];
    if (begin > end) {
      return Bad("tensor '{}' begins at {} and ends before that, at {}", Printable(name_), begin,
                 end);
    }
    auto bytes = TensorBytes(*dtype_, shape_);
    if (!bytes.ok()) return Prefixed(bytes.status(), fmt::format("tensor '{}'", Printable(name_)));
    if (*bytes != end - begin) {
      return Bad("tensor '{}' has {} bytes, but {} of shape {} needs {}", Printable(name_),
                 end - begin, TraitsOf(*dtype_).name, ShapeText(shape_), *bytes);
    }
    if (end > UINT64_MAX - data_begin_) {
      return Bad("tensor '{}' ends at {}, beyond 2^64 - 1", Printable(name_), end);
    }
    table_->tensors.push_back({.name = std::move(name_),
                               .dtype = *dtype_,
                               .shape = shape_,
                               .offset = data_begin_ + begin,
                               .bytes = *bytes});
    return OkStatus();
  }

  const uint64_t data_begin_;
  TensorTable* const table_;
  // The tensor that is being read.
  std::string name_;
  std::optional<DType> dtype_;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  bool has_shape_ = false;
};

// The format's own rule on top of what every table keeps: no byte outside a tensor.
Status CheckWithoutHoles(const TensorTable& table, uint64_t file_bytes) {
  uint64_t end = table.data_begin;
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.offset != end) {
      return Bad("{} bytes before tensor '{}', from byte {} on, belong to no tensor",
                 tensor.offset - end, Printable(tensor.name), end);
    }
    end += tensor.bytes;
  }
  if (end != file_bytes) {
    return Bad("the tensors end at byte {}, but the file at byte {}", end, file_bytes);
  }
  return OkStatus();
}

Status ParseHeader(std::string_view json, uint64_t file_bytes, TensorTable* table) {
  if (json.empty() || json.front() != '{') return Bad("the header does not begin with '{{'");
  HeaderVisitor visitor(table->data_begin, table);
  EMS_RETURN_IF_ERROR(WalkJson(json, &visitor));
  EMS_RETURN_IF_ERROR(SortAndCheck(file_bytes, table));
  return CheckWithoutHoles(*table, file_bytes);
}

uint64_t ReadLength(ConstBytes bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

Status CheckLength(uint64_t header_bytes, uint64_t file_bytes) {
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return Bad("a header of {} bytes; at most {}", header_bytes, kSafetensorsHeaderBytesMax);
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return Bad("a header of {} bytes in a file of {}", header_bytes, file_bytes);
  }
  return OkStatus();
}

}  // namespace

Result<HeaderParse> ParseSafetensors(ConstBytes first_bytes, uint64_t file_bytes,
                                     std::string_view file) {
  HeaderParse parse;
  if (file_bytes < kLengthBytes) {
    return Bad("{}: {} bytes are no safetensors file; 8 bytes of length come first", file,
               file_bytes);
  }
  if (first_bytes.size() < kLengthBytes) {
    parse.bytes_needed = kLengthBytes;
    return parse;
  }
  const uint64_t header_bytes = ReadLength(first_bytes);
  if (auto status = CheckLength(header_bytes, file_bytes); !status.ok())
    return Prefixed(status, file);
  parse.table.data_begin = kLengthBytes + header_bytes;
  if (first_bytes.size() < parse.table.data_begin) {
    parse.bytes_needed = parse.table.data_begin;
    return parse;
  }
  const std::string_view json = AsText(first_bytes.subspan(kLengthBytes, header_bytes));
  if (auto status = ParseHeader(json, file_bytes, &parse.table); !status.ok())
    return Prefixed(status, file);
  return parse;
}

}  // namespace ems::model
